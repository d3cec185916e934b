"""Forgets ended runs whose retention is over, or that are more than are kept.

What is too old goes by its TTL; this clears the lists that name it. What is too much goes with all that was kept of it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from coordinator.model.run import ENDED
from coordinator.services.service_loop import Partition
from coordinator.store.plans import coordinators as coordinator_plans

log = logging.getLogger(__name__)

TICK = 5.0
FULL = 1000  # what one call takes of each list
KEEP = 1_000_000  # ended runs of each status in a partition
BATCH = 50  # runs that one call forgets: about a millisecond
BATCHES = 100  # of one status in one tick, so that a tick ends in seconds


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """How many ended runs were forgotten for their age, and how many for their number."""

    forgotten: int = 0
    beyond: int = 0
    rest: float = TICK


class Retention:
    """The retention of one partition."""

    def __init__(self, partition: Partition, keep: int = KEEP) -> None:
        self._partition, self._keep = partition, keep
        self.name = f"retention of partition {partition.keys.partition}"

    async def tick(self) -> RetentionReport:
        forgotten = 0
        while True:
            part = await self._partition.ask(coordinator_plans.trim(self._partition.keys, now=self._partition.now()))
            forgotten += part
            if part < FULL:
                break
        capped = [await self._cap(status) for status in sorted(ENDED)]
        return RetentionReport(forgotten, sum(capped), 0.0 if max(capped) == BATCH * BATCHES else TICK)

    async def _cap(self, status: str) -> int:
        total = 0
        for _ in range(BATCHES):
            part = await self._partition.ask(
                coordinator_plans.cap(self._partition.keys, status, keep=self._keep, batch=BATCH)
            )
            total += part
            if part < BATCH:
                break
        if total:
            log.warning(
                "%d %s runs were forgotten before their retention was over: more than %d are in partition %d",
                total, status, self._keep, self._partition.keys.partition,
            )  # fmt: skip
        return total
