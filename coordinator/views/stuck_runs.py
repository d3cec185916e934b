"""Find the runs that can't continue without help. This module does no I/O.

A run is stuck if a worker or a coordinator is missing, if the run is paused, if its group admits no run, or if its handler can't be
started. A run is not stuck while it waits for its turn, for a place in its group, for a signal or for a time, or while its handler
takes long. A run that has ended counts as stuck while its handler does not stop and occupies a slot of a worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from coordinator.model.names import parse_route, route
from coordinator.model.run import RunView, Status, WaitingChildren
from coordinator.views.formatting import format_duration
from coordinator.views.namespace_display import has_coordinator
from coordinator.views.namespace_view import Overview

OVERDUE = 5.0  # seconds after its due time from which a delayed or waiting run counts as stuck; a live coordinator acts earlier
REJECTIONS = 3  # attempts in a row that could not be started, after which a run counts as stuck


def find_blocked_routes(overview: Overview) -> list[tuple[str, str]]:
    """Return the queue and the kind of each route with queued runs from which no live worker takes runs."""
    served = _served_routes(overview)
    blocked = [parse_route(one)[:2] for one in overview.queues if one not in served or _is_paused(one, overview)]
    return sorted(set(blocked))


def find_closed_kinds(overview: Overview) -> list[str]:
    """Return the kinds of groups that admit no run, because their limit is 0 or not known."""
    return sorted({group.kind for group in overview.groups if not group.at_once})


def find_stuck_runs(views: Iterable[RunView], overview: Overview, now: float) -> list[RunView]:
    """Return those of the runs that are stuck. Their `why` is replaced: it says what is missing, or which slot is occupied.

    Args:
        views: The runs to examine.
        overview: The namespace.
        now: The present Unix time in seconds.
    """
    finder = _Finder(overview, now)
    return [replace(view, why=why, due=None, note=None) for view in views if (why := finder.explain(view))]


class _Finder:
    def __init__(self, overview: Overview, now: float) -> None:
        self._overview, self._now = overview, now
        self._served = _served_routes(overview)
        self._workers = {worker.id: worker for worker in overview.workers}
        self._occupied = {run: worker for worker in overview.workers for run in worker.stuck}
        self._no_coordinator = "" if has_coordinator(overview) else ": no coordinator is running"

    def explain(self, view: RunView) -> str:
        """Return why the run is stuck, or an empty string if it is not."""
        if (worker := self._occupied.get(view.id)) is not None:
            return (
                f"a handler of it does not stop and occupies a slot of worker process {worker.pid} on {worker.host} until that "
                "process is replaced"
            )
        if view.status is Status.QUEUED:
            own = route(view.queue, view.kind, view.schema)
            if view.held is not None and not view.held.at_once:
                return view.why
            return view.why if own not in self._served or _is_paused(own, self._overview) else ""
        if view.status is Status.DELAYED and view.due is not None:
            if (rejections := _count_rejections(view)) >= REJECTIONS:
                return _explain_rejections(view, rejections)
            late = self._now - view.due.timestamp()
            overdue = f"it was due {format_duration(late)} ago and has not been enqueued{self._no_coordinator}"
            return overdue if late > OVERDUE else ""
        if view.status is Status.WAITING:
            return self._explain_waiting(view)
        if view.status is Status.RUNNING:
            return self._explain_running(view)
        return ""

    def _explain_waiting(self, view: RunView) -> str:
        if view.waiting is None:
            return view.why
        if (children := view.waiting.children) is not None and children.ended >= children.needed:
            return self._explain_unwoken_parent(children)
        late = self._now - view.waiting.until.timestamp() if view.waiting.until else 0.0
        overdue = f"its wait ended {format_duration(late)} ago and it has not been woken{self._no_coordinator}"
        return overdue if late > OVERDUE else ""

    def _explain_unwoken_parent(self, children: WaitingChildren) -> str:
        # The script that ended the last child has made the run due.
        late = self._now - children.due.timestamp() if children.due else OVERDUE + 1
        what = f"{children.ended:,} of its {children.count:,} children have ended, but it has not been woken"
        return "" if 0 <= late <= OVERDUE else f"{what}{self._no_coordinator}"

    def _explain_running(self, view: RunView) -> str:
        worker = self._workers.get(view.owner or "")
        if worker is None:
            return f"its worker {view.owner} has no lease: 'coordinator doctor' shows more"
        if not (worker.expired or worker.condemned):
            return ""
        silence = format_duration(worker.lease_age)
        return (
            f"its worker sent its last heartbeat {silence} ago, and the run is not recovered yet{self._no_coordinator}"
        )


def _count_rejections(view: RunView) -> int:
    """Return how many of the run's last attempts in a row ended before the first line of its handler."""
    last = takewhile(lambda attempt: attempt.how == "rejected", reversed(view.story))
    return sum(attempt.life == view.counters.life for attempt in last)


def _explain_rejections(view: RunView, count: int) -> str:
    error = f": {view.error.type}: {view.error.message}" if view.error else ""
    return f"its handler could not be started in its last {count} attempts{error}"


def _served_routes(overview: Overview) -> set[str]:
    return {one for worker in overview.workers if not (worker.expired or worker.condemned) for one in worker.routes}


def _is_paused(one: str, overview: Overview) -> bool:
    queue, kind, _ = parse_route(one)
    return f"queue:{queue}" in overview.paused or f"kind:{kind}" in overview.paused
