"""The processes of the demo: a server, a coordinator, and two fleets that stand for two hosts. None of them outlives the demo.

Ctrl-C in a terminal reaches only the demo itself: every other process has a session of its own, and the demo ends it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import redis

from coordinator import CoordinatorError
from coordinator.store.transport.connections.embedded_server import Attachment, attach

ROOT = Path(__file__).resolve().parents[2]
APP = "scripts.demonstration.app:runs"
CODE = "v1.4.2"  # shown as the version of the handlers' code
LEASE = 3
SLOTS = 20  # per process, so that two processes can take all 40 runs

Process = subprocess.Popen[bytes]


class DemoProcesses:
    """A temporary folder, and the processes that run in it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="runs-demo-"))
        tempfile.tempdir = str(self.folder)  # the socket of the server is created there too
        self.journal = self.folder / "journal"
        self._started: list[Process] = []
        self._workers: set[int] = set()
        self._server: Attachment | None = None

    # -- start

    def start_server(self, *, synced: bool = True) -> None:
        """Start a server.

        Args:
            synced: True to make the server write to disk before it answers. The demo kills the server: with `everysec`, an
                acknowledged write may still be in memory then, and would be lost.
        """
        self._server = attach(self.folder / "valkey")
        if synced:
            with redis.Redis.from_url(self.url) as line:
                line.config_set("appendfsync", "always")

    def start_coordinator(self) -> Process:
        return self._start("coordinator", "start")

    def start_fleet(self, processes: int, app: str = APP, slots: int = SLOTS) -> Process:
        options = ["--processes", processes, "--concurrency", slots, "--lease", LEASE]
        return self._start("workers", "start", app, *map(str, options))

    def start_web(self, *options: str) -> str:
        """Start the dashboard, and return its address."""
        process = self._start("coordinator", "web", "--port", "0", *options)
        log = self.folder / "coordinator.log"
        until = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < until:
            if found := re.search(r"web server started: (\S+)", log.read_text(errors="replace")):
                return found.group(1)
            time.sleep(0.05)
        raise CoordinatorError("the dashboard did not start")

    @property
    def url(self) -> str:
        assert self._server is not None
        return self._server.url

    def _start(self, program: str, *arguments: str) -> Process:
        keep = {name: value for name, value in os.environ.items() if not name.startswith("RUNS_")}
        environment = keep | {"DEMO_JOURNAL": str(self.journal), "RUNS_URL": self.url, "RUNS_CODE": CODE}
        with (self.folder / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / program), *arguments], cwd=ROOT, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def logs(self, lines: int = 15) -> str:
        texts = [
            (path.name, path.read_text(errors="replace").splitlines()) for path in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join(f"--- {name}\n" + "\n".join(text[-lines:]) for name, text in texts)

    # -- faults

    def roll(self) -> None:
        """Replace all worker processes, and return when the roll has ended."""
        self._start("workers", "roll").wait()

    def drain(self, worker: int) -> None:
        """Drain one worker process, as an operator does."""
        self._start("workers", "drain", str(worker))

    def kill_host(self, supervisor: Process) -> None:
        """Kill a supervisor and its worker processes at the same moment, as when a host is lost."""
        for pid in self._pause_family(supervisor):
            _send(pid, signal.SIGKILL)
        supervisor.wait()

    def kill_server(self) -> None:
        pid = int((self.folder / "valkey" / "valkey.pid").read_text())
        _send(pid, signal.SIGKILL)
        _wait_until_gone([pid], 5)

    def restart_server(self) -> None:
        assert self._server is not None
        self._server.ensure()

    # -- clean-up

    def finish(self, patience: float = 5.0) -> None:
        """Ask all processes to stop, and wait for them for a moment."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        until = time.monotonic() + patience
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))

    def clear(self) -> list[int]:
        """Kill all processes that still run. Return the ids of those that did not end; that would be a bug of the demo."""
        pids = {pid for process in self._started if process.poll() is None for pid in self._pause_family(process)}
        for pid in pids:
            _send(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
        left = _wait_until_gone(pids | self._workers, 10)
        if self._server is not None:
            self._server.close()  # the server stops with its last user
        return left

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pause_family(self, process: Process) -> list[int]:
        """Pause a process, so that it can't start another one, and return the ids of it and its children."""
        _send(process.pid, signal.SIGSTOP)
        until = time.monotonic() + 1
        while _state(process.pid) not in ("T", "t", "Z", "") and time.monotonic() < until:
            time.sleep(0.002)
        found = [process.pid, *children(process.pid)]
        self._workers.update(found)
        return found


def children(pid: int) -> list[int]:
    return [child for child, parent, _ in _processes() if parent == pid]


def _processes() -> Iterable[tuple[int, int, str]]:
    """Yield id, parent and state of every process, from /proc, or from ps where there is no /proc (macOS)."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=False)
        for line in listed.stdout.splitlines():
            pid, parent, state = line.split()[:3]
            yield int(pid), int(parent), state[0]
        return
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
                yield int(name), int(parent), state


def _state(pid: int) -> str:
    return next((state for found, _, state in _processes() if found == pid), "")


def _wait_until_gone(pids: Iterable[int], patience: float) -> list[int]:
    """Wait until processes have ended, and return those that have not. A zombie has ended; its parent has not noticed yet."""
    until = time.monotonic() + patience
    while left := [pid for pid, _, state in _processes() if pid in set(pids) and state != "Z"]:
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    return left


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
