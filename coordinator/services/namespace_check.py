"""Notice that a namespace was created again, as after a flush of the server or the restore of an old backup.

The new namespace may have another number of partitions, so the coordinator then starts its services again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.services.service_loop import Partition
from coordinator.store.plans import namespace as namespace_plans

TICK = 10.0


@dataclass(frozen=True, slots=True)
class NamespaceReport:
    """The result of a tick: True if the namespace was created again, and the seconds until the next tick."""

    recreated: bool = False
    rest: float = TICK


class NamespaceCheck:
    """The service that checks whether partition 0 still has the birth mark with which the coordinator started.

    A missing mark is ignored: the next process that uses the namespace creates it.

    Args:
        partition: Partition 0.
        birth: The birth mark with which the coordinator started.
        on_recreated: Is called if the namespace has another birth mark.
    """

    name = "namespace check"

    def __init__(self, partition: Partition, birth: str, on_recreated: Callable[[], None]) -> None:
        self._partition, self._birth, self._on_recreated = partition, birth, on_recreated

    async def tick(self) -> NamespaceReport:
        """Read the birth mark, call `on_recreated` if the mark has changed, and return the report."""
        birth = await self._partition.ask(namespace_plans.read_birth(self._partition.keys))
        recreated = birth not in ("", self._birth)
        if recreated:
            self._on_recreated()
        return NamespaceReport(recreated)
