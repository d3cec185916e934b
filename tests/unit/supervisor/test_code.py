"""The code version describes the code on disk at import time."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

APP = """
from workers import AsyncRun, Registry
import {helper}
runs = Registry()

@runs.handler
async def research(run: AsyncRun[None]) -> None:
    pass
"""
SAY = """
import sys
from workers.program.code_version import code_version
from workers.program.registries import load_all
print(code_version(sys.argv[1:], load_all(sys.argv[1:])))
"""


@pytest.fixture
def version(tmp_path: Path) -> Callable[[], str]:
    """Return a function that starts a process and returns its code version, as a worker reports it."""
    (tmp_path / "app.py").write_text(APP.format(helper="helper"))
    (tmp_path / "helper.py").write_text("ONE = 1\n")

    def say() -> str:
        command = [sys.executable, "-B", "-c", SAY, "app:runs"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return say


def git(directory: Path, *arguments: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    done = subprocess.run(["git", *who, *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def committed(version: Callable[[], str], tmp_path: Path) -> str:
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return git(tmp_path, "rev-parse", "HEAD")


def test_code_version_is_the_git_commit(version: Callable[[], str], committed: str) -> None:
    assert version() == committed[:12]


def test_file_that_is_not_code_does_not_change_the_version(
    version: Callable[[], str], committed: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("something")
    assert version() == committed[:12]


def test_uncommitted_code_changes_the_version(version: Callable[[], str], committed: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("ONE = 11\n")
    first = version()
    assert re.fullmatch(rf"{committed[:12]}-dirty-[0-9a-f]{{12}}", first)
    assert version() == first
    (tmp_path / "helper.py").write_text("ONE = 12\n")
    assert version() != first


def test_without_git_the_version_is_a_hash_of_the_modules_beside_the_handlers(
    version: Callable[[], str], tmp_path: Path
) -> None:
    first = version()
    assert re.fullmatch(r"hash-[0-9a-f]{12}", first)
    assert version() == first
    (tmp_path / "helper.py").write_text("ONE = 2\n")
    assert version() != first
