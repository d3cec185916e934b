"""Fleets and coordinators as real processes, and the journal that their handlers write."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.encoding.codec import decode
from coordinator.store.keys import Keys
from tests.e2e.places import OPERATOR, USERS, Place, role_of
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Event:
    """One line of the journal."""

    at: float
    pid: int
    run: str
    token: str
    what: str
    number: int


class Stage:
    """The server, the namespace and the journal with which a test's processes work."""

    app = "tests.e2e.app:runs"

    def __init__(
        self, url: str | Mapping[str, str], namespace: str, directory: Path, place: Place | None = None
    ) -> None:
        """Create a stage. `url` is one URL for all roles or a URL per role; `place` holds the servers behind it."""
        self.urls = dict.fromkeys((*USERS, OPERATOR), url) if isinstance(url, str) else url
        self.namespace, self.directory, self._place = namespace, directory, place
        self.journal = directory / "journal"
        self.journal.touch()
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """Return the URL for a producer."""
        return self.urls["producer"]

    @property
    def place(self) -> Place:
        assert self._place is not None, "this stage was made for a URL"
        return self._place

    def enter(self, namespace: str) -> None:
        """Use another namespace from now on. It does not exist yet."""
        self.namespace, self.urls = namespace, self.place.urls(namespace)

    def fleet(
        self, processes: int = 1, *, lease: float = 3.0, concurrency: int = 20, grace: float = 5.0
    ) -> subprocess.Popen[bytes]:
        options = ["--processes", processes, "--concurrency", concurrency, "--lease", lease, "--grace", grace]
        return self._start("workers", "start", self.app, *map(str, options))

    def coordinator(self) -> subprocess.Popen[bytes]:
        return self._start("coordinator", "start")

    def run(self, program: str, *arguments: str) -> None:
        """Run a command that ends by itself."""
        assert self._start(program, *arguments).wait(30) == 0, self.logs()

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.directory / f"log-{len(self.started)}"
        with log.open("wb") as output:
            command = [str(Path(sys.executable).parent / program), *arguments]
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment(role_of(program, arguments)), stdout=output, stderr=output,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.started.append(process)
        return process

    def environment(self, role: str = "producer") -> dict[str, str]:
        """Return the environment variables for the processes."""
        named = {"JOURNAL": str(self.journal), "RUNS_URL": self.urls[role], "RUNS_NAMESPACE": self.namespace}
        return os.environ | named

    def now(self) -> float:
        return time.monotonic()

    def events(self, what: str | None = None) -> list[Event]:
        # A line that crosses a page becomes visible in two parts, so a line without an end is skipped until it is
        # complete.
        lines = (line.split() for line in self.journal.read_text().split("\n")[:-1])
        found = [Event(float(at), int(pid), run, token, word, int(n)) for at, pid, run, token, word, n in lines]
        return [event for event in found if what is None or event.what == what]

    def steps(self) -> dict[str, list[Event]]:
        """Return the steps of each run, in the order of time."""
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.events("step"):
            found[event.run].append(event)
        return found

    def saved_state(self, run: str) -> dict[str, Any] | None:
        """Return the state of a run that the server has stored."""
        keys = Keys(self.namespace, int(run.rpartition("-")[2]))
        found = self.place.admin.hget(keys.ckpt(run), "state")
        return None if found is None else decode(found, "state")

    def expire_leases(self, workers: Collection[str]) -> None:
        """Let the leases of workers end now, by the server's record."""
        for partition in range(self.place.partitions):
            listed = Keys(self.namespace, partition).workers()
            for worker in set(workers) & {name.decode() for name in self.place.admin.zrange(listed, 0, -1)}:
                self.place.admin.zadd(listed, {worker: 1}, xx=True)

    def open_gate(self, gate: str) -> None:
        Path(f"{self.journal}.{gate}").touch()

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("log-*")))

    def close(self) -> None:
        for process in self.started:
            for pid in [process.pid, *children(process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def children(pid: int) -> list[int]:
    """Return the worker processes of a supervisor."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in text.split() if _is_worker(int(child))]


def _is_worker(pid: int) -> bool:
    try:
        return b"workers.program.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM, timeout: float = 60) -> int:
    process.send_signal(number)
    return process.wait(timeout)


@contextlib.contextmanager
def kept_open(stage: Stage) -> Iterator[Stage]:
    """Show the logs of the processes when a test fails."""
    try:
        yield stage
    finally:
        print(stage.logs())
        stage.close()


def wait_for_coordinator(stage: Stage) -> None:
    """Wait until a coordinator watches the leases. If a worker joined before that, recovery would pause for its lease."""
    watched = [Keys(stage.namespace, partition).watch() for partition in range(stage.place.partitions)]
    wait_until(lambda: all(stage.place.admin.hexists(key, "at") for key in watched), "a coordinator watches the leases")


def wait_for_start(stage: Stage, count: int = 1) -> None:
    wait_until(lambda: len(stage.events("start")) >= count, f"{count} handlers have started", timeout=60)


def find_most_at_once(events: list[Event], killed: dict[int, float]) -> int:
    """Return the largest number of attempts between their events `enter` and `leave` at the same time.

    Args:
        events: The events of the journal.
        killed: When each killed process was killed. Its attempts end with it.
    """
    left = {(event.run, event.token): event.at for event in events if event.what == "leave"}
    changes = []
    for event in events:
        if event.what == "enter":
            changes.append((event.at, 1))
            changes.append((left.get((event.run, event.token), killed.get(event.pid, float("inf"))), -1))
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
