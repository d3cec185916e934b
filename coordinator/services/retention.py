"""Delete ended runs whose retention is over, and the oldest ended runs if there are more than the coordinator keeps.

The keys of a run whose retention is over expire by their TTL. This service then removes the run from the lists of ended runs, and
from the set of its parent's children. If there are too many ended runs, the service deletes the oldest with all their keys.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from coordinator.model.run import ENDED
from coordinator.services.service_loop import Partition
from coordinator.store.keys import Namespace
from coordinator.store.plans import coordinators as coordinator_plans

log = logging.getLogger(__name__)

TICK = 5.0
QUIET_TICK = 15.0  # after a tick that has removed nothing
FULL = 1000  # the most entries that one call removes from each list
KEEP = 1_000_000  # ended runs that are kept, for each status and partition
BATCH = 50  # runs that one call deletes: about a millisecond
CHILDREN = 500  # children of runs that one call looks at: less than a millisecond
BATCHES = 100  # calls for one status in one tick, so that a tick ends within seconds


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The result of a tick.

    Attributes:
        forgotten: The number of runs that were removed because their retention was over.
        beyond: The number of runs that were deleted because there were more than the coordinator keeps.
        rest: Seconds until the next tick.
    """

    forgotten: int = 0
    beyond: int = 0
    rest: float = TICK


class Retention:
    """The service that deletes ended runs of one partition."""

    def __init__(self, partition: Partition, namespace: Namespace, keep: int = KEEP) -> None:
        self._partition, self._namespace, self._keep = partition, namespace, keep
        keys = partition.keys
        self._listed = [*(keys.ended(status) for status in sorted(ENDED)), keys.aside(), keys.parents()]
        self.name = f"retention of partition {partition.keys.partition}"

    async def tick(self) -> RetentionReport:
        """Remove expired runs from the lists of ended runs, and delete the ended runs beyond the number to keep.

        Also remove the ids of deleted runs from the sets of children. Return the report.
        """
        if not any(await self._partition.ask(coordinator_plans.find_existing(self._partition.keys, [self._listed]))):
            return RetentionReport(rest=QUIET_TICK)
        forgotten = 0
        while True:
            part = await self._partition.ask(coordinator_plans.trim(self._partition.keys, now=self._partition.now()))
            forgotten += part
            if part < FULL:
                break
        keys, now = self._partition.keys, self._partition.now()
        await self._partition.ask(coordinator_plans.trim_children(self._namespace, keys, most=CHILDREN, now=now))
        capped = [await self._cap(status) for status in sorted(ENDED)]
        if max(capped) == BATCH * BATCHES:
            return RetentionReport(forgotten, sum(capped), 0.0)
        return RetentionReport(forgotten, sum(capped), TICK if forgotten or any(capped) else QUIET_TICK)

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
                "deleted %d %s runs in partition %d before their retention was over: the coordinator keeps at most %d (--keep)",
                total, status, self._partition.keys.partition, self._keep,
            )  # fmt: skip
        return total
