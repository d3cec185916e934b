"""Queue delayed and waiting runs when they are due, and cancel runs at the deadlines of their expiry or of a requested cancel.

The script also cancels children that their parents have dropped, and admits runs of groups when the rate of starts allows it.

No lock is needed: the script moves each entry once, and a second coordinator then finds no entry to move. So every coordinator that
hears the bell calls the script immediately.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.services.service_loop import LONGEST_REST, Partition
from coordinator.store.plans import coordinators as coordinator_plans

BATCH = 100  # runs of one call: about a millisecond in which the server does nothing else
BATCHES = 100  # calls of one tick, so that a tick ends within seconds and the health check sees that the service moves


@dataclass(frozen=True, slots=True)
class DueReport:
    """The result of a tick.

    Attributes:
        moved: The number of delayed and waiting runs that were queued.
        passed: The number of deadlines that had passed.
        rest: Seconds until the next tick.
    """

    moved: int = 0
    passed: int = 0
    rest: float = LONGEST_REST


class DueRuns:
    """The service for the delayed runs, the waiting runs and the deadlines of one partition."""

    def __init__(self, partition: Partition, batch: int = BATCH) -> None:
        self._partition, self._batch = partition, batch
        self.name = f"due runs of partition {partition.keys.partition}"

    async def tick(self) -> DueReport:
        """Move all entries that are due, batch by batch, and return the report. Its `rest` lasts until the next entry is due."""
        moved = passed = 0
        for _ in range(BATCHES):
            now = self._partition.now()
            part = await self._partition.ask(coordinator_plans.due(self._partition.keys, batch=self._batch, now=now))
            moved, passed = moved + part.moved, passed + part.passed
            if part.next_ms is None:
                return DueReport(moved, passed)
            if part.next_ms > 0:
                return DueReport(moved, passed, min(LONGEST_REST, part.next_ms / 1000))
        return DueReport(moved, passed, 0.0)
