"""The filters with which `runs`, `cancel`, `revive` and `discard` select runs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from coordinator.cli.framework.inputs import parse_age
from coordinator.client.client import Client
from coordinator.client.reading.scan import Walk
from coordinator.clock import SystemClock
from coordinator.errors import NotFound
from coordinator.model.names import name as check_name
from coordinator.model.run import RunView, Status
from coordinator.model.run_id import ids_from
from coordinator.views.namespace_view import Overview
from coordinator.views.stuck_runs import find_blocked_routes, find_closed_kinds, find_stuck_runs

MAX_LISTED = 10_000
_clock = SystemClock()

KindFilter = Annotated[str | None, typer.Option("--kind", help="Only runs of this kind.")]
QueueFilter = Annotated[str | None, typer.Option("--queue", help="Only runs of this queue.")]
StatusFilter = Annotated[Status | None, typer.Option("--status", help="Only runs with this status.")]
SinceFilter = Annotated[
    str | None, typer.Option("--since", metavar="AGE", help="Only runs enqueued within this time: 30s, 10m, 2h, 1d.")
]


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters that select the runs of a command. None matches every value."""

    status: Status | None = None
    kind: str | None = None
    queue: str | None = None
    since: str | None = None

    @property
    def given(self) -> bool:
        """Return True if the user gave any filter."""
        return any((self.status, self.kind, self.queue, self.since))

    def find(self, client: Client, limit: int, status: Status | None = None) -> list[RunView]:
        """Return the runs that match, at most `limit`. `--since` is applied here, because the server has no index by age."""
        status = status or self.status
        if self.since is None:
            return client.list(status=status, kind=self.kind, queue=self.queue, limit=limit)
        seconds, now = parse_age(self.since), _clock.now()
        views = client.list(status=status, kind=self.kind, queue=self.queue, limit=MAX_LISTED)
        return [view for view in views if view.created.timestamp() >= now - seconds][:limit]

    def walk(self, status: Status) -> Walk:
        """Return a `Walk`, which finds the ids of all matching runs with this status, without a limit."""
        since = "" if self.since is None else ids_from(_clock.now() - parse_age(self.since))
        return Walk(
            status, self.kind and check_name(self.kind, "kind"), self.queue and check_name(self.queue, "queue"), since
        )

    def find_stuck(self, client: Client, limit: int) -> list[RunView]:
        """Return the matching runs that are stuck, at most `limit`. Skip ready queues from which a live worker takes runs."""
        overview = client.status()
        views: list[RunView] = []
        for queue, kind in find_blocked_routes(overview):
            if self.status in (None, Status.QUEUED) and self.queue in (None, queue) and self.kind in (None, kind):
                views += replace(self, queue=queue, kind=kind).find(client, limit, Status.QUEUED)
        for kind in find_closed_kinds(overview):
            if self.status in (None, Status.QUEUED) and self.kind in (None, kind):
                known = {view.id for view in views}
                found = replace(self, kind=kind).find(client, MAX_LISTED, Status.QUEUED)
                views += [view for view in found if view.id not in known]
        for status in (Status.DELAYED, Status.WAITING, Status.RUNNING):
            if self.status in (None, status):
                views += self.find(client, MAX_LISTED, status)
        views += self._left_behind(client, overview, {view.id for view in views})
        return find_stuck_runs(views, overview, _clock.now())[:limit]

    def _left_behind(self, client: Client, overview: Overview, known: set[str]) -> list[RunView]:
        """Return the matching runs whose handler is still executing although its worker no longer owns the run.

        Args:
            client: The client that reads the runs.
            overview: The namespace. Its workers list such runs.
            known: Ids of runs to leave out.
        """
        found = []
        for run in sorted({run for worker in overview.workers for run in worker.stuck} - known):
            with contextlib.suppress(NotFound):  # its retention is over
                found.append(client.handle(run).view())
        oldest = 0.0 if self.since is None else _clock.now() - parse_age(self.since)
        return [
            view
            for view in found
            if self.status in (None, view.status)
            and self.kind in (None, view.kind)
            and self.queue in (None, view.queue)
            and view.created.timestamp() >= oldest
        ]
