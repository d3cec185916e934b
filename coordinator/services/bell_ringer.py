"""Ring the bells of ready queues that have runs, once a second. If the token of a bell is lost, workers claim a second later."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.services.service_loop import Partition
from coordinator.store.plans import coordinators as coordinator_plans

TICK = 1.0


@dataclass(frozen=True, slots=True)
class BellReport:
    """The number of ready queues that have runs, and the seconds until the next tick."""

    queues: int = 0
    rest: float = TICK


class BellRinger:
    """The service that rings the bells of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.name = f"bell ringer of partition {partition.keys.partition}"

    async def tick(self) -> BellReport:
        """Ring the bell of each ready queue that has runs and no token, and return the report."""
        return BellReport(await self._partition.ask(coordinator_plans.ring(self._partition.keys)))
