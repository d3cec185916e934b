"""The commands that only read: status, runs, show."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.filters import MAX_LISTED, Filters, KindFilter, QueueFilter, SinceFilter, StatusFilter
from coordinator.cli.framework.inputs import parse_run_id
from coordinator.client.handles import Handle
from coordinator.clock import SystemClock
from coordinator.errors import NotFound
from coordinator.model.run import Status
from coordinator.views.formatting import format_value
from coordinator.views.json_data import to_json_data
from coordinator.views.namespace_display import status_summary
from coordinator.views.run_display import run_details, runs_table, suggest_kind

_clock = SystemClock()


def status(context: CommandContext) -> None:
    """Show run counts, queues, workers and coordinators, and what needs attention."""
    with context.connect() as client:
        overview = client.status()
    context.answer(overview, status_summary(overview, str(context.settings.address)))


def runs(
    context: CommandContext,
    status: StatusFilter = None,
    kind: KindFilter = None,
    queue: QueueFilter = None,
    since: SinceFilter = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="Maximum number of runs.")] = 100,
    stuck: Annotated[
        bool,
        typer.Option(
            "--stuck",
            help="Only runs that no live worker takes or continues, paused runs, runs of groups whose limit is 0, and runs "
            "whose handlers do not stop.",
        ),
    ] = False,
) -> None:
    """List runs, newest first.

    With --status queued, runs are listed in the order in which workers take them, with --status delayed by due time,
    with --status waiting by the end of their wait.
    """
    filters = Filters(status, kind, queue, since)
    with context.connect() as client:
        found = filters.find_stuck(client, limit) if stuck else filters.find(client, limit)
    context.answer({"runs": found}, runs_table(found, _clock.now()) if found else Text("no runs"))
    if len(found) == limit and not context.as_json:
        context.stderr.print(Text(f"only the first {limit:,} runs are listed; use --limit for more", "dim"))


def show(context: CommandContext, run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]) -> None:
    """Show one run: its status and why, its attempts, its checkpoint, its inputs, and its result or error."""
    with context.connect() as client:
        handle = client.handle(parse_run_id(run))
        view = handle.view()
        hint = suggest_kind(view.kind, client.workers()) if view.status is Status.QUEUED else ""
        result = _stored_result(handle) if view.status is Status.COMPLETED else {}
    context.answer({**to_json_data(view), "result": None, **result}, run_details(view, _clock.now(), hint))
    if result and not context.as_json:
        context.console.print(Text("result", "dim"))
        context.console.out(format_value(result["result"]))


def _stored_result(handle: Handle[Any]) -> dict[str, Any]:
    try:
        return {"result": handle.result()}
    except NotFound:  # enqueued with retention=0
        return {}
