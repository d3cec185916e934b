"""Check once a second which services of a partition can have work, so that the others send nothing.

A service whose keys do not exist has nothing to do. One EXISTS command with the keys of all services finds such services. Without
this check, each service would call its script once a second, even on an idle server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.errors import CoordinatorError
from coordinator.services.service_loop import LONGEST_REST, Partition, ServiceLoop
from coordinator.store.keys import Keys
from coordinator.store.plans import coordinators as coordinator_plans


@dataclass(frozen=True, slots=True)
class WorkReport:
    """The number of services that can have work, and the seconds until the next tick."""

    services: int = 0
    rest: float = LONGEST_REST


class WorkCheck:
    """The service that pauses the loops of other services while these services have no work.

    Args:
        partition: The partition.
        loops: Each loop, with a function that returns the keys of its service. Without any of these keys, there is no work.
    """

    def __init__(self, partition: Partition, loops: Sequence[tuple[ServiceLoop, Callable[[Keys], list[str]]]]) -> None:
        self._partition = partition
        self._loops = [loop for loop, _ in loops]
        self._keys = [keys(partition.keys) for _, keys in loops]
        self.name = f"work check of partition {partition.keys.partition}"

    async def tick(self) -> WorkReport:
        """Check which services can have work, pause the loops of all other services, and return a report.

        Raises:
            CoordinatorError: The server did not answer. All loops run then, so that each service reports the outage.
        """
        try:
            exist = await self._partition.ask(coordinator_plans.find_existing(self._partition.keys, self._keys))
        except CoordinatorError:
            self._set_idle([False] * len(self._loops))  # all services notice and report an outage
            raise
        self._set_idle([not one for one in exist])
        return WorkReport(sum(exist))

    def _set_idle(self, idle: list[bool]) -> None:
        for loop, one in zip(self._loops, idle, strict=True):
            loop.set_idle(one)


def due_keys(keys: Keys) -> list[str]:
    """Return the keys that `DueRuns` works on: delayed runs, waiting runs, deadlines, and children that a parent has dropped."""
    return [keys.delayed(), keys.waiting(), keys.deadlines(), keys.parting()]


def schedule_keys(keys: Keys) -> list[str]:
    """Return the keys that `Scheduler` works on: the schedules."""
    return [keys.schedules()]


def route_keys(keys: Keys) -> list[str]:
    """Return the keys that `BellRinger` works on: the routes that may have queued runs."""
    return [keys.routes()]


def group_keys(keys: Keys) -> list[str]:
    """Return the keys that `Admission` works on: the groups that may have runs in their lines."""
    return [keys.groups()]
