"""The run and the law of its life.

MOVES is the state machine: the Lua scripts, the diagram in the README and a test follow it.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from coordinator.errors import BadName, BadOption

T_co = TypeVar("T_co", covariant=True)


class Status(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"
    DELAYED = "delayed"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def ended(self) -> bool:
        return self in ENDED


ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.DEAD})
_HELD_BACK = (Status.QUEUED, Status.DELAYED, Status.WAITING)

# (from, to) -> the scripts that may do it. None is "no run yet".
MOVES: dict[tuple[Status | None, Status], frozenset[str]] = {
    (None, Status.QUEUED): frozenset({"enqueue", "fire"}),
    (None, Status.DELAYED): frozenset({"enqueue"}),
    (Status.DELAYED, Status.QUEUED): frozenset({"due"}),
    (Status.QUEUED, Status.RUNNING): frozenset({"claim"}),
    (Status.RUNNING, Status.COMPLETED): frozenset({"complete"}),
    (Status.RUNNING, Status.FAILED): frozenset({"fail", "release", "retry", "reject", "recover", "abandon"}),
    (Status.RUNNING, Status.QUEUED): frozenset({"release", "recover", "abandon"}),
    (Status.RUNNING, Status.DELAYED): frozenset({"retry", "release", "reject", "recover", "abandon"}),
    (Status.RUNNING, Status.DEAD): frozenset({"release", "reject", "recover", "abandon"}),
    (Status.RUNNING, Status.CANCELLED): frozenset({"release", "retry", "reject", "recover", "abandon", "due"}),
    **{(before, Status.CANCELLED): frozenset({"cancel", "due", "fire"}) for before in _HELD_BACK},
    **{(before, Status.QUEUED): frozenset({"revive"}) for before in (Status.FAILED, Status.DEAD, Status.CANCELLED)},
}


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def name(text: str, what: str) -> str:
    """The text, if it is a name."""
    if str(text) != text or not _NAME.fullmatch(text):
        raise BadName(f"{what} {text!r} is not a name: 1 to 100 characters of A-Z a-z 0-9 _ . -")
    return text


# ---- ids: time-ordered, ending in their partition ------------------------------------------------------------------

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_TWO = [a + b for a in _DIGITS for b in _DIGITS]
_RUN_ID = re.compile(r"[0-9a-hjkmnp-tv-z]{20}-(\d{2,4})")


def _base32(number: int) -> str:
    """50 bits as ten digits."""
    two = _TWO
    return f"{two[number >> 40]}{two[number >> 30 & 1023]}{two[number >> 20 & 1023]}{two[number >> 10 & 1023]}{two[number & 1023]}"


def ids_from(moment: float) -> str:
    """Ids that are made from this moment on (Unix time) sort at it or after it."""
    return _base32(max(0, int(moment * 1000)))


class RunIds:
    """Makes run ids that sort by time, and by order of making within one process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ms = 0
        self._tail = 0

    def make(self, now: float, partition: int) -> str:
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]  # a forked child must not count on from where its parent does
        with self._lock:
            ms = max(self._ms, int(now * 1000))
            if ms > self._ms:
                # the top bits are left free so that counting up cannot overflow within the millisecond
                self._ms, self._tail = ms, int.from_bytes(os.urandom(6)) & (2**47 - 1)
            else:
                self._tail += 1
            tail = self._tail
        return id_from(ms, tail, partition)


def id_from(ms: int, tail: int, partition: int) -> str:
    """The id of a run: its time, up to 50 bits that tell it from others of that time, its partition."""
    return f"{_base32(ms)}{_base32(tail)}-{partition:02d}"


def made_at(run_id: str) -> int:
    """When the id was made (Unix time in ms), by its maker's clock; 0 where it is none."""
    if not is_run_id(run_id):
        return 0
    ms = 0
    for digit in run_id[:10]:
        ms = ms * 32 + _DIGITS.index(digit)
    return ms


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


def partition_of(run_id: str, partitions: int) -> int:
    """The partition that a run's id names; NotFound is for the caller to say where it can't be one."""
    found = _RUN_ID.fullmatch(run_id)
    if found is None:
        raise BadName(f"{run_id!r} is not a run id")
    number = int(found[1])
    if number >= partitions:
        raise BadName(f"run id {run_id!r} names partition {number}, and the namespace has {partitions}")
    return number


def partition_for(text: str, partitions: int) -> int:
    """The partition of an idempotency key or of a schedule's name."""
    return zlib.crc32(text.encode()) % partitions


def route(queue: str, kind: str, schema: int) -> str:
    """The name of the line that a run waits in."""
    return f"{queue}:{kind}@{schema}"


def parse_route(text: str) -> tuple[str, str, int]:
    """Queue, kind and schema of a route."""
    queue, _, rest = text.partition(":")
    kind, _, schema = rest.rpartition("@")
    return queue, kind, int(schema)


# ---- what a producer hands over --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inputs(Generic[T_co]):
    """What a handler is to be called with; T is what it returns. Made by `handler.inputs(…)`, which leaves itself for tests."""

    kind: str
    values: Mapping[str, Any]
    handler: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is enqueued. Times in seconds; `at` in Unix time."""

    queue: str = "default"
    priority: int = 0
    at: float | None = None
    delay: float | None = None
    expires: float | None = None
    key_ttl: float | None = None
    retention: float | None = None
    schema: int = 0
    parent: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name(self.queue, "queue")
        if type(self.priority) is not int or not -100 <= self.priority <= 100:
            raise BadOption(f"priority {self.priority!r} is not a whole number within -100..100")
        if self.at is not None and self.delay is not None:
            raise BadOption("give delay or at, not both")
        for what in ("at", "delay", "expires", "key_ttl", "retention"):
            value = getattr(self, what)
            if value is not None and not (isinstance(value, (int, float)) and 0 <= value < 1e11):
                raise BadOption(f"{what} {value!r} is not a time of 0 seconds or more")
        if type(self.schema) is not int or not 0 <= self.schema <= 99:
            raise BadOption(f"schema {self.schema!r} is not a whole number within 0..99")
        if not isinstance(self.meta, Mapping):
            raise BadOption(f"meta must be a dict of names and values, not {type(self.meta).__name__}")
        for key, value in self.meta.items():
            if not isinstance(value, (str, int, float, bool, type(None))):
                raise BadOption(f"meta must be flat: {key!r} is {type(value).__name__}")


# ---- what is shown of a run ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counters:
    """What is counted over a run's life. Packed in one field, in this order (see lua/shared/run.lua)."""

    life: int = 1
    attempt: int = 0
    epoch: int = 0
    releases: int = 0
    recoveries: int = 0
    strikes: int = 0
    failures: int = 0
    backoffs: int = 0
    struck: int = 0
    failed: int = 0
    score: int = 0
    created: int = 0

    @classmethod
    def parse(cls, text: str) -> Counters:
        return cls(*map(int, text.split()))


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as text: what a handler raised, or why a run was set aside."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """What a handler says of its progress."""

    text: str
    done: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """An entry of a run's story: an attempt that ended without completing, or a revival. `why` and `error` say more where there
    is more to say; iteration, messages and phases are what was saved by then."""

    how: str
    life: int
    attempt: int
    started: datetime | None
    ended: datetime
    saved: datetime | None
    iteration: int
    messages: int
    phases: int
    worker: str
    code: str
    why: str
    error: Failure | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it was when it was asked for."""

    id: str
    kind: str
    queue: str
    status: Status
    inputs: Mapping[str, Any]
    meta: Mapping[str, Any]
    cancelling: bool
    why: str
    counters: Counters
    schema: int
    iteration: int
    phases: tuple[str, ...]
    note: Note | None
    error: Failure | None
    owner: str | None
    cause: str | None
    created: datetime
    due: datetime | None
    started: datetime | None
    ended: datetime | None
    checkpointed: datetime | None
    parent: str | None
    key: str | None
    messages: int = 0
    ended_by: str | None = None
    code: str | None = None
    story: tuple[Told, ...] = ()
    killed: Failure | None = None  # by its critic: while its handler still goes on, or before an operator revived it
    used: float = 0.0  # seconds of its own time, in the attempts that are over
    extensions: int = 0
    extended: float = 0.0
    unreadable: str = ""  # what of it is damaged, in words; the rest is as it is kept

    @property
    def attempt(self) -> int:
        return self.counters.attempt
