"""The run: its statuses, the moves between them, its counters, and the view of a run that callers get.

MOVES is the state machine. A test checks that the heads of the Lua scripts and the diagram in the README agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from coordinator.model.policies.budget import Budget, Spending


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
        """Return True if a run with this status has ended."""
        return self in ENDED


ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.DEAD})
_NOT_STARTED = (Status.QUEUED, Status.DELAYED, Status.WAITING)

# (from, to) -> the scripts that may make this move. None stands for a run that does not exist yet.
MOVES: dict[tuple[Status | None, Status], frozenset[str]] = {
    (None, Status.QUEUED): frozenset({"enqueue", "fire"}),
    (None, Status.DELAYED): frozenset({"enqueue"}),
    (Status.DELAYED, Status.QUEUED): frozenset({"due"}),
    (Status.WAITING, Status.QUEUED): frozenset({"due", "send"}),
    (Status.QUEUED, Status.RUNNING): frozenset({"claim"}),
    (Status.RUNNING, Status.COMPLETED): frozenset({"complete"}),
    (Status.RUNNING, Status.WAITING): frozenset({"suspend"}),
    (Status.RUNNING, Status.FAILED): frozenset({"fail", "release", "retry", "reject", "suspend", "recover", "abandon"}),
    (Status.RUNNING, Status.QUEUED): frozenset({"release", "suspend", "recover", "abandon"}),
    (Status.RUNNING, Status.DELAYED): frozenset({"retry", "release", "reject", "suspend", "recover", "abandon"}),
    (Status.RUNNING, Status.DEAD): frozenset({"release", "reject", "recover", "abandon"}),
    (Status.RUNNING, Status.CANCELLED): frozenset(
        {"fail", "release", "retry", "reject", "suspend", "recover", "abandon", "due"}
    ),
    **{(before, Status.CANCELLED): frozenset({"cancel", "due", "fire"}) for before in _NOT_STARTED},
    **{(before, Status.QUEUED): frozenset({"revive"}) for before in (Status.FAILED, Status.DEAD, Status.CANCELLED)},
}


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a run. The server stores them in this order in one field.

    Attributes:
        life: The life of the run. It grows with each revive.
        attempt: Number of attempts, over all lives.
        epoch: The epoch of the run. It grows with each new owner and each loss of an owner, and is part of the owner's token.
        releases: Times that a stopping worker released the run.
        recoveries: Times that the run lost its worker, in this life.
        strikes: Losses without progress since the last progress.
        failures: Failed attempts in a row without progress.
        backoffs: Number of delays in a row. The next delay grows with it.
        struck: The progress counter of the checkpoint at the last strike.
        failed: The progress counter of the checkpoint at the last failure.
        score: The run's score in the ready queue: time in ms - priority * 2^43.
        created: When the run was created, in Unix ms.
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
        """Return the counters from their stored text: numbers in the order of the attributes.

        Raises:
            ValueError: A part of the text is not a number.
            TypeError: There are more numbers than counters.
        """
        return cls(*map(int, text.split()))


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as text: the error that a handler raised, or the reason why a run is dead."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A handler's note about its progress.

    Attributes:
        text: The text.
        done: How much of the work is done; None if the handler did not say.
        total: How much work there is in all, in the same unit; None if the handler did not say.
    """

    text: str
    done: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class HeldRun:
    """The position of a queued run in the line of its group. The run waits there until its group has a free place.

    Attributes:
        before: The number of runs that are ahead of it in the line.
        taken: The number of places that are taken: runs of the group that are ready or running.
        at_once: The number of places of the group; None if no limit is known, so that no run is admitted.
        rate: How many runs of the group may start per unit of time, for example `10/min`; None for no limit.
        starts_in: Seconds until the rate allows the next start of the group; None without a rate, and while the runs that may start
            wait for a worker.
        waited: Seconds since the run entered the line.
    """

    before: int
    taken: int
    at_once: int | None
    rate: str | None = None
    starts_in: float | None = None
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenChild:
    """A child that has not ended, of a run that waits for its children.

    Attributes:
        run: The id of the child.
        kind: The kind of the child.
        status: The status of the child.
        why: Why the child has this status, in words; empty for a running or waiting child.
    """

    run: str
    kind: str
    status: Status
    why: str


@dataclass(frozen=True, slots=True)
class WaitingChildren:
    """The children that a waiting run waits for.

    Attributes:
        count: The number of children of the step.
        ended: How many of them have ended.
        needed: How many of them must have ended before the run is woken.
        due: When a coordinator wakes the run, or checks again that the children still exist.
        open: Up to 5 of the children that were enqueued and have not ended.
    """

    count: int
    ended: int
    needed: int
    due: datetime | None
    open: tuple[OpenChild, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The signals, the time or the children that a waiting run waits for.

    Attributes:
        topics: The topics of the signals that wake the run; empty if the run sleeps or waits for children.
        since: When the wait began.
        until: When the wait ends without a signal; None if it has no limit.
        children: The children that the run waits for; None if it does not wait for children.
    """

    topics: tuple[str, ...]
    since: datetime
    until: datetime | None
    children: WaitingChildren | None = None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An entry of a run's story: an attempt that ended without completing, or a revival.

    Attributes:
        how: How the attempt ended: released, stopped, retried, rejected, failed, recovered or forced; or "revived".
        life: The life of the run.
        attempt: The number of the attempt.
        started: When the attempt started.
        ended: When the attempt ended.
        saved: When the last checkpoint before this end was saved; None if there was none.
        iteration: The handler's iteration in that checkpoint.
        messages: The number of messages in that checkpoint.
        phases: The number of finished phases in that checkpoint.
        worker: The worker that had the run.
        code: The version of that worker's code.
        why: The reason of the end, in words; may be empty.
        error: The error that the handler raised, if it raised one.
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
    """The view of a run at one moment.

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
        owner: The worker that executes it; None if it is not running.
        cause: Why its next or current attempt resumes it: release, recover, retry, revive or wake; None for its first attempt.
        created: When it was created.
        due: When it becomes due; None if it is not delayed.
        started: When its last attempt started.
        ended: When it ended.
        checkpointed: When its last checkpoint was saved.
        parent: The run that enqueued it.
        key: Its idempotency key.
        messages: The number of messages in its checkpoint.
        ended_by: The worker that completed it.
        code: The code version of the worker that completed the run, or of its owner.
        story: Its attempts that did not complete, oldest first.
        killed: The error of the deadline at which it was killed, in this life or in the previous one; None if it was not killed.
        used: Seconds that its earlier attempts took. They count towards its deadlines.
        extensions: Number of extensions of its soft deadline.
        extended: Seconds of all extensions.
        unreadable: The damaged parts of the run, in words; empty if no part is damaged.
        waiting: The signals, the time or the children that it waits for; None if it is not waiting, or if they can't be read.
        woken: Why it was woken, if `cause` is wake: `signal <topic>`, `children` or `time`.
        signals: By topic, the number of signals that were sent and that it has not received.
        effects: By name, the state of its effects of `run.once`: "begun" or "done". Begun effects come first.
        spent: What it has spent in all its attempts and with its joined children; None if it has spent nothing.
        budget: The budget that it was enqueued with, or else the present budget of its handler; None if it has none.
        group: Its group.
        held: Its place in the line of its group; None if it does not wait for a place.
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
    waiting: Waiting | None = None
    woken: str | None = None
    signals: Mapping[str, int] = field(default_factory=dict)
    effects: Mapping[str, str] = field(default_factory=dict)
    spent: Spending | None = None
    budget: Budget | None = None
    group: str | None = None
    held: HeldRun | None = None

    @property
    def attempt(self) -> int:
        """The number of the run's last attempt."""
        return self.counters.attempt
