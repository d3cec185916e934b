"""Give the free places of groups to the runs in their lines, once a second.

The script that frees a place gives it to the next run. This service does the same after a limit was changed, and after a repair.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.services.service_loop import Partition
from coordinator.store.plans import groups as group_plans

TICK = 1.0


@dataclass(frozen=True, slots=True)
class AdmissionReport:
    """The number of groups with a line, and of runs that left their lines."""

    groups: int = 0
    admitted: int = 0
    rest: float = TICK


class Admission:
    """The service that sweeps the groups of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.name = f"admission of partition {partition.keys.partition}"

    async def tick(self) -> AdmissionReport:
        """Sweep all groups, and return the report. If runs were admitted, more may fit, so that the next tick follows at once."""
        groups = admitted = 0
        cursor = ""
        while cursor != "0":
            swept = await self._partition.ask(
                group_plans.sweep(self._partition.keys, cursor or "0", now=self._partition.now())
            )
            cursor, groups, admitted = swept.cursor, groups + swept.groups, admitted + swept.admitted
        return AdmissionReport(groups, admitted, 0.0 if admitted else TICK)
