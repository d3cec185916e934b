"""Measure the saves of attempts, and the time and work that runs lose when a worker is lost.

The worker uses this module only if it has metrics or middleware.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.errors import CoordinatorError
from coordinator.model.run import AttemptRecord
from coordinator.model.story import lost_work, read_story
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.attempt import Attempt
from workers.attempt.saver import Send
from workers.metrics.worker_metrics import WorkerMetrics

ROUNDING = 0.002  # seconds: the server stores times in ms


@dataclass(frozen=True, slots=True)
class SaveMeter:
    """Measure the saves of all attempts of a kind.

    Attributes:
        kind: The kind of the runs.
        metrics: The metrics of the process.
    """

    kind: str
    metrics: WorkerMetrics

    def __call__(self, delta: attempt_plans.Delta, seconds: float, word: str) -> None:
        """Measure a save: its changes, its seconds and the server's answer."""
        size = len(delta.chunk) + len(delta.state or b"") + sum(len(output) for _, output in delta.phases)
        self.metrics.saved(self.kind, seconds, size)
        if word == "fenced":
            self.metrics.fenced(self.kind)


@dataclass(frozen=True, slots=True)
class SteppedSender:
    """Send one save inside the context managers of middleware.

    Attributes:
        send: Sends the save.
        around_step: Makes the context manager from the type and the name of a step.
    """

    send: Send
    around_step: Callable[[str, str], contextlib.AbstractContextManager[None]]

    async def __call__(self, delta: attempt_plans.Delta) -> tuple[str, int]:
        """Send a save, and return the server's answer and the run's progress counter."""
        with self.around_step("save", ""):
            return await self.send(delta)


async def read_history(wire: AsyncWire, attempt: Attempt) -> tuple[AttemptRecord, ...]:
    """Return the earlier attempts of a run, or an empty tuple if the server does not answer."""
    plan = worker_plans.read_loss(attempt.lease.keys, attempt.id, "")
    try:
        story, _, _ = await drive_async(wire, plan, give_up=lambda: True)
    except CoordinatorError:
        return ()
    return read_story(story)


async def measure_resumption(wire: AsyncWire, metrics: WorkerMetrics, attempt: Attempt) -> None:
    """Measure how long a run had no worker after its worker was lost, and how much of its work is repeated.

    If the lease of the lost worker expired, the time counts from its last heartbeat. If a supervisor saw the worker end, the time
    counts from that moment. If the server does not answer, nothing is measured.
    """
    worker = attempt.claimed.prev.partition(" ")[0]
    plan = worker_plans.read_loss(attempt.lease.keys, attempt.id, worker)
    with contextlib.suppress(CoordinatorError):
        story, seen, lease = await drive_async(wire, plan, give_up=lambda: True)
        entry = next((one for one in reversed(read_story(story)) if one.attempt == attempt.number - 1), None)
        if entry is None:
            return
        lost_at = entry.ended.timestamp()
        if seen and lost_at - seen > lease - ROUNDING:
            lost_at = seen
        seconds = max(0.0, attempt.counters.epoch / 1000 - lost_at)
        metrics.resumed(attempt.handler.kind, seconds, lost_work(entry), struck=attempt.counters.strikes > 0)
