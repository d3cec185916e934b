"""Count the finished and lost runs, and the cost of each fault, from the lines of the journal and the list of faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from scripts.demonstration.journal import NOBODY, Line


@dataclass(frozen=True)
class Fault:
    """A fault that was injected: when, its description, and the worker processes that it hit (none: it hit all of them)."""

    at: float
    what: str
    victims: frozenset[int] = frozenset()
    graceful: bool = False


@dataclass
class Cost:
    """The cost of a fault: the runs that it hit, the pauses of those that continued, and the number of repeated steps."""

    hit: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)  # finished before they could be moved
    resumed: dict[str, float] = field(default_factory=dict)  # run -> seconds until its next attempt started
    saved_again: dict[str, float] = field(default_factory=dict)  # run -> seconds until its next step was acknowledged
    redone: int = 0

    @property
    def pauses(self) -> list[float]:
        return [*self.resumed.values(), *self.saved_again.values()]

    @property
    def median(self) -> float | None:
        return median(self.pauses) if self.pauses else None

    @property
    def longest(self) -> float | None:
        return max(self.pauses, default=None)

    @property
    def over(self) -> bool:
        """Return True if every run that was hit has continued or ended."""
        return self.hit <= self.ended | set(self.resumed) | set(self.saved_again)


@dataclass(frozen=True)
class Tally:
    """The result of the demo. A run is lost if its enqueue was acknowledged, and its result is wrong or a step is missing."""

    runs: int
    finished: int
    lost: tuple[str, ...]
    resumed: int
    steps: int
    missing: int
    redone: int
    forgotten: int  # steps that were repeated although the server had acknowledged them
    costs: tuple[Cost, ...]
    other: Cost  # cost that no fault explains

    @property
    def good(self) -> bool:
        return not (self.lost or self.missing or self.forgotten) and self.finished == self.runs


def tally(lines: Sequence[Line], faults: Sequence[Fault], steps: int) -> Tally:
    """Return the result of the demo, for all runs whose enqueue was acknowledged. Each run has `steps` steps."""
    by_run: dict[str, list[Line]] = {line.run: [] for line in lines if line.what == "asked"}
    for line in lines:
        if line.run in by_run:
            by_run[line.run].append(line)
    costs, other = tuple(Cost() for _ in faults), Cost()
    missing = redone = forgotten = resumed = 0
    finished, lost = [], []
    for run, own in by_run.items():
        begun = {line.number for line in own if line.what == "step"}
        missing += steps - len(begun & set(range(steps)))
        right = any(line.what == "result" and line.number for line in own) and any(line.what == "end" for line in own)
        (finished if right and begun >= set(range(steps)) else lost).append(run)
        forgotten += _forgotten(own)
        for attempt in _attempts(own)[1:]:
            resumed += 1
            again = sum(step.number in attempt.known for step in attempt.lines if step.what == "step")
            redone += again
            _cause(attempt, faults, costs, other).redone += again
        for fault, cost in zip(faults, costs, strict=True):
            _charge(run, own, fault, cost)
    return Tally(
        len(by_run), len(finished), tuple(lost), resumed, steps * len(by_run), missing, redone, forgotten, costs, other
    )


def effect(lines: Iterable[Line], fault: Fault) -> Cost:
    """Return the cost of a fault so far."""
    by_run: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_run[line.run].append(line)
    cost = Cost()
    for run, own in by_run.items():
        if run != NOBODY:
            _charge(run, own, fault, cost)
    return cost


@dataclass
class _Attempt:
    """The lines of one attempt, the process of the attempt before, and the steps that had begun by then."""

    lines: list[Line]
    before: int
    known: set[int]


def _attempts(own: list[Line]) -> list[_Attempt]:
    found: list[_Attempt] = []
    known: set[int] = set()
    by_token: dict[str, _Attempt] = {}
    for line in own:
        if line.what == "start":
            by_token[line.token] = _Attempt([], found[-1].lines[0].pid if found else 0, set(known))
            found.append(by_token[line.token])
        if line.token in by_token:
            by_token[line.token].lines.append(line)
        if line.what == "step":
            known.add(line.number)
    return found


def _forgotten(own: list[Line]) -> int:
    acknowledged: set[int] = set()
    count = 0
    for line in own:
        if line.what == "saved":
            acknowledged.add(line.number)
        elif line.what == "step":
            count += line.number in acknowledged
    return count


def _cause(attempt: _Attempt, faults: Sequence[Fault], costs: Sequence[Cost], other: Cost) -> Cost:
    """Return the cost of the fault that made this attempt necessary: the last one that hit its previous owner."""
    started = attempt.lines[0].at
    for fault, cost in reversed(list(zip(faults, costs, strict=True))):
        if fault.at < started and (attempt.before in fault.victims or not fault.victims):
            return cost
    return other


def _charge(run: str, own: list[Line], fault: Fault, cost: Cost) -> None:
    """Add the cost of a fault for one run, if the run was executing in a process that the fault hit."""
    before = [line for line in own if line.at <= fault.at and line.what in ("start", "left", "end")]
    if not before or before[-1].what != "start" or (fault.victims and before[-1].pid not in fault.victims):
        return
    cost.hit.add(run)
    owner, since = before[-1].token, fault.at
    for line in own:
        if line.at <= fault.at:
            continue
        if line.what == "start":
            cost.resumed[run] = line.at - since
            return
        if line.what == "left" and fault.graceful and line.token == owner:
            since = line.at  # until then the handler was working, and finished its step
        if line.what == "end":
            cost.ended.add(run)
            return
        if line.what == "saved" and not fault.victims:
            cost.saved_again[run] = line.at - fault.at
            return
