"""Explain in one sentence why a run has its status. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from coordinator.model.policies.budget import TOPIC
from coordinator.model.policies.deadline import DeadlineExceeded
from coordinator.model.run import Failure, HeldRun, OpenChild, RunView, Status, Waiting
from coordinator.views.ending import cancel_reason, death_reason
from coordinator.views.formatting import format_duration


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The position of a queued run in its ready queue, and the workers that could take it.

    Attributes:
        queue: The queue of the run.
        kind: The kind of the run.
        schema: The schema of the run.
        before: Number of runs ahead of the run in the ready queue; negative for a suspect.
        able: Number of live workers that listen to the run's route.
        paused: "queue" or "kind" if one of them is paused; otherwise empty.
        saved: True if the run has a checkpoint.
        known: Number of live workers that handle the kind, at any schema.
        group: The group of the run, if it has one.
        held: The position of the run in the line of its group, if it waits there.
    """

    queue: str
    kind: str
    schema: int
    before: int
    able: int
    paused: str
    saved: bool
    known: int = 0
    group: str | None = None
    held: HeldRun | None = None


def explain_status(
    view: RunView,
    position: QueuePosition,
    reason: str,
    *,
    killing: bool = False,
    failed_loads: int | None = None,
    limited: str = "",
) -> str:
    """Return a sentence that says why the run has its status.

    Args:
        view: The run.
        position: The position of the run in its ready queue, if it is queued.
        reason: The reason that a script stored with the run's ending.
        killing: True if the run was killed at a deadline, but its handler has not ended yet.
        failed_loads: How many loads of the checkpoint have failed, while the worker is loading it; None otherwise.
        limited: The limit that a call of the handler waits for, and the time in ms at which the wait began, as `name:since`; empty
            for none.
    """
    match view.status:
        case Status.QUEUED:
            return _explain_queued(position)
        case Status.DELAYED:
            return _explain_delayed(view)
        case Status.RUNNING:
            return _explain_running(view, killing=killing, failed_loads=failed_loads, limited=limited)
        case Status.WAITING:
            return _explain_waiting(view)
        case Status.COMPLETED:
            return "the handler returned"
        case Status.FAILED:
            return _describe_failure(view.error) or reason
        case Status.DEAD:
            return death_reason(reason, view.error)
        case Status.CANCELLED:
            return cancel_reason(reason)


def _explain_queued(position: QueuePosition) -> str:
    if position.paused:
        return (
            f"queue {position.queue!r} is paused" if position.paused == "queue" else f"kind {position.kind!r} is paused"
        )
    where = f"kind {position.kind!r} in queue {position.queue!r}"
    if not position.able and not position.known:
        return f"no live worker handles {where}"
    if not position.able and position.saved:
        return (
            f"no live worker can read the run's checkpoint: it has schema {position.schema}, "
            f"and the live workers handle other schemas of {where}"
        )
    if not position.able:
        return f"no live worker handles schema {position.schema} of {where}"
    if position.held is not None:
        return _explain_held(position, position.held)
    if position.before < 0:
        return "suspect: one more strike makes it dead, so it waits for a worker process without other runs"
    if not position.before:
        return "next in its ready queue"
    return "1 run is ahead of it" if position.before == 1 else f"{position.before:,} runs are ahead of it"


def _explain_held(position: QueuePosition, held: HeldRun) -> str:
    group = f"group {position.group!r} of kind {position.kind!r}"
    lasted = f"for {format_duration(held.waited)}"
    if held.at_once is None:
        return f"{group} has no limit yet, so it admits no run: 'coordinator limit set' sets one"
    if not held.at_once:
        return f"{group} has a limit of 0, so it admits no run: 'coordinator limit set' changes it"
    if held.rate is not None and held.taken < held.at_once:
        return f"waits for a start {lasted}: {group} starts {held.rate}{_describe_start(held)}"
    ahead = "1 run is" if held.before == 1 else f"{held.before:,} runs are"
    taken = "is taken" if held.at_once == 1 else f"of {held.at_once:,} are taken"
    places = f"its only place {taken}" if held.at_once == 1 else f"{held.taken:,} {taken}"
    return f"waits for a place in {group} {lasted}: {places}" + (f", and {ahead} ahead of it" if held.before else "")


def _describe_start(held: HeldRun) -> str:
    """Return the end of the sentence about a run that waits for a start: when the next start is possible, and the runs ahead."""
    ahead = (
        ""
        if not held.before
        else f", and {'1 run is' if held.before == 1 else f'{held.before:,} runs are'} ahead of it"
    )
    if held.starts_in is None:
        return f"; the runs that may start wait for a worker{ahead}"
    return f"; the next start is possible {'now' if not held.starts_in else f'in {held.starts_in:.3g} s'}{ahead}"


def _explain_running(view: RunView, *, killing: bool, failed_loads: int | None, limited: str) -> str:
    at = f"attempt {view.attempt} on worker {view.owner}"
    if view.cancelling:
        return f"cancel requested; its handler has not ended yet ({at})"
    if killing and view.killed and view.killed.message:
        return f"{view.killed.message}; its handler has not ended yet ({at})"
    if failed_loads:
        times = "once" if failed_loads == 1 else f"{failed_loads} times"
        return f"{at}; loading its checkpoint failed {times}, and the worker tries again"
    if failed_loads is not None:
        return f"{at}; the worker is loading its checkpoint"
    name, _, since = limited.partition(":")
    if since.isdigit():
        return f"{at}{CALL_WAITS}{name!r} since {_iso(datetime.fromtimestamp(int(since) / 1000, UTC))}"
    return at


# In the reason of a running run, before the name of the limit that one of its calls waits for.
CALL_WAITS = "; a call waits for limit "

_DELAYED_AFTER = {
    "release": "a worker released it without shutting down",
    "recover": "its worker was lost",
}


def _explain_delayed(view: RunView) -> str:
    until = f"delayed until {_iso(view.due)}" if view.due else "delayed"
    after = _DELAYED_AFTER.get(view.cause or "") or _describe_failure(view.error)
    if view.cause == "wake":
        after = f"it was {describe_wake(view.woken or '')}, and had made no progress since it was last woken"
    return f"{until}, after {after}" if after else until


def _explain_waiting(view: RunView) -> str:
    wait = view.waiting
    if wait is None:
        return "what it waits for can't be read: 'coordinator doctor' shows more"
    since, until = f" since {_iso(wait.since)}", f" until {_iso(wait.until)}" if wait.until else ""
    if wait.children is not None:
        blocked = [child for child in wait.children.open if child.why.startswith(_BLOCKED)]
        return f"{describe_wait(wait)}{since}" + (f"; {describe_child(blocked[0])}" if blocked else "")
    if wait.topics == (TOPIC,):
        return f"waits for a grant{since}, because its budget is spent"
    if not wait.topics:
        return f"sleeps{until}" if until else f"waits{since}"
    return f"{describe_wait(wait)}{since}" + (f",{until}" if until else "")


def describe_wait(wait: Waiting) -> str:
    """Return a phrase that names the wait of a run, without times: `waits for signal 'approval'`, or `sleeps`."""
    if (children := wait.children) is not None:
        left = children.needed - children.ended
        of = "1 child" if children.count == 1 else f"{children.count:,} children"
        return f"waits for {left:,} of {of}" if left > 0 else f"waits, although {children.ended:,} of {of} have ended"
    if wait.topics == (TOPIC,):
        return "waits for a grant, because its budget is spent"
    topics = " or ".join(repr(topic) for topic in wait.topics)
    return f"waits for signal {topics}" if topics else "sleeps"


# The first words of the reason of a queued run that can't start without help.
_BLOCKED = ("no live worker", "queue '", "kind '")


def explain_child(status: Status, position: QueuePosition, due: datetime | None) -> str:
    """Return why a child of a waiting run has its status; empty if the child is running or waiting.

    Args:
        status: The status of the child.
        position: The position of the child in its ready queue, if it is queued.
        due: When the child is due, if it is delayed.
    """
    if status is Status.QUEUED:
        return _explain_queued(position)
    return f"delayed until {_iso(due)}" if status is Status.DELAYED and due else ""


def describe_child(child: OpenChild) -> str:
    """Return a child of a waiting run as one line: its id, its kind, its status, and why it has this status."""
    return f"child {child.run} of kind {child.kind!r} is {child.status}" + (f": {child.why}" if child.why else "")


def describe_wake(reason: str) -> str:
    """Return a phrase that says what woke a run, such as `woken by signal 'approval'`. `reason` is `RunView.woken`."""
    what, _, topic = reason.partition(" ")
    match what:
        case "signal" if topic == TOPIC:
            return "woken by a grant"
        case "signal":
            return f"woken by signal {topic!r}"
        case "time":
            return "woken because its time had come"
        case "children":
            return "woken because its children had ended"
        case "unknown":
            return "woken because what it waited for could not be read"
        case _:
            return f"woken by {reason}" if reason else "woken"


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def _describe_failure(failure: Failure | None) -> str:
    """Return the type and the message of a failure. For a kill, return only the message, which is complete."""
    if failure and failure.type == DeadlineExceeded.__name__:
        return failure.message
    return f"{failure.type}: {failure.message}" if failure else ""
