"""Moves delayed runs into their lines when their time has come, and works off deadlines.

No lock: the script moves each entry once, whoever calls it, and a second caller finds nothing. So who hears the
coordinator's bell acts on it at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.services.service_loop import LONGEST_REST, Partition
from coordinator.store.plans import coordinators as coordinator_plans

BATCH = 100  # runs of one call, about a millisecond: the server does nothing else meanwhile
BATCHES = (
    100  # of one tick, so that a tick ends in seconds however many are due: who watches whether it moves is not misled
)


@dataclass(frozen=True, slots=True)
class DueReport:
    """How many delayed runs were moved, how many deadlines had passed, and when to look again."""

    moved: int = 0
    passed: int = 0
    rest: float = LONGEST_REST


class Due:
    """What is due in one partition."""

    def __init__(self, partition: Partition, batch: int = BATCH) -> None:
        self._partition, self._batch = partition, batch
        self.name = f"due of partition {partition.keys.partition}"

    async def tick(self) -> DueReport:
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
