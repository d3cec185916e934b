"""The adapters with Sentry switched on. Sentry replaces parts of the frameworks, clones agents, and can't be switched off again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.matrix("the same tests without Sentry are in the quick suite")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("adapter", ["openai_agents", "pydantic_ai"])
def test_adapter_stays_durable_with_sentry(adapter: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.with_sentry"]
    done = subprocess.run(
        [*command, str(HERE / f"test_{adapter}.py")],
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout
