"""The demo's processes: a server, a coordinator, two fleets that stand for two hosts. None of them outlives the demo.

A terminal's Ctrl-C reaches only the demo itself: everything else has a session of its own and is ended from here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import redis

from coordinator.store.transport.connections.embedded_server import Attachment, attach

ROOT = Path(__file__).resolve().parents[2]
LEASE = 3
SLOTS = 20  # for each process: two of them can take all 40 runs

Process = subprocess.Popen[bytes]


class Stage:
    """A folder, and what runs in it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="runs-demo-"))
        tempfile.tempdir = str(self.folder)  # the server's socket goes there too
        self.journal = self.folder / "journal"
        self._started: list[Process] = []
        self._workers: set[int] = set()
        self._server: Attachment | None = None

    # -- building up

    def start_server(self) -> None:
        """It is going to be killed: with everysec a write waits in its memory while an fsync takes long, and it would forget what
        it has acknowledged."""
        self._server = attach(self.folder / "valkey")
        with redis.Redis.from_url(self.url) as line:
            line.config_set("appendfsync", "always")

    def start_coordinator(self) -> Process:
        return self._start("coordinator", "start")

    def start_fleet(self, processes: int) -> Process:
        options = ["--processes", processes, "--concurrency", SLOTS, "--lease", LEASE]
        return self._start("workers", "start", "scripts.demo_.app:runs", *map(str, options))

    @property
    def url(self) -> str:
        assert self._server is not None
        return self._server.url

    def _start(self, program: str, *arguments: str) -> Process:
        keep = {name: value for name, value in os.environ.items() if not name.startswith("RUNS_")}
        environment = keep | {"DEMO_JOURNAL": str(self.journal), "RUNS_URL": self.url}
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

    # -- blows

    def kill_host(self, supervisor: Process) -> None:
        """A host is gone: the supervisor and its processes at the same moment, so that nobody is left to tell."""
        for pid in self._family(supervisor):
            _send(pid, signal.SIGKILL)
        supervisor.wait()

    def kill_server(self) -> None:
        pid = int((self.folder / "valkey" / "valkey.pid").read_text())
        _send(pid, signal.SIGKILL)
        _until_gone([pid], 5)

    def restart_server(self) -> None:
        assert self._server is not None
        self._server.ensure()

    # -- clearing away

    def finish(self, patience: float = 5.0) -> None:
        """In order: everybody is asked to stop, and has a moment for it."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        until = time.monotonic() + patience
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))

    def clear(self) -> list[int]:
        """Ends whatever still runs. The ids of processes that are there nevertheless: none, or a mistake of ours."""
        pids = {pid for process in self._started if process.poll() is None for pid in self._family(process)}
        for pid in pids:
            _send(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
        left = _until_gone(pids | self._workers, 10)
        if self._server is not None:
            self._server.close()  # the last one out: the server stops
        return left

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _family(self, process: Process) -> list[int]:
        """A process and its children. It is halted first, so that it can't start another while we look."""
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
    """Every process: id, parent, state. From /proc, or where there is none (macOS) from ps."""
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


def _until_gone(pids: Iterable[int], patience: float) -> list[int]:
    """Those that are still there after that time. A zombie is gone: who should have taken note of it has not yet."""
    until = time.monotonic() + patience
    while left := [pid for pid, _, state in _processes() if pid in set(pids) and state != "Z"]:
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    return left


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
