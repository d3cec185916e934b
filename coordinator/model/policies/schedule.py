"""The rules of a schedule and its fire times, without I/O. A moment is a Unix time in whole milliseconds.

cronsim parses cron expressions and handles changes of daylight saving time as Debian's cron does. It works with zoneinfo, has no
dependencies, and is maintained by a service that depends on it (Healthchecks). Only coordinators compute fire times.
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
from coordinator.model.run_id import id_from

# A fire time that passed more than this time ago counts as missed. It is long enough to replace a coordinator or restart a server.
LATE_MS = 60_000
MOST_MISSED = 100  # the most missed fire times for which runs are still created: the newest ones
FIRE_TIMES_PER_STEP = 100  # fire times of one schedule that one call handles
SHORTEST, LONGEST = 1.0, 366 * 86_400.0
_EVERY = re.compile(r"every\s+(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", re.I)
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class Overlap(StrEnum):
    """The action at a fire time if the run of the previous fire time has not ended.

    SKIP creates no run, ALLOW creates a second run, and CANCEL cancels the earlier run and creates a new one.
    """

    SKIP = "skip"
    ALLOW = "allow"
    CANCEL = "cancel"


class CatchUp(StrEnum):
    """The missed fire times for which runs are still created: the LATEST one, ALL (the latest 100), or NONE.

    A fire time is missed if it passed while no coordinator was running.
    """

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a schedule: when it fires, and what happens if a fire time is missed or a run overlaps.

    Attributes:
        cron: A cron expression of five fields; empty for an interval.
        every: An interval in seconds, counted from 1970, so that all coordinators compute the same fire times.
        tz: The time zone of the cron expression.
        jitter: The largest number of seconds by which a fire time is delayed.
        overlap: What happens if the previous run has not ended.
        catch_up: The missed fire times for which runs are still created.
    """

    cron: str = ""
    every: float = 0.0
    tz: str = "UTC"
    jitter: float = 0.0
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    _zone: tzinfo = field(default=UTC, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if bool(self.cron) == bool(self.every):
            raise BadOption("a schedule needs either a cron expression or an interval")
        if self.every and not SHORTEST <= self.every <= LONGEST:
            raise BadOption(
                f"the interval {self.every:g} s is not between {SHORTEST:g} s and {LONGEST / 86_400:g} days"
            )
        if self.every and self.tz != "UTC":
            raise BadOption("an interval has no time zone: omit tz, or use a cron expression")
        most = min(self.every or 3600.0, 3600.0)
        if not 0 <= self.jitter <= most:
            raise BadOption(
                f"jitter {self.jitter:g} is not between 0 and {most:g} s (at most an hour, and at most the interval)"
            )
        object.__setattr__(self, "_zone", zone(self.tz))
        self.after(0)  # refuse a cron expression that is not valid or never fires

    def __str__(self) -> str:
        return self.cron or f"every {self.every:g} s"

    def after(self, moment: int) -> int:
        """Return the first fire time after a moment.

        Raises:
            BadOption: The cron expression is not valid or never fires.
        """
        return next(self.times(moment))

    def times(self, moment: int) -> Iterator[int]:
        """Yield the fire times after a moment, without end.

        Raises:
            BadOption: The cron expression is not valid or never fires.
        """
        if self.every:
            step = round(self.every * 1000)
            moment -= moment % step
            while True:
                moment += step
                yield moment
        last = moment
        for time in _cron(self.cron, datetime.fromtimestamp(moment / 1000, self._zone)):
            found = round(time.timestamp()) * 1000
            if found > last:  # in the hour that occurs twice, cronsim may start with the first of the two
                yield found
                last = found
        raise BadOption(f"the cron expression {self.cron!r} never fires")

    def newest(self, first: int, until: int, most: int) -> list[int]:
        """Return the newest fire times from `first` on and before `until`, at most `most`.

        Fire times can only be computed forwards. So the method starts a little before `until`, and repeats with an earlier start
        until it has enough of them.
        """
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
        """Return the moment at which a coordinator fires: the fire time plus a part of the jitter.

        The part is computed from the schedule's name and the fire time, so that all coordinators compute the same moment.
        """
        if not self.jitter:
            return time
        part = int.from_bytes(_hash(f"{name} {time}", 4)) / 2**32
        return time + int(self.jitter * 1000 * part)

    def offset(self, moment: int) -> int:
        """Return how far the time zone is ahead of UTC at a moment, in seconds."""
        ahead = datetime.fromtimestamp(moment / 1000, self._zone).utcoffset() if self.cron else None
        return 0 if ahead is None else round(ahead.total_seconds())

    def resume_after(self, moment: int, offset: int) -> int:
        """Return the moment after which the next fire time is searched.

        The moment is the last fire time, or later if the coordinator that computed the last fire time used another offset. Two
        coordinators may have different versions of a time zone. Without this correction, a coordinator with another offset would
        fire at the same wall-clock time again, an hour later.

        Args:
            moment: The last fire time, in ms.
            offset: How far the time zone was ahead of UTC when the last fire time was computed, in seconds.
        """
        if offset == self.offset(moment):
            return moment
        wall = datetime.fromtimestamp(moment / 1000 + offset, UTC).replace(tzinfo=self._zone, fold=1)
        return max(moment, round(wall.timestamp()) * 1000)

    def packed(self) -> bytes:
        """Return the rules in their stored form."""
        return encode([self.cron, self.every, self.tz, self.jitter, str(self.overlap), str(self.catch_up)], "rules")


@lru_cache(10_000)
def rules_from(packed: bytes) -> Rules:
    """Return the rules from their stored form.

    Raises:
        BadOption: If the rules are not valid on this machine, for example because it does not know the time zone.
        Unreadable: If the stored rules can't be read.
    """
    try:
        cron, every, tz, jitter, overlap, catch_up = decode(packed, "rules")
        if not isinstance(cron, str) or not isinstance(tz, str):
            raise TypeError("the cron expression and the time zone must be text")
        return Rules(cron, every, tz, jitter, Overlap(overlap), CatchUp(catch_up))
    except (TypeError, ValueError) as error:
        raise Unreadable(f"the rules can't be read: {error}") from None


def rules_for(
    when: str | float | timedelta, tz: str = "UTC", jitter: float = 0.0, overlap: str = "skip", catch_up: str = "latest"
) -> Rules:
    """Return the rules for the arguments that a user gives.

    Args:
        when: A cron expression, text such as 'every 30s', a number of seconds, or a timedelta.
        tz: The time zone of the cron expression.
        jitter: The largest number of seconds by which a fire time is delayed.
        overlap: skip, allow or cancel.
        catch_up: latest, all or none.

    Raises:
        BadOption: If the rules are not valid.
    """
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
        raise BadOption(f"{when!r:.80} is not a cron expression, 'every 30s' or a number of seconds")
    return Rules("", float(when) or -1.0, tz, float(jitter), *policies)


def zone(name: str) -> tzinfo:
    """Return a time zone by its name.

    Raises:
        BadOption: If this machine does not know the time zone.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise BadOption(
            f"unknown time zone {name!r}: use a name such as Europe/Berlin; if every name is unknown, install tzdata"
        ) from None


def _cron(expression: str, start: datetime) -> Iterator[datetime]:
    try:
        yield from CronSim(expression[:1000], start)
    except (CronSimError, AssertionError, TypeError, ValueError) as error:
        reason = str(error).lower() or "it is not valid"
        raise BadOption(f"{expression!r:.200} is not a cron expression of 5 fields ({reason})") from None
    except OverflowError:  # past the year 9999
        return


# ---- fire times that are due -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """The progress of a schedule: the fire time that it waits for.

    Attributes:
        expected: The fire time that the schedule waits for; None if none was computed yet.
        offset: The offset of the time zone at `expected`, as known to the coordinator that computed `expected`.
        after: The moment after which the first fire time is searched, if `expected` is None.
    """

    expected: int | None
    offset: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Firing:
    """One step of a schedule, from the expected fire time to the next one.

    Attributes:
        expected: The fire time that the schedule waits for.
        at: The fire time of the run to create; None for a step without a run.
        next: The fire time after `at`.
        due: When a coordinator fires `next`.
        offset: The offset of the time zone at `next`.
    """

    expected: int | None
    at: int | None
    next: int
    due: int
    offset: int


def firings(name: str, rules: Rules, state: ScheduleState, now: int) -> list[Firing]:
    """Return the steps that are due now, oldest first. A step creates a run, or only sets the next fire time.

    The list is empty if no fire time has come.

    Args:
        name: The name of the schedule.
        rules: The rules of the schedule.
        state: The progress of the schedule.
        now: The present moment.
    """
    expected = state.expected
    # A fire time that another coordinator computed counts as it is.
    first = rules.after(state.after) if expected is None else expected
    since = first if expected is None else rules.resume_after(expected, state.offset)
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
    """Return the missed fire times for which runs are still created, oldest first.

    Args:
        rules: The rules, whose `catch_up` says how many are returned.
        first: The fire time that the schedule waited for.
        since: The moment after which the other fire times are searched.
        until: The first fire time that was not missed.
        punctual: True if a run is created for a fire time that was not missed.
    """
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
    """Return the id of the run of a fire time. Every coordinator, and every repetition, computes the same id."""
    return id_from(time, int.from_bytes(_hash(name, 6)) & (2**47 - 1), partition)


def _hash(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


# ---- the view of a schedule ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule at one moment.

    Attributes:
        name: The name of the schedule.
        when: Its cron expression or interval.
        tz: The time zone of the cron expression.
        kind: The kind of its runs.
        queue: The queue of its runs.
        inputs: The inputs of its runs.
        meta: The meta of its runs.
        jitter: The largest number of seconds by which a fire time is delayed.
        overlap: skip, allow or cancel.
        catch_up: latest, all or none.
        paused: Whether it is paused.
        next: The next fire time; None if it is paused or not computed yet.
        last: The id of its last run.
        fired: Number of runs that it has created.
        skipped: Number of fire times that were skipped because the previous run had not ended.
        trouble: The reason why the schedule cannot fire, in words; empty if it can.
    """

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
