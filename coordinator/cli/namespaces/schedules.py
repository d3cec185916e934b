"""The command `coordinator schedule`: set, list, pause, unpause and remove schedules."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.exits import DONE, PROBLEM
from coordinator.cli.framework.groups import new_subapp
from coordinator.cli.framework.inputs import InputPairs, InputsOption, PriorityOption, parse_inputs
from coordinator.cli.framework.options import command
from coordinator.clock import SystemClock
from coordinator.errors import BadOption
from coordinator.model.policies.schedule import CatchUp, Overlap, ScheduleView, zone
from coordinator.views.formatting import clean, format_duration
from coordinator.views.table import new_table

app = new_subapp("Enqueue runs at fixed times or intervals.")
_clock = SystemClock()

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]


@command(app, name="set")
def set_schedule(
    context: CommandContext,
    name: Name,
    when: Annotated[
        str, typer.Argument(metavar="CRON", help="A cron expression with 5 fields ('0 2 * * *'), or 'every 30s'.")
    ],
    kind: Annotated[str, typer.Argument(help="Kind of the runs: the name of their handler.")],
    pairs: InputPairs = None,
    inputs: InputsOption = None,
    tz: Annotated[str, typer.Option(help="Time zone of the cron expression.")] = "UTC",
    jitter: Annotated[
        float, typer.Option(metavar="S", help="Delay each run by a random time of up to S seconds.")
    ] = 0.0,
    overlap: Annotated[
        Overlap,
        typer.Option(
            help="If the previous run has not ended at a fire time: skip the fire time, allow both runs, or cancel the "
            "previous run."
        ),
    ] = Overlap.SKIP,
    catch_up: Annotated[
        CatchUp, typer.Option(help="Which fire times to catch up on if no coordinator was running.")
    ] = CatchUp.LATEST,
    queue: Annotated[str, typer.Option(help="Queue of the runs.")] = "default",
    priority: PriorityOption = 0,
) -> None:
    """Create a schedule, or replace the schedule with this name."""
    values = parse_inputs(pairs or [], inputs)
    with context.connect() as client:
        client.schedule(
            name, when, kind, values, tz=tz, jitter=jitter, overlap=overlap, catch_up=catch_up, queue=queue, priority=priority,
        )  # fmt: skip
    context.answer({"name": name, "set": True}, Text(f"schedule {name} is set: {when}, {kind}"))


@command(app, name="list")
def list_schedules(context: CommandContext) -> int:
    """List the schedules, with their next fire time and any problem.

    The command exits with 1 if a schedule has a problem that keeps it from firing.
    """
    with context.connect() as client:
        found = client.schedules()
    context.answer({"schedules": found}, _table(found) if found else Text("no schedules"))
    return PROBLEM if any(view.trouble and not _is_new(view) for view in found) else DONE


@command(app)
def pause(context: CommandContext, name: Name) -> None:
    """Pause a schedule: it does not fire until it is unpaused."""
    with context.connect() as client:
        client.pause_schedule(name)
    context.answer({"name": name, "paused": True}, Text(f"schedule {name} is paused"))


@command(app)
def unpause(context: CommandContext, name: Name) -> None:
    """Let a paused schedule fire again, from its next fire time on."""
    with context.connect() as client:
        client.unpause_schedule(name)
    context.answer({"name": name, "paused": False}, Text(f"schedule {name} is not paused any more"))


@command(app)
def remove(context: CommandContext, name: Name) -> None:
    """Remove a schedule. Runs that it has already enqueued continue."""
    with context.connect() as client:
        client.unschedule(name)
    context.answer({"name": name, "removed": True}, Text(f"schedule {name} is removed"))


def _is_new(view: ScheduleView) -> bool:
    """Return True if no coordinator has seen the schedule yet, which is not a problem."""
    return view.next is None and view.fired == 0 and "yet" in view.trouble


def _table(views: Iterable[ScheduleView]) -> Table:
    now = _clock.now()
    columns = ("schedule", "when", "kind", "next", "last run", "fired", "skipped", "state")
    table = new_table(*columns, right=("fired", "skipped"))
    for view in views:
        when = view.when if view.tz in ("UTC", "?") else f"{view.when} {view.tz}"
        table.add_row(
            Text(view.name), Text(clean(when)), Text(clean(view.kind)), _format_next(view, now), view.last or "",
            f"{view.fired:,}", f"{view.skipped:,}", _state(view),
        )  # fmt: skip
    return table


def _format_next(view: ScheduleView, now: float) -> str:
    if view.next is None:
        return ""
    ahead = view.next.timestamp() - now
    distance = f"in {format_duration(ahead)}" if ahead >= 0 else f"late by {format_duration(-ahead)}"
    return f"{_format_local(view.next, view.tz)} ({distance})"


def _format_local(moment: datetime, tz: str) -> str:
    try:
        return moment.astimezone(zone(tz)).strftime("%Y-%m-%d %H:%M:%S ") + tz
    except BadOption:  # this machine does not know the time zone
        return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _state(view: ScheduleView) -> Text:
    if view.trouble:
        return Text(clean(view.trouble), "dim" if _is_new(view) else "red")
    return Text("paused", "yellow") if view.paused else Text("on", "green")
