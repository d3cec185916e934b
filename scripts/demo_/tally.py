"""Counts what became of the runs, and what each blow cost. Pure: from the journal's lines and the list of blows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from scripts.demo_.journal import NOBODY, Line


@dataclass(frozen=True)
class Blow:
    """Something that was done to the system: when, in which words, and to which worker processes (none: to all of them)."""

    at: float
    what: str
    victims: frozenset[int] = frozenset()
    graceful: bool = False


@dataclass
class Cost:
    """What a blow cost: the runs that were at work there; the pauses of those that went on; what was done again."""

    hit: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)  # came to their end before they could be moved
    resumed: dict[str, float] = field(default_factory=dict)  # went on in another attempt -> after how many seconds
    saved_again: dict[str, float] = field(default_factory=dict)  # -> when the next step was acknowledged
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
        """Whether every run that was hit is known to go on."""
        return self.hit <= self.ended | set(self.resumed) | set(self.saved_again)


@dataclass(frozen=True)
class Tally:
    """All in all. Lost: a run that was acknowledged and has no right result, or a step missing."""

    runs: int
    finished: int
    lost: tuple[str, ...]
    resumed: int
    steps: int
    missing: int
    redone: int
    forgotten: int  # steps that the server had acknowledged and that were done again nevertheless
    costs: tuple[Cost, ...]
    other: Cost  # what belongs to no blow

    @property
    def good(self) -> bool:
        return not (self.lost or self.missing or self.forgotten) and self.finished == self.runs


def tally(lines: Sequence[Line], blows: Sequence[Blow], steps: int) -> Tally:
    """What became of all runs whose enqueue was acknowledged, each of so many steps."""
    by_run: dict[str, list[Line]] = {line.run: [] for line in lines if line.what == "asked"}
    for line in lines:
        if line.run in by_run:
            by_run[line.run].append(line)
    costs, other = tuple(Cost() for _ in blows), Cost()
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
            _cause(attempt, blows, costs, other).redone += again
        for blow, cost in zip(blows, costs, strict=True):
            _charge(run, own, blow, cost)
    return Tally(
        len(by_run), len(finished), tuple(lost), resumed, steps * len(by_run), missing, redone, forgotten, costs, other
    )


def effect(lines: Iterable[Line], blow: Blow) -> Cost:
    """What a blow cost up to now."""
    by_run: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_run[line.run].append(line)
    cost = Cost()
    for run, own in by_run.items():
        if run != NOBODY:
            _charge(run, own, blow, cost)
    return cost


@dataclass
class _Attempt:
    """The lines of one owner; who had the run before, and which steps had begun by then."""

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


def _cause(attempt: _Attempt, blows: Sequence[Blow], costs: Sequence[Cost], other: Cost) -> Cost:
    """Whose doing it is that this attempt was needed: the last blow that hit its previous owner."""
    started = attempt.lines[0].at
    for blow, cost in reversed(list(zip(blows, costs, strict=True))):
        if blow.at < started and (attempt.before in blow.victims or not blow.victims):
            return cost
    return other


def _charge(run: str, own: list[Line], blow: Blow, cost: Cost) -> None:
    """What the blow meant for one run, if it was at work there."""
    before = [line for line in own if line.at <= blow.at and line.what in ("start", "left", "end")]
    if not before or before[-1].what != "start" or (blow.victims and before[-1].pid not in blow.victims):
        return
    cost.hit.add(run)
    owner, since = before[-1].token, blow.at
    for line in own:
        if line.at <= blow.at:
            continue
        if line.what == "start":
            cost.resumed[run] = line.at - since
            return
        if line.what == "left" and blow.graceful and line.token == owner:
            since = line.at  # until then it was at work, and finished its step
        if line.what == "end":
            cost.ended.add(run)
            return
        if line.what == "saved" and not blow.victims:
            cost.saved_again[run] = line.at - blow.at
            return
