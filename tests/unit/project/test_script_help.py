"""The scripts of the project explain themselves without starting their work."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("name", ["bench", "check", "demo", "test"])
def test_script_prints_its_head_comment_for_help(name: str, option: str) -> None:
    path = ROOT / "scripts" / name
    lines = path.read_text().splitlines()[1:]
    comment = [line.removeprefix("#").removeprefix(" ") for line in lines[: lines.index("set -euo pipefail")]]
    found = subprocess.run([path, option], capture_output=True, text=True, timeout=30, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == comment
    assert comment[0].startswith(f"scripts/{name}")
