"""Plans that change, list and fire schedules.

A change by a user is a compare-and-set: the call names the generation of the schedule that it replaces, and has a random generation
of its own. So a call that is sent twice changes nothing the second time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordinator.errors import Changed, CoordinatorError, Unconfirmed, Unreachable
from coordinator.store.keys import Keys
from coordinator.store.replies import pairs, text, word
from coordinator.store.script import Call, Request, read
from coordinator.store.scripts import FIRE, PAUSE_SCHEDULE, POSTPONE, SCHEDULE, UNSCHEDULE, UPCOMING

TRIES = 20  # how often a change is tried while other clients change the same schedule
PAGE = 500


class NewSchedule(NamedTuple):
    """A schedule to create or replace. `expires` and `retention` are times in ms, as text; empty if the runs do not have them."""

    name: str
    rules: bytes
    overlap: str
    route: str
    spec: bytes
    priority: int = 0
    expires: str = ""
    retention: str = ""


def replace(keys: Keys, birth: str, new: NewSchedule, generation: str, now: str = "") -> Generator[Request, Any, str]:
    """Create or replace a schedule.

    Args:
        keys: The keys of the schedule's partition.
        birth: The birth mark of the namespace, which the script compares.
        new: The schedule.
        generation: The new generation of the schedule, a random mark.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        `ok`; `mismatch` (the namespace has another birth mark); `ungrouped` (the kind has a limit for each group); or
        `unreadable` (a key has the wrong type).

    Raises:
        Changed: Other clients kept changing the schedule at the same time.
    """
    seen = ""
    for _ in range(TRIES):
        reply = yield SCHEDULE.call(keys.at, now=now, birth=birth, seen=seen, generation=generation, **new._asdict())
        if word(reply) != "changed":
            return word(reply)
        seen = text(reply[1])
    raise _busy(new.name)


def pause(keys: Keys, name: str, generation: str, *, paused: bool, now: str = "") -> Generator[Request, Any, str]:
    """Pause or unpause a schedule. Return `ok`, or `missing` if there is no such schedule.

    Args:
        keys: The keys of the schedule's partition.
        name: The name of the schedule.
        generation: The new generation of the schedule, a random mark.
        paused: True to pause, False to unpause.
        now: The time in ms, for namespaces with the test clock.

    Raises:
        Changed: Other clients kept changing the schedule at the same time.
    """
    seen = ""
    for _ in range(TRIES):
        reply = yield PAUSE_SCHEDULE.call(
            keys.at, now=now, name=name, seen=seen, generation=generation, paused=int(paused)
        )
        if word(reply) != "changed":
            return word(reply)
        seen = text(reply[1])
    raise _busy(name)


def remove(keys: Keys, name: str, generation: str, now: str = "") -> Generator[Request, Any, str]:
    """Remove a schedule. Return `ok`, or `missing` if there is no such schedule.

    Args:
        keys: The keys of the schedule's partition.
        name: The name of the schedule.
        generation: The new generation of the schedule, a random mark.
        now: The time in ms, for namespaces with the test clock.

    Raises:
        Changed: Other clients kept changing the schedule at the same time.
    """
    seen = ""
    for _ in range(TRIES):
        reply = yield UNSCHEDULE.call(keys.at, now=now, name=name, seen=seen, generation=generation)
        if word(reply) != "changed":
            return word(reply)
        seen = text(reply[1])
    raise _busy(name)


def _busy(name: str) -> Changed:
    return Changed(f"schedule {name} was not changed: other clients keep changing it; call again")


def list_schedules(keys: Keys) -> Generator[Request | list[Request], Any, list[tuple[str, dict[str, Any] | None]]]:
    """Return the name and the fields of each schedule of the partition; None instead of the fields if they can't be read."""
    found: list[tuple[str, dict[str, Any] | None]] = []
    start = 0
    while True:
        names = [text(name) for name in (yield read(keys.at, "ZRANGE", keys.schedules(), start, start + PAGE - 1))]
        replies = yield [read(keys.at, "HGETALL", keys.schedule(name)) for name in names]
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, (Unreachable, Unconfirmed)):
                raise reply
            found.append((name, None if isinstance(reply, Exception) else _fields(reply)))
        if len(names) < PAGE:
            return [(name, fields) for name, fields in found if fields is None or fields.get("state") != b"removed"]
        start += PAGE


def _fields(reply: Any) -> dict[str, Any]:
    return {text(field): value for field, value in reply.items()} if isinstance(reply, dict) else pairs(reply)


# ---- coordinators ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule that a coordinator has to handle.

    Attributes:
        name: The name of the schedule.
        generation: The generation of the schedule. A script changes the schedule only if this is still its generation.
        after: The previous fire time, in ms.
        next: The next fire time, in ms; None if it was not computed yet.
        offset: The offset of the time zone at `next`, in seconds, as known to the coordinator that computed `next`.
        rules: The packed rules.
    """

    name: str
    generation: str
    after: int
    next: int | None
    offset: int
    rules: bytes

    @property
    def expected(self) -> str:
        """The next fire time in ms as text, which the scripts compare with the stored one; empty if none was computed."""
        return "" if self.next is None else str(self.next)


@dataclass(frozen=True, slots=True)
class Upcoming:
    """The schedules that a coordinator has to handle now.

    Attributes:
        entries: The schedules.
        next_ms: Milliseconds until the next schedule is due; None if there is none.
        now: The server's time, in ms.
    """

    entries: tuple[DueSchedule, ...]
    next_ms: int | None
    now: int


def upcoming(keys: Keys, *, batch: int, now: str = "") -> Generator[Request, Any, Upcoming]:
    """Return up to `batch` schedules that are due, or whose next fire time must be computed."""
    reply = yield UPCOMING.call(keys.at, now=now, batch=batch)
    _, rows, first, clock = reply
    entries = tuple(_entry(*row) for row in rows)
    return Upcoming(entries, int(text(first)) - int(clock) if text(first) else None, int(clock))


def _entry(name: bytes, generation: bytes, after: bytes, next: bytes, offset: bytes, rules: bytes) -> DueSchedule:
    return DueSchedule(text(name), text(generation), int(after or 0), int(next) if next else None, int(offset), rules)


class Fire(NamedTuple):
    """One step of a schedule, with the fields in the order of the arguments of fire.lua. Times are in ms, as text.

    If `at` and `id` are empty, the step enqueues no run and only sets the next fire time. `Firing` in model/policies/schedule.py
    describes the times.
    """

    name: str
    generation: str
    expected: str
    at: str
    next: str
    due: str
    offset: str
    id: str


def fire(
    keys: Keys, steps: Iterable[Fire], *, grace: float, now: str = ""
) -> Generator[Request, Any, Sequence[tuple[str, str]]]:
    """Carry out steps of schedules: enqueue their runs, and set their next fire times.

    Args:
        keys: The keys of the partition.
        steps: The steps.
        grace: Seconds that the handler of a previous run has to stop, if the schedule cancels it.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        For each step, the answer word of fire.lua (fired, skipped, moved, early, changed, bad, unreadable) and an id: the id of the
        created run, or of the earlier run that has not ended, so that the step was skipped; otherwise empty.
    """
    replies = yield Call(FIRE, keys.at, (now, round(grace * 1000)), tuple(steps))
    return [(text(reply[0]), text(reply[1])) for reply in replies]


def postpone(keys: Keys, entry: DueSchedule, why: str, wait: float, now: str = "") -> Generator[Request, Any, str]:
    """Store why a schedule does not fire. A coordinator tries again after `wait` seconds.

    Returns:
        `ok`, or `changed` if the schedule was changed, fired or removed meanwhile.
    """
    reply = yield POSTPONE.call(
        keys.at, now=now, name=entry.name, generation=entry.generation, expected=entry.expected, why=why,
        wait=round(wait * 1000),
    )  # fmt: skip
    return word(reply)


def shorten_error(error: CoordinatorError) -> str:
    """Return the message of the error that keeps a schedule from firing, short enough to be stored with the schedule."""
    return " ".join(str(error).split())[:500]
