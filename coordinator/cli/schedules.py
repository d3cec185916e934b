"""The command `coordinator schedule`: set, list, pause, unpause and remove schedules."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from coordinator.cli.inputs import parse_inputs
from coordinator.cli.options import BADLY, DONE, WRONG_USE, Here, command
from coordinator.client.client import Client
from coordinator.clock import SystemClock
from coordinator.errors import BadOption
from coordinator.model.schedule import CatchUp, Overlap, ScheduleView, zone
from coordinator.views.formatting import clean, format_duration

app = typer.Typer(help="Runs at fixed times: by cron, or every so often.", rich_markup_mode="rich")
_clock = SystemClock()

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]


@app.callback(invoke_without_command=True)
def _help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(WRONG_USE)


def _client(here: Here) -> Client:
    settings = here.settings
    return Client(settings.url, settings.namespace, settings.timeout)


@command(app, name="set")
def set_schedule(
    here: Here,
    name: Name,
    when: Annotated[str, typer.Argument(metavar="CRON", help="'0 2 * * *' (5 fields), or 'every 30s'.")],
    kind: Annotated[str, typer.Argument(help="The kind of the runs: their handler's name.")],
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="[name=text | name:=json]...", show_default=False)
    ] = None,
    inputs: Annotated[str | None, typer.Option(metavar="JSON|@FILE|-", help="All inputs as a JSON object.")] = None,
    tz: Annotated[str, typer.Option(help="The time zone of the cron expression.")] = "UTC",
    jitter: Annotated[float, typer.Option(metavar="S", help="Up to so many seconds later.")] = 0.0,
    overlap: Annotated[Overlap, typer.Option(help="While the run before has not ended.")] = Overlap.SKIP,
    catch_up: Annotated[
        CatchUp, typer.Option(help="Which times count that passed without a coordinator.")
    ] = CatchUp.LATEST,
    queue: Annotated[str, typer.Option(help="The queue of the runs.")] = "default",
    priority: Annotated[int, typer.Option(help="-100 to 100; the highest is taken first.")] = 0,
) -> None:
    """Keep a schedule under a name; one that is there under it is replaced."""
    values = parse_inputs(pairs or [], inputs)
    with _client(here) as client:
        client.schedule(
            name, when, kind, values, tz=tz, jitter=jitter, overlap=overlap, catch_up=catch_up, queue=queue, priority=priority,
        )  # fmt: skip
    here.answer({"name": name, "set": True}, Text(f"schedule {name} is set: {when}, {kind}"))


@command(app, name="list")
def list_schedules(here: Here) -> int:
    """The schedules, when each fires next, and what keeps one from firing. Exit code 1 where one is in trouble."""
    with _client(here) as client:
        found = client.schedules()
    here.answer(found, _table(found) if found else Text("no schedules"))
    return BADLY if any(view.trouble and not _new(view) for view in found) else DONE


def _new(view: ScheduleView) -> bool:
    """Set a moment ago: no trouble yet."""
    return view.next is None and view.fired == 0 and "yet" in view.trouble


@command(app)
def pause(here: Here, name: Name) -> None:
    """Let a schedule fire no more until it is unpaused."""
    with _client(here) as client:
        client.pause_schedule(name)
    here.answer({"name": name, "paused": True}, Text(f"schedule {name} is paused"))


@command(app)
def unpause(here: Here, name: Name) -> None:
    """Let a paused schedule fire again, from its next time on."""
    with _client(here) as client:
        client.unpause_schedule(name)
    here.answer({"name": name, "paused": False}, Text(f"schedule {name} fires again"))


@command(app)
def remove(here: Here, name: Name) -> None:
    """Remove a schedule. The runs that it has enqueued go on."""
    with _client(here) as client:
        client.unschedule(name)
    here.answer({"name": name, "removed": True}, Text(f"schedule {name} is removed"))


def _table(views: Iterable[ScheduleView]) -> Table:
    now = _clock.now()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("schedule", "when", "kind", "next", "last run", "fired", "skipped", "state"):
        right = column in ("fired", "skipped")
        table.add_column(column, justify="right" if right else "left", no_wrap=column == "schedule", overflow="fold")
    for view in views:
        when = view.when if view.tz in ("UTC", "?") else f"{view.when} {view.tz}"
        table.add_row(
            Text(view.name), Text(clean(when)), Text(clean(view.kind)), _next(view, now), view.last or "",
            f"{view.fired:,}", f"{view.skipped:,}", _state(view),
        )  # fmt: skip
    return table


def _next(view: ScheduleView, now: float) -> str:
    if view.next is None:
        return ""
    return f"{_local(view.next, view.tz)} ({_ahead(view.next.timestamp() - now)})"


def _ahead(seconds: float) -> str:
    return f"in {format_duration(seconds)}" if seconds >= 0 else f"late by {format_duration(-seconds)}"


def _local(moment: datetime, tz: str) -> str:
    try:
        return moment.astimezone(zone(tz)).strftime("%Y-%m-%d %H:%M:%S")
    except BadOption:  # not known on this machine
        return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _state(view: ScheduleView) -> Text:
    if view.trouble:
        return Text(clean(view.trouble), "dim" if _new(view) else "red")
    return Text("paused", "yellow") if view.paused else Text("on", "green")
