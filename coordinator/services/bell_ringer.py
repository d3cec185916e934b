"""Rings once a second where runs wait and no bell is set: a bell that got lost costs a second and not a run."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.services.service_loop import Partition
from coordinator.store.plans import coordinators as coordinator_plans

TICK = 1.0


@dataclass(frozen=True, slots=True)
class RingingReport:
    """In how many lines runs wait."""

    lines: int = 0
    rest: float = TICK


class Ringing:
    """The bells of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.name = f"ringing of partition {partition.keys.partition}"

    async def tick(self) -> RingingReport:
        return RingingReport(await self._partition.ask(coordinator_plans.ring(self._partition.keys)))
