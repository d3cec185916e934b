"""Inject the faults of the demo one after the other, and describe their effects.

Each fault is injected when a given part of all steps has begun and the runs have recovered from the fault before it. So the demo is
the same on a slow machine, only slower.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.demonstration.app import STEPS
from scripts.demonstration.board import Board, WorkerState
from scripts.demonstration.processes import LEASE, DemoProcesses, Process
from scripts.demonstration.tally import Cost, Fault, effect

RUNS = 40
SERVER_DOWN_SECONDS = 1.0
EFFECT_TIMEOUT = 20.0  # seconds to wait for the effect of a fault; then the next one follows


@dataclass
class ObservedFault:
    """A fault, and its effect so far."""

    fault: Fault
    describe: Callable[[Cost], str]
    effect: str = ""
    over: bool = False


Scenario = Iterator[None]  # continues at each tick


class FaultSchedule:
    """Inject the faults, one after the other. The demo calls `tick` again and again."""

    def __init__(self, processes: DemoProcesses, board: Board) -> None:
        self.processes, self.board = processes, board
        self.observed: list[ObservedFault] = []
        self.skipped: list[str] = []
        self.coordinator: Process = processes.start_coordinator()
        self.near: Process = processes.start_fleet(2)
        self.far: Process = processes.start_fleet(1)
        self._scenario = self._run_all()

    @property
    def faults(self) -> list[Fault]:
        return [one.fault for one in self.observed]

    def tick(self) -> None:
        next(self._scenario, None)
        for one in self.observed:
            if not one.over:
                cost = effect(self.board.lines, one.fault)
                one.over = cost.over
                one.effect = one.describe(cost) if cost.over else ""

    def broken(self) -> bool:
        """Return True if the coordinator or the first fleet has ended although the demo did not kill it."""
        return any(process.poll() is not None for process in (self.coordinator, self.near))

    def _run_all(self) -> Scenario:
        for part, title, scenario in (
            (0.08, "SIGKILL to a worker", self._kill_worker),
            (0.20, "the drain of a worker", self._drain_worker),
            (0.32, "the loss of a host", self._kill_host),
            (0.58, "kill -9 of the coordinator", self._kill_coordinator),
            (0.70, "kill -9 of the server", self._kill_server),
        ):
            yield from self._wait_for_progress(part)
            if all(run.returned for run in self.board.runs.values()):
                self.skipped.append(title)
            else:
                yield from scenario()

    def _wait_for_progress(self, part: float) -> Scenario:
        until = time.monotonic() + EFFECT_TIMEOUT
        while self.board.steps_begun() < part * RUNS * STEPS or not all(one.over for one in self.observed):
            if time.monotonic() > until and self.observed:
                return
            yield

    def _record_fault(self, what: str, describe: Callable[[Cost], str], *victims: int, graceful: bool = False) -> None:
        self.observed.append(ObservedFault(Fault(time.monotonic(), what, frozenset(victims), graceful), describe))

    def _busiest(self, supervisor: Process) -> WorkerState:
        count = self.board.at_work()
        mine = [
            worker for worker in self.board.workers.values() if worker.supervisor == supervisor.pid and not worker.fate
        ]
        return max(mine, key=lambda worker: count[worker.pid])

    # -- the faults

    def _kill_worker(self) -> Scenario:
        worker = self._busiest(self.near)
        self._record_fault(
            f"SIGKILL worker {worker.number}",
            lambda cost: f"its {_runs(cost)} resumed elsewhere after {span(cost.median)}",
            worker.pid,
        )
        os.kill(worker.pid, signal.SIGKILL)
        worker.fate = "killed"
        yield from self._wait_for_replacement(worker)

    def _drain_worker(self) -> Scenario:
        worker = min(
            (one for one in self.board.workers.values() if one.supervisor == self.near.pid and not one.fate),
            key=lambda one: one.number,
        )
        self._record_fault(
            f"drain worker {worker.number}",
            lambda cost: f"released {_runs(cost)}, resumed after {span(cost.median)}",
            worker.pid,
            graceful=True,
        )
        self.processes.drain(worker.pid)
        worker.fate = "stopped"
        yield from self._wait_for_replacement(worker)

    def _wait_for_replacement(self, worker: WorkerState) -> Scenario:
        until = time.monotonic() + EFFECT_TIMEOUT
        while time.monotonic() < until and not any(
            one.number > worker.number and one.number > 3 and one.supervisor == worker.supervisor and not one.fate
            for one in self.board.workers.values()
        ):
            yield

    def _kill_host(self) -> Scenario:
        worker = self._busiest(self.far)
        self._record_fault(
            f"host of worker {worker.number} lost",
            lambda cost: f"lease of {LEASE} s expired; {_runs(cost)} resumed after {span(cost.median)}",
            worker.pid,
        )
        self.processes.kill_host(self.far)
        worker.fate = "lost"
        yield

    def _kill_coordinator(self) -> Scenario:
        self.coordinator.kill()
        self._record_fault(
            "kill -9 coordinator",
            lambda cost: f"{_runs(cost)} continued, {len(cost.resumed) or 'none'} moved",
        )
        self.coordinator.wait()
        until = time.monotonic() + 1
        while time.monotonic() < until:
            yield
        self.coordinator = self.processes.start_coordinator()

    def _kill_server(self) -> Scenario:
        at = time.monotonic()
        self.processes.kill_server()
        back = 0.0
        self._record_fault(
            "kill -9 server",
            lambda cost: f"back after {span(back)}; {_runs(cost)} continued, {len(cost.resumed) or 'none'} moved",
        )
        while time.monotonic() < at + SERVER_DOWN_SECONDS:
            yield
        self.processes.restart_server()
        back = time.monotonic() - at


def _runs(cost: Cost) -> str:
    return "1 run" if len(cost.hit) == 1 else f"{len(cost.hit)} runs"


def span(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
