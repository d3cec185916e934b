"""Real worker processes of each contender, started and stopped alike, and the marks that their handlers write."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import venvs

from coordinator import Client
from coordinator.client.reading.overview import workers
from coordinator.config import settings as make_settings
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.server_checks import enter
from coordinator.store.transport.wire import Wire, drive

HERE = Path(__file__).parent
COMMANDS = Path(sys.executable).parent
STARTS = 60.0


@dataclass(frozen=True)
class Mark:
    """A line that a handler has written.

    Attributes:
        at: The monotonic time in ns.
        pid: The process of the handler.
        what: start or stop.
        job: The id of the job.
        step: The step at which the handler continues.
        tries: The number of attempts that the job has used.
    """

    at: int
    pid: int
    what: str
    job: str
    step: int
    tries: int


class Stage:
    """One contender on one server."""

    name = ""

    def __init__(self, url: str, folder: Path, number: int) -> None:
        self.url, self.namespace = url, f"handover{number}"
        self._marks, self._log = folder / f"marks-{self.name}-{number}", folder / f"log-{self.name}-{number}"
        self._marks.touch()
        self._started: list[subprocess.Popen[bytes]] = []

    # -- what differs between contenders

    def begin(self) -> None:
        """Start two worker processes."""
        raise NotImplementedError

    def enqueue(self, count: int) -> None:
        raise NotImplementedError

    def ask_to_stop(self, pid: int) -> None:
        """Ask a worker process to shut down gracefully."""
        os.kill(pid, signal.SIGTERM)

    # -- what all contenders share

    def start(self, *command: str | Path) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "BENCH_MARKS": str(self._marks), "PYTHONPATH": str(HERE), "RUNS_URL": self.url, "RUNS_NAMESPACE": self.namespace,
        }  # fmt: skip
        with self._log.open("ab") as log:
            process = subprocess.Popen([str(word) for word in command], env=environment, stdout=log, stderr=log)
        self._started.append(process)
        return process

    def marks(self, what: str) -> list[Mark]:
        lines = (line.split() for line in self._marks.read_text().splitlines())
        found = (Mark(int(at), int(pid), word, job, int(step), int(tries)) for at, pid, word, job, step, tries in lines)
        return [mark for mark in found if mark.what == what]

    def holders(self) -> dict[str, Mark]:
        """Return the newest start of each job."""
        return {mark.job: mark for mark in self.marks("start")}

    def wait(self, predicate: Callable[[], bool], what: str, seconds: float = STARTS) -> None:
        until = time.monotonic() + seconds
        while not predicate():
            if time.monotonic() > until:
                raise SystemExit(f"{self.name}: waited {seconds:g} s for {what}\n{self._log.read_text()[-3000:]}")
            time.sleep(0.005)

    def end(self) -> None:
        for process in self._started:
            for pid in [*descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


class Ours(Stage):
    """A supervisor with two processes, as `workers start` creates them, with the given lease."""

    name = "run-coordinator"
    app = "ours_app:runs"
    lease = 15.0

    def begin(self) -> None:
        self.fleet = self.fleet_of(2)

    def fleet_of(self, processes: int) -> subprocess.Popen[bytes]:
        before = self.ready()
        options = ["--processes", processes, "--lease", self.lease, "--fleet", f"f{len(self._started)}"]
        fleet = self.start(COMMANDS / "workers", "start", self.app, *map(str, options))
        self.wait(lambda: self.ready() >= before + processes, f"{processes} processes that are ready")
        return fleet

    def ready(self) -> int:
        return self._log.read_text().count(" ready: ") if self._log.exists() else 0

    def coordinator(self) -> None:
        self.start(COMMANDS / "coordinator", "start")
        self.wait(lambda: "coordinator c-" in self._log.read_text(), "a coordinator")

    def enqueue(self, count: int) -> None:
        with Client(self.url, self.namespace) as client:
            client.enqueue_many([("long", {})] * count)

    def ask_to_stop(self, pid: int) -> None:
        """Send the request of `workers drain`. A worker ignores a signal that its supervisor did not send."""
        settings = make_settings(self.url, self.namespace)
        wire = Wire(settings.address, settings.timeout)
        try:
            space = drive(wire, enter(settings))
            (worker,) = [one for one in drive(wire, workers(space)) if one.pid == pid]
            drive(wire, fleet_plans.drain(space.keys(0), worker.id))
        finally:
            wire.close()

    def used_up(self) -> int:
        """Return the strikes and failures of all runs."""
        with Client(self.url, self.namespace) as client:
            views = [client.handle(job).view() for job in self.holders()]
        return sum(view.counters.strikes + view.counters.failures for view in views)


class Peer(Stage):
    """Two worker processes of another queue."""

    def begin(self) -> None:
        self._python, self._app = venvs.python_of(self.name), HERE / f"{self.name}_app.py"
        for _ in range(2):
            self.start(self._python, self._app, "work", self.url)

    def enqueue(self, count: int) -> None:
        """Enqueue jobs until both processes have taken one.

        The log lines of the queues differ, so only a started job shows that a process is ready.
        """
        seen: set[int] = set()
        until = time.monotonic() + STARTS
        while len(seen) < 2 and time.monotonic() < until:
            subprocess.run([self._python, self._app, "enqueue", self.url, str(count)], check=True, env=os.environ | {
                "BENCH_MARKS": str(self._marks), "PYTHONPATH": str(HERE)
            })  # fmt: skip
            time.sleep(1)
            seen = {mark.pid for mark in self.marks("start")}


class Arq(Peer):
    name = "arq"


class Saq(Peer):
    name = "saq"


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process, deepest first."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [*descendants(int(child)), int(child)]
    return found
