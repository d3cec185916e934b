"""The play: when which blow falls, and what is said of it. Each one waits until its part of all steps is begun, and until
the one before is over, so that a slow machine sees the same play, only slower."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.demo_.app import STEPS
from scripts.demo_.board import Board, WorkerState
from scripts.demo_.stage import LEASE, Process, Stage
from scripts.demo_.tally import Blow, Cost, effect

RUNS = 40
SERVER_AWAY = 1.0
PATIENCE = 20.0  # for a blow's effect; then the next one falls, and the table tells


@dataclass
class Act:
    """A blow, and what is known of its effect by now."""

    blow: Blow
    says: Callable[[Cost], str]
    effect: str = ""
    over: bool = False


Scene = Iterator[None]  # goes on at each tick


class Play:
    """Looks at the board at every tick and does what is next."""

    def __init__(self, stage: Stage, board: Board) -> None:
        self.stage, self.board = stage, board
        self.acts: list[Act] = []
        self.skipped: list[str] = []
        self.coordinator: Process = stage.start_coordinator()
        self.near: Process = stage.start_fleet(2)
        self.far: Process = stage.start_fleet(1)
        self._scenes = self._all()

    @property
    def blows(self) -> list[Blow]:
        return [act.blow for act in self.acts]

    def tick(self) -> None:
        next(self._scenes, None)
        for act in self.acts:
            if not act.over:
                cost = effect(self.board.lines, act.blow)
                act.over = cost.over
                act.effect = act.says(cost) if cost.over else ""

    def broken(self) -> bool:
        """Whether a process that nobody killed has ended."""
        return any(process.poll() is not None for process in (self.coordinator, self.near))

    def _all(self) -> Scene:
        for part, title, scene in (
            (0.08, "SIGKILL to a worker", self._kill_worker),
            (0.20, "SIGTERM to a worker", self._stop_worker),
            (0.32, "the loss of a host", self._kill_host),
            (0.58, "kill -9 of the coordinator", self._kill_coordinator),
            (0.70, "kill -9 of the server", self._kill_server),
        ):
            yield from self._until(part)
            if all(run.returned for run in self.board.runs.values()):
                self.skipped.append(title)
            else:
                yield from scene()

    def _until(self, part: float) -> Scene:
        until = time.monotonic() + PATIENCE
        while self.board.steps_begun() < part * RUNS * STEPS or not all(act.over for act in self.acts):
            if time.monotonic() > until and self.acts:
                return
            yield

    def _strike(self, what: str, says: Callable[[Cost], str], *victims: int, graceful: bool = False) -> None:
        self.acts.append(Act(Blow(time.monotonic(), what, frozenset(victims), graceful), says))

    def _busiest(self, supervisor: Process) -> WorkerState:
        count = self.board.at_work()
        mine = [
            worker for worker in self.board.workers.values() if worker.supervisor == supervisor.pid and not worker.fate
        ]
        return max(mine, key=lambda worker: count[worker.pid])

    # -- the scenes

    def _kill_worker(self) -> Scene:
        worker = self._busiest(self.near)
        self._strike(
            f"SIGKILL worker {worker.number}",
            lambda cost: f"its {_runs(cost)} go on elsewhere after {span(cost.median)}",
            worker.pid,
        )
        os.kill(worker.pid, signal.SIGKILL)
        worker.fate = "killed"
        yield from self._replaced(worker)

    def _stop_worker(self) -> Scene:
        worker = min(
            (one for one in self.board.workers.values() if one.supervisor == self.near.pid and not one.fate),
            key=lambda one: one.number,
        )
        self._strike(
            f"SIGTERM worker {worker.number}",
            lambda cost: f"hands over {_runs(cost)}, each in {span(cost.median)}",
            worker.pid,
            graceful=True,
        )
        os.kill(worker.pid, signal.SIGTERM)
        worker.fate = "stopped"
        yield from self._replaced(worker)

    def _replaced(self, worker: WorkerState) -> Scene:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not any(
            one.number > worker.number and one.number > 3 and one.supervisor == worker.supervisor and not one.fate
            for one in self.board.workers.values()
        ):
            yield

    def _kill_host(self) -> Scene:
        worker = self._busiest(self.far)
        self._strike(
            f"host of worker {worker.number} lost",
            lambda cost: f"lease of {LEASE} s ends; {_runs(cost)} go on after {span(cost.median)}",
            worker.pid,
        )
        self.stage.kill_host(self.far)
        worker.fate = "lost"
        yield

    def _kill_coordinator(self) -> Scene:
        self.coordinator.kill()
        self._strike(
            "kill -9 coordinator",
            lambda cost: f"{_runs(cost)} go on without it, {len(cost.resumed) or 'none'} moved",
        )
        self.coordinator.wait()
        until = time.monotonic() + 1
        while time.monotonic() < until:
            yield
        self.coordinator = self.stage.start_coordinator()

    def _kill_server(self) -> Scene:
        at = time.monotonic()
        self.stage.kill_server()
        back = 0.0
        self._strike(
            "kill -9 server",
            lambda cost: f"back after {span(back)}; {_runs(cost)} go on, {len(cost.resumed) or 'none'} moved",
        )
        while time.monotonic() < at + SERVER_AWAY:
            yield
        self.stage.restart_server()
        back = time.monotonic() - at


def _runs(cost: Cost) -> str:
    return "1 run" if len(cost.hit) == 1 else f"{len(cost.hit)} runs"


def span(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
