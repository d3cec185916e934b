"""Proves the structure of a namespace, and mends it: each run is in exactly one place, and nothing is anywhere without a run.

It walks the keys page by page, so that a namespace of any size blocks nobody. What is seen once is looked at again before it
is said; a repair is a script that checks once more what was seen, and goes by the same fences as everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.doctor.findings import Finding
from coordinator.model.run import is_run_id
from coordinator.store.keys import Keys, Namespace
from coordinator.store.nodes import one_for_each_node
from coordinator.store.plans import doctor as ask
from coordinator.store.plans.doctor import Faults
from coordinator.store.script import Request

Steps = Generator[Request | list[Request], Any, Any]

MOST_TOLD = 1000  # findings that are kept to be shown; all are counted, and mended
MOST_ROUNDS = 5  # a repair may bring the next thing to light
_FAMILIES = ("ckpt", "messages", "once", "worker", "schedule")
_COLLECTIONS = ("workers", "live", "owned", "ready", "suspect", "delayed", "deadlines", "ended", "aside", "schedules")


# ---- what is told ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Round:
    """One walk through all keys."""

    runs: int = 0
    keys: int = 0
    total: int = 0
    mended: int = 0
    told: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        self.total += 1
        self.mended += finding.mended
        self.counts[f"{finding.subject}: {finding.fault}"] += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(finding)


@dataclass(frozen=True, slots=True)
class Report:
    """What a doctor has to say. `healthy`: nothing is wrong, or nothing is left of what was."""

    namespace: str
    partitions: int
    runs: int
    keys: int
    healthy: bool
    found: int
    mended: int
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]


def examine(space: Namespace, *, repair: bool = False, now: str = "") -> Generator[Any, Any, Report]:
    """Looks at everything; with `repair` mends what is wrong, again and again until a walk finds nothing."""
    first: Round = yield from _walk(space, repair, now)
    last, told, counts, mended = first, list(first.told), Counter(first.counts), first.mended
    rounds = 1
    while repair and last.total and rounds < MOST_ROUNDS:
        last = yield from _walk(space, repair, now)
        told += last.told
        counts += last.counts
        mended += last.mended
        rounds += 1
    return Report(
        namespace=space.name,
        partitions=space.partitions,
        runs=last.runs,
        keys=last.keys,
        healthy=not last.total,
        found=counts.total(),
        mended=mended,
        counts=dict(counts),
        findings=tuple(_last_word(told))[:MOST_TOLD],
    )


def _last_word(told: Iterable[Finding]) -> Iterable[Finding]:
    """What was found in several rounds is told once, with what became of it in the end."""
    last: dict[Finding, Finding] = {}
    for finding in told:
        last[replace(finding, outcome="", detail="")] = finding
    return last.values()


# ---- the walk ----------------------------------------------------------------------------------------------------------


def _walk(space: Namespace, repair: bool, now: str) -> Steps:
    """One round: a page of keys after the other, on each node."""
    round, walked = Round(), set[str]()
    parts: dict[str, Keys] = {keys.at: keys for keys in space.everywhere()}
    for node in (yield from one_for_each_node(space)):
        cursor = None
        while cursor != 0:
            cursor, page = yield from ask.scan_keys(node.at, space.name, cursor or 0)
            for at, names in _by_partition(page).items():
                if at in parts:
                    fresh = [name for name in names if f"{at}:{name}" not in walked]
                    yield from _Partition(parts[at], round, repair, now).look(fresh, walked)
    return round


def _by_partition(page: Iterable[str]) -> dict[str, list[str]]:
    """Names of keys without their tag, by tag; each once."""
    found: dict[str, dict[str, None]] = {}
    for key in page:
        at, _, name = key.partition("}:")
        found.setdefault(at + "}", {})[name] = None
    return {at: list(names) for at, names in found.items()}


@dataclass(frozen=True, slots=True)
class _Partition:
    """A page of one partition's keys: looked at, looked at again where something is wrong, and mended."""

    keys: Keys
    round: Round
    repair: bool
    now: str

    def look(self, names: Sequence[str], walked: set[str]) -> Steps:
        self.round.keys += len(names)
        families: dict[str, list[str]] = {}
        others: list[str] = []
        for name in names:
            family, _, rest = name.partition(":")
            if family == "run" or family in _FAMILIES:
                families.setdefault(family, []).append(rest)
            elif _type(name):
                others.append(name)
        sound = yield from self._types(others)
        for name in sound:
            family, _, rest = name.partition(":")
            if family in _COLLECTIONS:
                walked.add(f"{self.keys.at}:{name}")
                yield from self._collection(name, family, rest)
        yield from self._runs([id for id in families.pop("run", ()) if is_run_id(id)])
        for family, rests in families.items():
            yield from self._keys(family, rests)

    # -- one kind of thing each

    def _runs(self, ids: Sequence[str]) -> Steps:
        self.round.runs += len(ids)
        found = yield from self._twice(lambda some: ask.examine(self.keys, some), ids)
        mistaken = [id for id, faults in found if faults[0][0] == "mistaken"]
        yield from self._mistaken([f"run:{id}" for id in mistaken])
        found = [one for one in found if one[0] not in mistaken]
        outcomes = yield from self._mended(found, lambda seen: ask.repair_runs(self.keys, seen, now=self.now))
        for (id, faults), outcome in zip(found, outcomes, strict=True):
            for fault, detail in faults:
                self._say(Finding("run", self.keys.partition, id, fault, detail, outcome=outcome))

    def _collection(self, key: str, place: str, name: str) -> Steps:
        cursor: int | None = None
        kind = ask.key_types()[place]
        while cursor != 0:
            cursor, members = yield from ask.read_members(self.keys, f"{self.keys.at}:{key}", kind, cursor or 0)
            found = yield from self._twice(
                lambda some: ask.examine_entries(self.keys, place, name, some, self.now), members
            )
            outcomes = yield from self._mended(
                found, lambda seen: ask.repair_entries(self.keys, place, name, seen, self.now)
            )
            for (member, ((fault, detail),)), outcome in zip(found, outcomes, strict=True):
                self._say(Finding("entry", self.keys.partition, member, fault, detail, place, name, outcome))

    def _keys(self, family: str, names: Sequence[str]) -> Steps:
        kind = ask.key_types()[family]
        found = yield from self._twice(lambda some: ask.examine_keys(self.keys, family, kind, some), names)
        mistaken = [name for name, faults in found if faults[0][0] == "mistaken"]
        yield from self._mistaken([f"{family}:{name}" for name in mistaken])
        found = [one for one in found if one[0] not in mistaken]
        outcomes = yield from self._mended(found, lambda seen: ask.repair_keys(self.keys, family, kind, seen))
        for (name, ((fault, detail),)), outcome in zip(found, outcomes, strict=True):
            self._say(Finding("key", self.keys.partition, name, fault, detail, family, outcome=outcome))

    def _types(self, names: Sequence[str]) -> Steps:
        """Those that have the type that they should; the others are told."""
        kinds = yield from ask.read_types(self.keys, [f"{self.keys.at}:{name}" for name in names])
        wrong = [name for name, kind in zip(names, kinds, strict=True) if kind not in (_type(name), "none")]
        yield from self._mistaken(wrong)
        return [name for name, kind in zip(names, kinds, strict=True) if kind == _type(name)]

    def _mistaken(self, names: Sequence[str]) -> Steps:
        kinds = yield from ask.read_types(self.keys, [f"{self.keys.at}:{name}" for name in names])
        for name, kind in zip(names, kinds, strict=True):
            expected, outcome = _type(name), ""
            if kind in (expected, "none"):
                continue
            if self.repair:
                outcome = yield from ask.repair_type(self.keys, f"{self.keys.at}:{name}", name, expected)
            self._say(Finding("type", self.keys.partition, name, expected, kind, outcome=outcome))

    # -- shared

    def _twice(self, look: Any, names: Sequence[str]) -> Steps:
        """What is wrong at the first look and at the second."""
        first: list[Faults] = yield from look(names)
        seen = {name: faults for name, faults in zip(names, first, strict=True) if faults}
        if not seen:
            return []
        second: list[Faults] = yield from look(list(seen))
        confirmed = []
        for (name, before), after in zip(seen.items(), second, strict=True):
            words = {fault for fault, _ in before}
            if still := [(fault, detail) for fault, detail in after if fault in words]:
                confirmed.append((name, still))
        return confirmed

    def _mended(self, found: Sequence[tuple[str, Faults]], mend: Any) -> Steps:
        """What became of each, by its first fault: a repair of a run mends all of them."""
        if not self.repair:
            return [""] * len(found)
        return (yield from mend([(name, faults[0][0]) for name, faults in found]))

    def _say(self, finding: Finding) -> None:
        if finding.outcome != "changed":
            self.round.add(finding)


def _type(name: str) -> str:
    """The type that a key of this name has to have; empty where we know no such key."""
    known = ask.key_types()
    return known.get(name) or known.get(name.partition(":")[0], "")
