"""Give the free places of groups to the runs in their lines, once a second.

The script that frees a place gives it to the next run. This service does the same after a limit was changed, and after a repair.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.model.limits import SWEEP_GROUPS
from coordinator.services.service_loop import Partition
from coordinator.store.plans import groups as group_plans

TICK = 1.0


@dataclass(frozen=True, slots=True)
class AdmissionReport:
    """The number of groups that were swept, the number of runs that were admitted, and the seconds until the next tick."""

    groups: int = 0
    admitted: int = 0
    rest: float = TICK


class Admission:
    """The service that gives free places to waiting runs, in the groups of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._cursor = "0"
        self._turn = 0
        self.name = f"admission of partition {partition.keys.partition}"

    async def tick(self) -> AdmissionReport:
        """Sweep groups: give their free places to waiting runs. Return the report.

        If runs were admitted, more may be admitted, so the next tick follows immediately. A tick sweeps about SWEEP_GROUPS groups.
        If there are more groups, the next tick continues with the others.
        """
        groups = admitted = 0
        while groups < SWEEP_GROUPS:
            swept = await self._partition.ask(
                group_plans.sweep(self._partition.keys, self._cursor, turn=self._turn, now=self._partition.now())
            )
            self._cursor, groups, admitted = swept.cursor, groups + swept.groups, admitted + swept.admitted
            if self._cursor == "0":
                self._turn += 1
                break
        return AdmissionReport(groups, admitted, 0.0 if admitted else TICK)
