"""Notices that a namespace was founded anew (a flushed server, an old backup): then its partitions may be others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.services.service_loop import Partition
from coordinator.store.plans import namespace as namespace_plans

TICK = 5.0


@dataclass(frozen=True, slots=True)
class FoundingReport:
    """Whether the namespace is another one than it was."""

    anew: bool = False
    rest: float = TICK


class Founding:
    """Looks at the birth mark in partition 0. One that is not there says nothing yet: its next user founds it."""

    name = "founding"

    def __init__(self, partition: Partition, birth: str, tell: Callable[[], None]) -> None:
        self._partition, self._birth, self._tell = partition, birth, tell

    async def tick(self) -> FoundingReport:
        birth = await self._partition.ask(namespace_plans.read_birth(self._partition.keys))
        anew = birth not in ("", self._birth)
        if anew:
            self._tell()
        return FoundingReport(anew)
