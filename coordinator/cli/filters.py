"""Which runs a command is about: the filters that `runs` and the commands that change many have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from coordinator.cli.inputs import parse_age
from coordinator.client.client import Client
from coordinator.client.scan import Walk
from coordinator.clock import SystemClock
from coordinator.model.run import RunView, Status, ids_from
from coordinator.model.run import name as checked
from coordinator.views.stuck_runs import find_blocked_routes, find_stuck_runs

LIST_MOST = 10_000
_clock = SystemClock()

Kind = Annotated[str | None, typer.Option("--kind", help="Only of this kind.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only of this queue.")]
StatusIs = Annotated[Status | None, typer.Option("--status", help="Only with this status.")]
Since = Annotated[str | None, typer.Option("--since", metavar="AGE", help="Only enqueued within 30s, 10m, 2h, 1d.")]


@dataclass(frozen=True, slots=True)
class Filters:
    """Which runs are meant."""

    status: Status | None = None
    kind: str | None = None
    queue: str | None = None
    since: str | None = None

    @property
    def given(self) -> bool:
        return any((self.status, self.kind, self.queue, self.since))

    def find(self, client: Client, limit: int, status: Status | None = None) -> list[RunView]:
        """The runs that are meant. An age is looked at here: the server has no index for it."""
        status = status or self.status
        if self.since is None:
            return client.list(status=status, kind=self.kind, queue=self.queue, limit=limit)
        seconds, now = parse_age(self.since), _clock.now()
        views = client.list(status=status, kind=self.kind, queue=self.queue, limit=LIST_MOST)
        return [view for view in views if view.created.timestamp() >= now - seconds][:limit]

    def walk(self, status: Status) -> Walk:
        """All of them, however many."""
        since = "" if self.since is None else ids_from(_clock.now() - parse_age(self.since))
        return Walk(
            status, self.kind and checked(self.kind, "kind"), self.queue and checked(self.queue, "queue"), since
        )

    def find_stuck(self, client: Client, limit: int) -> list[RunView]:
        """Those of the runs that are meant that wait for somebody who is not there. Lines that are served are not read."""
        overview = client.status()
        views: list[RunView] = []
        for queue, kind in find_blocked_routes(overview):
            if self.status in (None, Status.QUEUED) and self.queue in (None, queue) and self.kind in (None, kind):
                views += replace(self, queue=queue, kind=kind).find(client, limit, Status.QUEUED)
        for status in (Status.DELAYED, Status.RUNNING):
            if self.status in (None, status):
                views += self.find(client, LIST_MOST, status)
        return find_stuck_runs(views, overview, _clock.now())[:limit]
