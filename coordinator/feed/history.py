"""Derive past events from the fields that the server stores for each run. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coordinator.feed.events import RunEvent
from coordinator.model.run import AttemptRecord, RunView, Status

# The cause of the attempt after an entry of a story, by how the entry's attempt ended.
_CAUSES = {"released": "release", "recovered": "recover", "retried": "retry", "revived": "revive", "rejected": "reject"}


def past_events(views: Iterable[RunView]) -> list[RunEvent]:
    """Return the past events of these runs, oldest first, as far as the stored fields of the runs show them.

    A run stores when it was created, when its last attempt started and when it ended. Its story has the attempts that did not
    complete. Other changes are not stored: for example, a wait that is over.
    """
    return sorted((event for view in views for event in _of_run(view)), key=lambda event: (event.at, event.attempt))


def _of_run(view: RunView) -> Iterator[RunEvent]:
    yield RunEvent(view.created.timestamp(), view.id, view.kind, view.queue, Status.QUEUED, 0, "")
    cause = ""
    for entry in view.story:
        if entry.started and entry.how != "revived":
            yield _event(view, entry.started.timestamp(), Status.RUNNING, entry, cause)
        cause = _CAUSES.get(entry.how, "")
        if cause:
            yield _event(view, entry.ended.timestamp(), Status.QUEUED, entry, cause)
    last = view.story[-1].attempt if view.story else 0
    if view.started and view.attempt > last:
        worker = view.owner or view.ended_by or ""
        at = view.started.timestamp()
        yield RunEvent(at, view.id, view.kind, view.queue, Status.RUNNING, view.attempt, worker, view.cause or "")
    if view.ended:
        worker = view.ended_by or (view.story[-1].worker if view.story else "")
        reason = "" if view.status is Status.COMPLETED else view.why
        at = view.ended.timestamp()
        yield RunEvent(at, view.id, view.kind, view.queue, view.status, view.attempt, worker, "", reason)


def _event(view: RunView, at: float, status: Status, entry: AttemptRecord, cause: str) -> RunEvent:
    return RunEvent(at, view.id, view.kind, view.queue, status, entry.attempt, entry.worker, cause)
