"""Derive the changes of a run from two looks at it. A look is a snapshot of a few fields of a run. This module does no I/O.

The server reports that a run has changed, not how. The feed then reads a few fields of the run, and compares them with the last
look. A run may have changed several times in between. Most of these changes can be derived: a run that is completed was queued and
running before. Attempts that began and ended between two looks are only counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.model.names import parse_route
from coordinator.model.run import ENDED, Counters, Status
from coordinator.store.replies import text

# The fields of a run that a look reads. All of them are short.
LOOK_FIELDS = ("status", "route", "counters", "token", "last", "started", "ended", "cause", "prev", "reason", "cancel")
_WAITS = (Status.QUEUED, Status.DELAYED)


@dataclass(frozen=True, slots=True)
class RunLook:
    """A look at a run: a few of its fields, as they were when the feed read them.

    Attributes:
        id: The id of the run.
        status: Its status.
        kind: Its kind.
        queue: Its queue.
        life: Its life.
        attempt: The number of its last attempt.
        worker: The worker that executes it or completed it, else its last owner; empty if no worker had it.
        created: When it was created, as a Unix time.
        started: When its last attempt started; 0.0 if none did.
        ended: When it ended; 0.0 if it has not.
        cause: Why its next or current attempt resumes it; empty for the first one.
        reason: Why it was cancelled or is dead.
        cancelling: Whether a cancel was requested.
    """

    id: str
    status: Status
    kind: str
    queue: str
    life: int
    attempt: int
    worker: str
    created: float
    started: float
    ended: float
    cause: str
    reason: str
    cancelling: bool


@dataclass(frozen=True, slots=True)
class RunEvent:
    """A change of a run's status.

    Attributes:
        at: When it happened, as a Unix time of the server. If the server stores no time for a change, this is the time at which the
            feed read the run.
        run: The id of the run.
        kind: Its kind.
        queue: Its queue.
        status: Its new status.
        attempt: The number of its last attempt.
        worker: The worker that executes the run or had it last; empty if no worker had it.
        cause: Why the run was requeued or resumed: release, recover, retry, revive, or `wake <reason>`; empty otherwise.
        reason: Why it was cancelled or is dead; empty otherwise.
        missed: The number of attempts that began and ended between two reads of the run.
    """

    at: float
    run: str
    kind: str
    queue: str
    status: Status
    attempt: int
    worker: str
    cause: str = ""
    reason: str = ""
    missed: int = 0


def read_look(id: str, values: Sequence[Any]) -> RunLook | None:
    """Return a look at a run from the values of its LOOK_FIELDS; None if the run is gone or can't be read."""
    try:
        status, route, counters, token, last, started, ended, cause, prev, reason, cancel = (
            (value or b"").decode(errors="backslashreplace") for value in values
        )
        queue, kind, _ = parse_route(route)
        counted = Counters.parse(counters)
        owner = token or (last.partition(" ")[0] if status == Status.COMPLETED else "")
        return RunLook(
            id, Status(status), kind, queue, counted.life, counted.attempt, _worker(owner) or prev.partition(" ")[0],
            counted.created / 1000, int(started or 0) / 1000, int(ended or 0) / 1000, cause, reason, bool(cancel),
        )  # fmt: skip
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _worker(token: str) -> str:
    return token.split("-", 2)[2] if token.count("-") >= 2 else ""


def derive_events(before: RunLook | None, after: RunLook, since: float, now: float) -> Iterator[RunEvent]:
    """Yield the changes of a run between two looks, oldest first.

    Args:
        before: The previous look; None if the feed has not seen the run yet.
        after: The new look.
        since: When the feed began. Of a run that the feed has not seen yet, only later changes are known to be new.
        now: The server's time of the new look.
    """
    fresh = before is None and after.created >= since
    if fresh and after.status not in _WAITS:
        yield _event(after, after.created, Status.QUEUED, attempt=0, worker="", cause="")
    if _has_new_attempt(before, after, since):
        missed = after.attempt - 1 - (before.attempt if before else after.attempt - 1)
        if before and before.status is Status.RUNNING:
            yield _event(after, after.started, Status.QUEUED, attempt=after.attempt - 1, worker=before.worker)
        yield _event(after, after.started, Status.RUNNING, missed=max(0, missed))
    if after.status is Status.RUNNING:
        return
    if before is None:
        at = after.ended if after.status in ENDED else after.created if fresh and not after.attempt else now
        if at >= since:
            yield _event(after, at, after.status)
    elif (before.status, before.life, before.attempt) != (after.status, after.life, after.attempt):
        yield _event(after, after.ended or now, after.status)


def _has_new_attempt(before: RunLook | None, after: RunLook, since: float) -> bool:
    if before is None:
        return bool(after.attempt) and after.started >= since
    return after.attempt > before.attempt or (after.life > before.life and after.started > before.started)


def _event(look: RunLook, at: float, status: Status, **changed: Any) -> RunEvent:
    told: dict[str, Any] = {
        "attempt": look.attempt,
        "worker": look.worker,
        "cause": "" if status in ENDED else look.cause,
    }
    told |= {"reason": look.reason if status in ENDED and status is not Status.COMPLETED else ""} | changed
    return RunEvent(at, look.id, look.kind, look.queue, status, **told)


def read_time(reply: Sequence[Any]) -> float:
    """Return the Unix time from a reply to TIME."""
    return int(text(reply[0])) + int(text(reply[1])) / 1e6
