"""A schedule's rules and its fire times: pure decisions, no I/O. A moment is Unix time in whole ms, as the server has it.

Cron's grammar, and what it means where clocks are put forward or back, is cronsim's: it follows Debian's cron, works with zoneinfo,
has no dependency, and is kept by a service that lives on cron expressions (Healthchecks). Only coordinators compute fire times.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from coordinator.encoding.codec import decode, encode
from coordinator.errors import BadOption, Unreadable
from coordinator.model.run import id_from

LATE_MS = 60_000  # a fire time that is not older than this is not missed: coordinators are replaced, servers restart
MOST_MISSED = 100  # so many missed fire times are caught up with, the newest ones
FIRE_TIMES_PER_STEP = 100  # fire times of one schedule that are decided in one go
SHORTEST, LONGEST = 1.0, 366 * 86_400.0
_EVERY = re.compile(r"every\s+(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", re.I)
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class Overlap(StrEnum):
    """What happens at a fire time while the run of the one before has not ended."""

    SKIP = "skip"
    ALLOW = "allow"
    CANCEL = "cancel"


class CatchUp(StrEnum):
    """Which fire times are made up for that passed while no coordinator was there: the newest one, all (the newest 100), none."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    """When a schedule fires: a cron expression in a time zone, or every so many seconds, counted from 1970: everybody agrees."""

    cron: str = ""
    every: float = 0.0
    tz: str = "UTC"
    jitter: float = 0.0
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    _zone: tzinfo = field(default=UTC, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if bool(self.cron) == bool(self.every):
            raise BadOption("a schedule has a cron expression or an interval")
        if self.every and not SHORTEST <= self.every <= LONGEST:
            raise BadOption(f"every {self.every:g} s is not within {SHORTEST:g} s and {LONGEST / 86_400:g} days")
        if self.every and self.tz != "UTC":
            raise BadOption("an interval has no time zone: leave out tz, or give a cron expression")
        most = min(self.every or 3600.0, 3600.0)
        if not 0 <= self.jitter <= most:
            raise BadOption(
                f"jitter {self.jitter:g} is not within 0 and {most:g} s (an hour, and no more than the interval)"
            )
        object.__setattr__(self, "_zone", zone(self.tz))
        self.after(0)  # one that can't be read or never comes is refused here

    def __str__(self) -> str:
        return self.cron or f"every {self.every:g} s"

    def after(self, moment: int) -> int:
        """The first fire time after a moment."""
        return next(self.times(moment))

    def times(self, moment: int) -> Iterator[int]:
        """The fire times after a moment, for ever."""
        if self.every:
            step = round(self.every * 1000)
            moment -= moment % step
            while True:
                moment += step
                yield moment
        last = moment
        for time in _cron(self.cron, datetime.fromtimestamp(moment / 1000, self._zone)):
            found = round(time.timestamp()) * 1000
            if found > last:  # begun within the hour that comes twice, cronsim may begin with a time of the first one
                yield found
                last = found
        raise BadOption(f"the cron expression {self.cron!r} never comes")

    def newest(self, first: int, until: int, most: int) -> list[int]:
        """The newest fire times from `first` on and before `until`. Looks back further and further, always forwards in time."""
        back = LATE_MS
        while True:
            start = max(first, until - back)
            found: list[int] = []
            for time in self.times(start - 1):
                if time >= until:
                    break
                found.append(time)
            if len(found) >= most or start == first:
                return found[-most:]
            back *= 4

    def due(self, name: str, time: int) -> int:
        """When a fire time is acted on: a part of the jitter later that follows from name and time, the same for everybody."""
        if not self.jitter:
            return time
        part = int.from_bytes(_hash(f"{name} {time}", 4)) / 2**32
        return time + int(self.jitter * 1000 * part)

    def offset(self, moment: int) -> int:
        """How far the zone is ahead of UTC, in seconds."""
        ahead = datetime.fromtimestamp(moment / 1000, self._zone).utcoffset() if self.cron else None
        return 0 if ahead is None else round(ahead.total_seconds())

    def agreed(self, moment: int, offset: int) -> int:
        """The moment after which fire times count, when one was computed with such an offset. Who knows the zone otherwise would
        else find the same time of the day again, an hour later: what the clocks on the wall showed has been, too."""
        if offset == self.offset(moment):
            return moment
        wall = datetime.fromtimestamp(moment / 1000 + offset, UTC).replace(tzinfo=self._zone, fold=1)
        return max(moment, round(wall.timestamp()) * 1000)

    def packed(self) -> bytes:
        return encode([self.cron, self.every, self.tz, self.jitter, str(self.overlap), str(self.catch_up)], "rules")


@lru_cache(10_000)
def rules_from(packed: bytes) -> Rules:
    """Rules as a coordinator reads them; BadOption or Unreadable say what is wrong with them here."""
    try:
        cron, every, tz, jitter, overlap, catch_up = decode(packed, "rules")
        if not isinstance(cron, str) or not isinstance(tz, str):
            raise TypeError("the expression and the zone are texts")
        return Rules(cron, every, tz, jitter, Overlap(overlap), CatchUp(catch_up))
    except (TypeError, ValueError) as error:
        raise Unreadable(f"the rules can't be read: {error}") from None


def rules_for(
    when: str | float | timedelta, tz: str = "UTC", jitter: float = 0.0, overlap: str = "skip", catch_up: str = "latest"
) -> Rules:
    """Rules as a user says them: a cron expression, 'every 30s', seconds, or a timedelta."""
    try:
        policies = Overlap(overlap), CatchUp(catch_up)
    except ValueError as error:
        known = "overlap: skip, allow, cancel; catch_up: latest, all, none"
        raise BadOption(f"{error} ({known})") from None
    if isinstance(when, timedelta):
        when = when.total_seconds()
    if isinstance(when, str):
        if found := _EVERY.fullmatch(when.strip()):
            return Rules("", float(found[1]) * _UNITS[found[2].lower()], tz, float(jitter), *policies)
        return Rules(" ".join(when.split()) or "?", 0.0, tz, float(jitter), *policies)
    if isinstance(when, bool) or not isinstance(when, (int, float)):
        raise BadOption(f"{when!r:.80} is neither a cron expression, nor 'every 30s', nor seconds")
    return Rules("", float(when) or -1.0, tz, float(jitter), *policies)


def zone(name: str) -> tzinfo:
    """A time zone by its name, as this machine knows it."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise BadOption(
            f"time zone {name!r} is not known here: use a name such as Europe/Berlin; where all are missing, install tzdata"
        ) from None


def _cron(expression: str, start: datetime) -> Iterator[datetime]:
    try:
        yield from CronSim(expression[:1000], start)
    except (CronSimError, AssertionError, TypeError, ValueError) as error:
        reason = str(error).lower() or "it makes no sense"
        raise BadOption(f"{expression!r:.200} is no cron expression of 5 fields ({reason})") from None
    except OverflowError:  # past the year 9999
        return


# ---- what to fire ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a schedule is: the fire time that it waits for, with its zone's offset then, as whoever computed it knows the zone.
    None: nobody has computed it yet, and those after `after` count."""

    expected: int | None
    offset: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Firing:
    """One step of a schedule: from the fire time that is expected to the next one, with a run for `at`, or without."""

    expected: int | None
    at: int | None
    next: int
    due: int
    offset: int


def firings(name: str, rules: Rules, stored: Stored, now: int) -> list[Firing]:
    """What is to be done with a schedule now."""
    expected = stored.expected
    first = rules.after(stored.after) if expected is None else expected  # what another one computed counts, as it is
    since = first if expected is None else rules.agreed(expected, stored.offset)
    horizon = now - LATE_MS - round(rules.jitter * 1000)
    times = rules.times(max(since, horizon - 1) if first < horizon else since)
    following = next(times) if first < horizon else first
    punctual: list[int] = []
    while (due := rules.due(name, following)) <= now:
        if punctual or due >= now - LATE_MS:
            punctual.append(following)
        following = next(times)
    missed = _missed(rules, first, since, punctual[0] if punctual else following, bool(punctual))
    return _steps(name, rules, expected, [*missed, *punctual], following)


def _missed(rules: Rules, first: int, since: int, until: int, punctual: bool) -> list[int]:
    """The fire times that passed unnoticed and are made up for: the first, and those after `since`."""
    if rules.catch_up is CatchUp.NONE or first >= until or (punctual and rules.catch_up is CatchUp.LATEST):
        return []
    most = MOST_MISSED if rules.catch_up is CatchUp.ALL else 1
    return [first, *rules.newest(since + 1, until, most)][-most:]


def _steps(name: str, rules: Rules, expected: int | None, fired: list[int], following: int) -> list[Firing]:
    if not fired and following == expected:
        return []
    steps: list[Firing] = []
    ats: list[int | None] = [*fired] or [None]
    for at, then in zip(ats, [*fired[1:], following], strict=True):
        steps.append(Firing(at if steps else expected, at, then, rules.due(name, then), rules.offset(then)))
    return steps[:FIRE_TIMES_PER_STEP]


def run_id(name: str, time: int, partition: int) -> str:
    """The id of the run of a fire time: whoever fires it, and however often, it is one run."""
    return id_from(time, int.from_bytes(_hash(name, 6)) & (2**47 - 1), partition)


def _hash(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


# ---- what is shown of it ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as it was when it was asked for. `trouble` says what keeps it from firing; `skipped` counts overlaps."""

    name: str
    when: str
    tz: str
    kind: str
    queue: str
    inputs: Mapping[str, Any]
    meta: Mapping[str, Any]
    jitter: float
    overlap: str
    catch_up: str
    paused: bool
    next: datetime | None
    last: str | None
    fired: int
    skipped: int
    trouble: str
