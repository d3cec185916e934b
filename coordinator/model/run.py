"""The run: its statuses, the moves between them, its id, and what is shown of it.

MOVES is the state machine. A test checks that the heads of the Lua scripts and the diagram in the README agree with it.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from coordinator.errors import BadName, BadOption

T_co = TypeVar("T_co", covariant=True)


class Status(StrEnum):
    """The status of a run."""

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
        """Whether a run with this status has ended."""
        return self in ENDED


ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.DEAD})
_NOT_STARTED = (Status.QUEUED, Status.DELAYED, Status.WAITING)

# (from, to) -> the scripts that may change the status so. None stands for a run that does not exist yet.
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
    (Status.RUNNING, Status.CANCELLED): frozenset({"fail", "release", "retry", "reject", "recover", "abandon", "due"}),
    **{(before, Status.CANCELLED): frozenset({"cancel", "due", "fire"}) for before in _NOT_STARTED},
    **{(before, Status.QUEUED): frozenset({"revive"}) for before in (Status.FAILED, Status.DEAD, Status.CANCELLED)},
}


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def name(text: str, what: str) -> str:
    """Return the text if it is a valid name.

    Args:
        text: The name of a namespace, queue, kind or the like.
        what: What it names, for the error message.

    Raises:
        BadName: If it is not 1 to 100 characters of A-Z a-z 0-9 _ . -
    """
    if str(text) != text or not _NAME.fullmatch(text):
        raise BadName(f"{what} {text!r} is not a valid name: use 1 to 100 characters of A-Z a-z 0-9 _ . -")
    return text


# ---- ids: time-ordered, ending in their partition ------------------------------------------------------------------

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_TWO = [a + b for a in _DIGITS for b in _DIGITS]
_RUN_ID = re.compile(r"[0-9a-hjkmnp-tv-z]{20}-(\d{2,4})")


def _base32(number: int) -> str:
    """Return a number of 50 bits as ten digits."""
    two = _TWO
    return f"{two[number >> 40]}{two[number >> 30 & 1023]}{two[number >> 20 & 1023]}{two[number >> 10 & 1023]}{two[number & 1023]}"


def ids_from(moment: float) -> str:
    """Return the prefix at or after which every id sorts that is made from this moment (Unix time) on."""
    return _base32(max(0, int(moment * 1000)))


class RunIds:
    """A maker of run ids that sort by time and, within one process, in the order in which they were made."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ms = 0
        self._tail = 0

    def make(self, now: float, partition: int) -> str:
        """Return a new id.

        Args:
            now: Unix time in seconds.
            partition: The partition of the run, with which its id ends.
        """
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]  # a forked child must not make the ids of its parent
        with self._lock:
            ms = max(self._ms, int(now * 1000))
            if ms > self._ms:
                # The top bits are left free, so that counting up cannot overflow within the millisecond.
                self._ms, self._tail = ms, int.from_bytes(os.urandom(6)) & (2**47 - 1)
            else:
                self._tail += 1
            tail = self._tail
        return id_from(ms, tail, partition)


def id_from(ms: int, tail: int, partition: int) -> str:
    """Return the id of a run.

    Args:
        ms: Unix time in milliseconds.
        tail: Up to 50 bits that distinguish it from other runs of the same millisecond.
        partition: The partition of the run.
    """
    return f"{_base32(ms)}{_base32(tail)}-{partition:02d}"


def made_at(run_id: str) -> int:
    """Return when an id was made, as Unix time in ms by its maker's clock; 0 if the text is not a run id."""
    if not is_run_id(run_id):
        return 0
    ms = 0
    for digit in run_id[:10]:
        ms = ms * 32 + _DIGITS.index(digit)
    return ms


def is_run_id(text: str) -> bool:
    """Return True if the text has the form of a run id."""
    return _RUN_ID.fullmatch(text) is not None


def partition_of(run_id: str, partitions: int) -> int:
    """Return the partition that a run id names.

    Raises:
        BadName: If the text is not a run id, or names a partition that the namespace does not have.
    """
    found = _RUN_ID.fullmatch(run_id)
    if found is None:
        raise BadName(f"{run_id!r} is not a run id")
    number = int(found[1])
    if number >= partitions:
        raise BadName(f"run id {run_id!r} names partition {number}, and the namespace has {partitions}")
    return number


def partition_for(text: str, partitions: int) -> int:
    """Return the partition of an idempotency key or of a schedule's name."""
    return zlib.crc32(text.encode()) % partitions


def route(queue: str, kind: str, schema: int) -> str:
    """Return the route of a run. Each route has a ready queue, and workers claim runs from the routes of their handlers."""
    return f"{queue}:{kind}@{schema}"


def parse_route(text: str) -> tuple[str, str, int]:
    """Return the queue, kind and schema of a route."""
    queue, _, rest = text.partition(":")
    kind, _, schema = rest.rpartition("@")
    return queue, kind, int(schema)


# ---- what a producer enqueues ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inputs(Generic[T_co]):
    """The inputs of a run. `handler.inputs(…)` makes them; the type parameter is what the handler returns.

    Attributes:
        kind: The kind of the handler.
        values: The handler's arguments by name.
        handler: The handler that made them, for tests.
    """

    kind: str
    values: Mapping[str, Any]
    handler: object = field(default=None, repr=False, compare=False)


class HandlerOf(Protocol[T_co]):
    """A handler, as a client sees it: it makes the inputs of its runs, and reads their results."""

    kind: str

    @property
    def read_result(self) -> Callable[[Any], Any] | None:
        """The function that makes the annotated object of a stored result; None if the result is plain data."""

    def inputs(self, *args: Any, **kwargs: Any) -> Inputs[T_co]:
        """Return the inputs of a run."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an enqueue. Times are in seconds; `at` is a Unix time.

    Attributes:
        queue: The queue of the run.
        priority: From -100 to 100. A higher priority is claimed first.
        at: When the run may be claimed.
        delay: Seconds until the run may be claimed; not together with `at`.
        expires: Seconds after which the run is cancelled if no worker has claimed it.
        key: The idempotency key, 1 to 512 characters.
        key_ttl: Seconds that the key is kept after the end of the run.
        retention: Seconds that the run is kept after its end.
        schema: The schema of the handler, 0 to 99.
        parent: The id of the run that enqueues this one.
        meta: A flat dict that is stored with the run.
    """

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
            raise BadOption("delay and at exclude each other: give one of them, not both")
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
    """The counters of a run. The server stores them in this order in one field.

    Attributes:
        life: Grows with each revive.
        attempt: Number of attempts, over all lives.
        epoch: Grows with each new owner and each loss of an owner; it is part of the owner's token.
        releases: Times that a stopping worker released the run.
        recoveries: Times that the run lost its worker, in this life.
        strikes: Losses without progress since the last progress.
        failures: Failed attempts in a row without progress.
        backoffs: Delays in a row, from which the next delay follows.
        struck: The progress counter at the last strike.
        failed: The progress counter at the last failure.
        score: Its place in the ready queue: time in ms - priority * 2^43.
        created: When it was created, in Unix ms.
    """

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
        """Read the stored counters."""
        return cls(*map(int, text.split()))


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as text: what a handler raised, or why a run is dead."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A handler's note about its progress."""

    text: str
    done: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An entry of a run's story: an attempt that ended without completing, or a revival.

    Attributes:
        how: How it ended: released, stopped, retried, rejected, failed, recovered, forced; or revived.
        life: The life of the run.
        attempt: The number of the attempt.
        started: When the attempt started.
        ended: When it ended.
        saved: When the last checkpoint before its end was saved; None if there was none.
        iteration: The handler's iteration in that checkpoint.
        messages: The number of messages in it.
        phases: The number of finished phases in it.
        worker: The worker that had the run.
        code: The version of that worker's code.
        why: More about the end, in words; may be empty.
        error: What the handler raised, if it raised.
    """

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
    """A run at one moment.

    Attributes:
        id: The id of the run.
        kind: The kind of its handler.
        queue: Its queue.
        status: Its status.
        inputs: Its inputs.
        meta: Its meta.
        cancelling: Whether a cancel was requested and its handler has not ended yet.
        why: In one sentence, why it has this status or still waits.
        counters: Its counters.
        schema: The schema of the handler that can continue it.
        iteration: The handler's iteration at the last checkpoint.
        phases: The finished phases.
        note: The handler's last note.
        error: The last error.
        owner: The worker that has it; None if it is not running.
        cause: Why its next or current attempt resumes it: release, recover, retry or revive; None for its first.
        created: When it was created.
        due: When it becomes due; None if it is not delayed.
        started: When its last attempt started.
        ended: When it ended.
        checkpointed: When its last checkpoint was saved.
        parent: The run that enqueued it.
        key: Its idempotency key.
        messages: The number of messages in its checkpoint.
        ended_by: The worker that completed it.
        code: The version of the code of that worker, or of its owner.
        story: Its attempts that did not complete, oldest first.
        killed: The error with which its deadline killed it, in this life or the one before.
        used: Seconds of its own time that its finished attempts used.
        extensions: Number of extensions of its soft deadline.
        extended: Seconds of all extensions.
        unreadable: What of it is damaged, in words; empty if nothing is.
    """

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
    story: tuple[AttemptRecord, ...] = ()
    killed: Failure | None = None
    used: float = 0.0
    extensions: int = 0
    extended: float = 0.0
    unreadable: str = ""

    @property
    def attempt(self) -> int:
        """The number of its last attempt."""
        return self.counters.attempt
