"""Other versions of this product, and processes that run with the packages of a version.

A version is a folder with the packages `coordinator` and `workers` and with the handlers of the tests. A process of a version gets
the folder as PYTHONPATH, so it imports these packages and not the installed ones. The versions of this repository's history are
extracted from git:

    previous commit   the newest commit whose packages differ from those of this checkout
    earlier work      the newest commit that is at least six hours older than HEAD: users update from one piece of work to the
                      next, and the commits of one piece of work are closer together
    first release     a fixed commit with another layout of its modules, which knows no waits, children, output, effects, budgets,
                      groups and rates

Without the history of the repository the tests of old versions are skipped with the reason. In CI they fail instead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.processes import ROOT, Stage

FIRST_RELEASE = "ca07f564153f6375cfafbab444fbbcf0475d5800"
PACKAGES = ("coordinator", "workers")
SHARED = ("upgrade_app.py", "upgrade_client.py")  # programs that every version runs; they use what all of them have
APART = 6 * 3600  # seconds between two pieces of work, at least
LEASE = 3.0


class NoHistory(Exception):
    """The repository does not have the commit."""


# ---- commits -----------------------------------------------------------------------------------------------------------


def git(*arguments: str) -> bytes:
    """Return the output of a git command in this repository.

    Raises:
        NoHistory: The command failed, or git is not installed. The message is the first line that git wrote.
    """
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout
    except subprocess.CalledProcessError as error:
        raise NoHistory((error.stderr.decode(errors="replace").splitlines() or [str(error)])[0]) from None
    except OSError as error:
        raise NoHistory(str(error)) from None


def find_one(*arguments: str) -> str:
    """Return the commit that a git command prints.

    Raises:
        NoHistory: The command failed or printed nothing.
    """
    if not (found := git(*arguments).decode().strip()):
        raise NoHistory(f"'git {' '.join(arguments)}' found no commit")
    return found


def find_previous_commit() -> str:
    """Return the newest commit whose packages differ from those of this checkout. With changed files, this is HEAD."""
    if git("status", "--porcelain", "--", *PACKAGES):
        return find_one("rev-parse", "HEAD")
    return find_one("rev-parse", find_one("rev-list", "-1", "HEAD", "--", *PACKAGES) + "^")


def find_earlier_work() -> str:
    """Return the newest commit that is at least six hours older than HEAD."""
    until = int(find_one("log", "-1", "--format=%ct", "HEAD")) - APART
    return find_one("rev-list", "-1", f"--before={until}", "HEAD")


COMMITS: Mapping[str, Callable[[], str]] = {
    "previous commit": find_previous_commit,
    "earlier work": find_earlier_work,
    "first release": lambda: FIRST_RELEASE,
}


def extract(name: str, folder: Path) -> Path:
    """Extract the packages and the tests of an old version into a folder, with the shared programs of this version.

    Skip the test, or in CI let it fail, if the repository does not have the commit.

    Args:
        name: A name of COMMITS, or a commit. A commit that was named by hand must exist.
        folder: The folder, which does not exist yet.

    Returns:
        The folder.
    """
    try:
        commit = COMMITS[name]() if name in COMMITS else name
        archive = git("archive", "--format=tar", commit, *PACKAGES, "tests")
    except NoHistory as error:
        sentence = (
            f"the packages of the version '{name}' can't be read from git: {error}. "
            "Clone the repository with its whole history, for example with 'git fetch --unshallow'"
        )
        if name not in COMMITS or os.environ.get("CI") == "true":
            pytest.fail(sentence, pytrace=False)
        pytest.skip(sentence)
    folder.mkdir()
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    for program in SHARED:
        shutil.copy(ROOT / "tests" / "e2e" / program, folder / "tests" / "e2e" / program)
    return folder


def copy_this_version(folder: Path) -> Path:
    """Copy the packages of this version, with the handlers and programs of the end-to-end tests, into a new folder."""
    junk = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=junk)
    (folder / "tests" / "e2e").mkdir(parents=True)
    for file in ("__init__.py", "waiting.py", "e2e/__init__.py", "e2e/app.py", *(f"e2e/{name}" for name in SHARED)):
        shutil.copy(ROOT / "tests" / file, folder / "tests" / file)
    return folder


# ---- processes ---------------------------------------------------------------------------------------------------------


class Fleet:
    """Starts processes of several versions against the server of a stage. `folders` has the folder of each version."""

    def __init__(self, stage: Stage, folders: Mapping[str, Path], app: str = "") -> None:
        self.stage, self.folders, self._app = stage, folders, app or stage.app

    def start(
        self, version: str, module: str, *arguments: str, role: str, pipes: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start `python -m MODULE ARGUMENTS` with the packages of a version. With pipes, the test writes and reads its lines."""
        log = self.stage.directory / f"log-{len(self.stage.started)}"
        with log.open("wb") as output:
            stdout: int | IO[bytes] = subprocess.PIPE if pipes else output
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=self.stage.directory,
                env=self.environment(version, role), stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=stdout, stderr=output,
            )  # fmt: skip
        self.stage.started.append(process)
        return process

    def environment(self, version: str, role: str = "producer") -> dict[str, str]:
        return self.stage.environment(role) | {"PYTHONPATH": str(self.folders[version])}

    def coordinator(self, version: str) -> subprocess.Popen[bytes]:
        return self.start(version, "coordinator.cli", "start", role="coordinator")

    def workers(self, version: str, concurrency: int = 20, processes: int = 1) -> subprocess.Popen[bytes]:
        options = ["--processes", processes, "--concurrency", concurrency, "--lease", LEASE, "--grace", 5]
        return self.start(version, "workers.cli", "start", self._app, *map(str, options), role="worker")

    def command(self, version: str, *words: str, module: str = "coordinator.cli") -> str:
        """Run a command of a version, and return what it printed. The command must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", module, *words], cwd=self.stage.directory, env=self.environment(version),
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stderr or done.stdout}"
        return done.stdout

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        """Return what a process has written to its log so far."""
        number = self.stage.started.index(process)
        return (self.stage.directory / f"log-{number}").read_text(errors="replace")


def direct_children(pid: int) -> list[int]:
    """Return the child processes of a process, whatever their programs are called."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def kill_host(process: subprocess.Popen[bytes]) -> list[int]:
    """Kill a supervisor with all its worker processes, so that none of them can release or abandon a run.

    The supervisor is stopped first, because it would start another process after the first kill.

    Returns:
        The pids of the worker processes.
    """
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    workers = direct_children(process.pid)
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    return workers


def stop_cleanly(process: subprocess.Popen[bytes]) -> None:
    """End a process with SIGTERM. It must end with exit code 0."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
