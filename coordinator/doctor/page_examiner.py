"""Examine one page of a partition's keys: runs, members of collections, single keys, and the types of all of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.doctor.findings import Finding
from coordinator.doctor.report import WalkResult
from coordinator.model.run_id import is_run_id
from coordinator.store.keys import Keys
from coordinator.store.plans import doctor as doctor_plans
from coordinator.store.plans.doctor import Faults
from coordinator.store.script import Request

Steps = Generator[Request | list[Request], Any, Any]

_FAMILIES = (
    "ckpt", "messages", "signals", "signal-keys", "signal-operations", "joins", "results", "output", "effects", "graph",
    "graph-index", "graph-threads", "once", "worker", "schedule",
)  # fmt: skip
_COLLECTIONS = (
    "workers", "live", "owned", "ready", "suspect", "delayed", "waiting", "deadlines", "ended", "aside", "parting", "schedules",
    "admitted", "starting", "line", "holders", "turns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageExaminer:
    """An examiner of keys of one partition. It examines each fault a second time, and repairs it if requested.

    Attributes:
        keys: The keys of the partition.
        result: Where the findings are recorded.
        repair: Whether to repair the faults.
        now: The time in a namespace with a test clock; empty for the server's time.
    """

    keys: Keys
    result: WalkResult
    repair: bool
    now: str

    def examine(self, names: Sequence[str], examined: set[str]) -> Steps:
        """Examine keys, and record their faults in `result`.

        Args:
            names: Names of keys, without their hash tag.
            examined: Collections whose members were examined. The method adds the collections of this page.
        """
        self.result.keys += len(names)
        families: dict[str, list[str]] = {}
        others: list[str] = []
        for name in names:
            family, _, rest = name.partition(":")
            if family == "run" or family in _FAMILIES:
                families.setdefault(family, []).append(rest)
            elif _expected_type(name):
                others.append(name)
        sound = yield from self._check_types(others)
        for name in sound:
            family, _, rest = name.partition(":")
            if family in _COLLECTIONS:
                examined.add(f"{self.keys.at}:{name}")
                yield from self._examine_collection(name, family, rest)
        yield from self._examine_runs([id for id in families.pop("run", ()) if is_run_id(id)])
        for family, rests in families.items():
            yield from self._examine_keys(family, rests)

    # -- by subject

    def _examine_runs(self, ids: Sequence[str]) -> Steps:
        self.result.runs += len(ids)
        found = yield from self._confirm(lambda some: doctor_plans.examine(self.keys, some), ids)
        mistyped = [id for id, faults in found if faults[0][0] == "mistaken"]
        yield from self._report_types([f"run:{id}" for id in mistyped])
        found = [one for one in found if one[0] not in mistyped]
        outcomes = yield from self._repair(found, lambda seen: doctor_plans.repair_runs(self.keys, seen, now=self.now))
        for (id, faults), outcome in zip(found, outcomes, strict=True):
            for fault, detail in faults:
                self._report(Finding("run", self.keys.partition, id, fault, detail, outcome=outcome))

    def _examine_collection(self, key: str, place: str, name: str) -> Steps:
        cursor: int | None = None
        type = doctor_plans.key_types()[place]
        while cursor != 0:
            cursor, members = yield from doctor_plans.read_members(
                self.keys, f"{self.keys.at}:{key}", type, cursor or 0
            )
            found = yield from self._confirm(
                lambda some: doctor_plans.examine_entries(self.keys, place, name, some, self.now), members
            )
            outcomes = yield from self._repair(
                found, lambda seen: doctor_plans.repair_entries(self.keys, place, name, seen, self.now)
            )
            for (member, ((fault, detail),)), outcome in zip(found, outcomes, strict=True):
                self._report(Finding("entry", self.keys.partition, member, fault, detail, place, name, outcome))

    def _examine_keys(self, family: str, names: Sequence[str]) -> Steps:
        type = doctor_plans.key_types()[family]
        found = yield from self._confirm(lambda some: doctor_plans.examine_keys(self.keys, family, type, some), names)
        mistyped = [name for name, faults in found if faults[0][0] == "mistaken"]
        yield from self._report_types([f"{family}:{name}" for name in mistyped])
        found = [one for one in found if one[0] not in mistyped]
        outcomes = yield from self._repair(found, lambda seen: doctor_plans.repair_keys(self.keys, family, type, seen))
        for (name, ((fault, detail),)), outcome in zip(found, outcomes, strict=True):
            self._report(Finding("key", self.keys.partition, name, fault, detail, family, outcome=outcome))

    def _check_types(self, names: Sequence[str]) -> Steps:
        """Return the keys that have the expected type. Report the keys that have another type."""
        types = yield from doctor_plans.read_types(self.keys, [f"{self.keys.at}:{name}" for name in names])
        wrong = [name for name, type in zip(names, types, strict=True) if type not in (_expected_type(name), "none")]
        yield from self._report_types(wrong)
        return [name for name, type in zip(names, types, strict=True) if type == _expected_type(name)]

    def _report_types(self, names: Sequence[str]) -> Steps:
        """Report the keys that still have a wrong type, and repair them if requested."""
        types = yield from doctor_plans.read_types(self.keys, [f"{self.keys.at}:{name}" for name in names])
        for name, type in zip(names, types, strict=True):
            expected, outcome = _expected_type(name), ""
            if type in (expected, "none"):
                continue
            if self.repair:
                outcome = yield from doctor_plans.repair_type(self.keys, f"{self.keys.at}:{name}", name, expected)
            self._report(Finding("type", self.keys.partition, name, expected, type, outcome=outcome))

    # -- shared

    def _confirm(self, examine: Any, names: Sequence[str]) -> Steps:
        """Call `examine` twice for the names, and return each name with the faults that both calls found."""
        first: list[Faults] = yield from examine(names)
        seen = {name: faults for name, faults in zip(names, first, strict=True) if faults}
        if not seen:
            return []
        second: list[Faults] = yield from examine(list(seen))
        confirmed = []
        for (name, before), after in zip(seen.items(), second, strict=True):
            words = {fault for fault, _ in before}
            if still := [(fault, detail) for fault, detail in after if fault in words]:
                confirmed.append((name, still))
        return confirmed

    def _repair(self, found: Sequence[tuple[str, Faults]], repair: Any) -> Steps:
        """Repair the faults, and return the outcome for each name: a word, or an empty text if no repair was requested.

        Args:
            found: Each name with its faults. Only the first fault is sent, because a repair fixes all faults of the name.
            repair: Returns the plan that repairs the faults and returns the outcomes.
        """
        if not self.repair:
            return [""] * len(found)
        return (yield from repair([(name, faults[0][0]) for name, faults in found]))

    def _report(self, finding: Finding) -> None:
        if finding.outcome != "changed":
            self.result.add(finding)


def _expected_type(name: str) -> str:
    """Return the type that a key of this name must have; empty if the product has no key of this name."""
    known = doctor_plans.key_types()
    return known.get(name) or known.get(name.partition(":")[0], "")
