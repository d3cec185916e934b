"""Measure the saves of attempts, and how much a lost worker cost their runs. Used only by processes that export metrics."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from coordinator.errors import CoordinatorError
from coordinator.model.story import lost_work, read_story
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.attempt import Attempt
from workers.metrics.worker_metrics import WorkerMetrics

ROUNDING = 0.002  # seconds: the server stores times in ms


@dataclass(frozen=True, slots=True)
class MeasuredSender:
    """Send one save to the server, without repeating it, and measure it."""

    wire: AsyncWire
    attempt: Attempt
    metrics: WorkerMetrics

    async def __call__(self, delta: attempt_plans.Delta) -> tuple[str, int]:
        """Send a save, and return the server's answer and the run's progress counter."""
        attempt, kind = self.attempt, self.attempt.handler.kind
        plan = attempt_plans.checkpoint(attempt.lease.keys, attempt.id, attempt.token, delta)
        begun = attempt.clock()
        answer = await drive_async(self.wire, plan, give_up=lambda: True)
        size = len(delta.chunk) + len(delta.state or b"") + sum(len(output) for _, output in delta.phases)
        self.metrics.saved(kind, attempt.clock() - begun, size)
        if answer[0] == "fenced":
            self.metrics.fenced(kind)
        return answer


async def measure_resumption(wire: AsyncWire, metrics: WorkerMetrics, attempt: Attempt) -> None:
    """Measure how long a run had no worker after its worker was lost, and how much of its work is repeated.

    If the lost worker was given up because its lease expired, it was lost at its last heartbeat or later, and the time counts from
    there. If its supervisor saw it end, the time counts from that moment. A server that does not answer is not asked again.
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
