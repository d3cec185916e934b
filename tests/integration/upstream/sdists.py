"""Tests of other projects, from the sdists of their installed versions. pip downloads them when a test runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def unpacked_sdist(package: str, directory: Path) -> Path:
    """Download the sdist of the installed version of a package, and return the folder of its content."""
    wanted = f"{package}=={version(package)}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(directory),
        wanted,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    archives = list(directory.glob("*.tar.gz"))
    if not archives:
        reason = f"the sdist of {wanted} can't be downloaded: {done.stderr[-500:]}"
        pytest.fail(reason) if "CI" in os.environ else pytest.skip(reason)
    with tarfile.open(archives[0]) as archive:
        archive.extractall(directory, filter="data")
    return next(path for path in directory.iterdir() if path.is_dir())


def run_tests(source: Path, plugin: str, tests: list[str], without: list[str], **variables: str) -> int:
    """Run tests of another project with one of our plugins, and return how many passed.

    Args:
        source: The folder of the project.
        plugin: The name of a module in this folder.
        tests: The paths of the tests in the project.
        without: Words in the names of tests that are left out.
        **variables: Further variables of the environment, for the plugin.

    Raises:
        AssertionError: If a test fails.
    """
    settings = source / "our_pytest.ini"
    settings.write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    command = [
        sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(source), "--noconftest", "-q",
        "-p", plugin, "-p", "no:valkey", "-p", "no:cacheprovider", "-p", "no:xdist",
        *tests, *(["-k", " and ".join(f"not {word}" for word in without)] if without else []),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(HERE), "OPENAI_AGENTS_DISABLE_TRACING": "1"} | variables
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    return int(passed[1]) if passed else 0
