"""The commands about running fleets, from any machine: list, roll and drain.

The request is stored on the server. The supervisors and workers carry it out, even if the command is interrupted.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.exits import DONE, PROBLEM, print_error
from coordinator.client.reading.overview import workers
from coordinator.clock import SystemClock
from coordinator.errors import NotFound, Refused
from coordinator.store import server_checks as checks
from coordinator.store.keys import Namespace
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans.fleets import RollPart, RollView
from coordinator.store.transport.wire import Wire, drive
from coordinator.views.formatting import format_duration
from coordinator.views.namespace_display import workers_overview
from coordinator.views.namespace_view import WorkerView

PROGRESS_POLL_SECONDS = 0.2


@contextmanager
def _connect(context: CommandContext) -> Iterator[tuple[Wire, Namespace]]:
    settings = context.settings
    wire = Wire(settings.address, settings.timeout)
    try:
        yield wire, drive(wire, checks.enter(settings))
    finally:
        wire.close()


# ---- list ---------------------------------------------------------------------------------------------------------------


def list_workers(context: CommandContext) -> None:
    """List the workers that have a lease, or whose runs were not recovered yet."""
    with context.connect() as client:
        found = client.workers()
    context.answer({"workers": found}, workers_overview(found) if found else Text("no workers"))


# ---- roll --------------------------------------------------------------------------------------------------------------


def roll(
    context: CommandContext,
    fleet: Annotated[str, typer.Option(envvar="RUNS_FLEET", metavar="NAME", help="Name of the fleet.")] = "default",
    at_once: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Processes that a supervisor replaces at the same time.")
    ] = 1,
) -> int:
    """Replace the worker processes of a fleet with new ones that run the code on disk, without losing a run.

    The hosts roll one after the other. Each new process is ready before the old one drains.
    If a new process can't start, the roll stops, and the other processes continue with the old code.
    The roll continues if this command is interrupted.
    """
    with _connect(context) as (wire, space):
        keys, number = space.keys(0), os.urandom(8).hex()
        by = f"{socket.gethostname()}:{os.getpid()}"
        asked = drive(wire, fleet_plans.request_roll(keys, fleet, number, at_once=at_once, by=by))
        if asked.word == "nobody":
            raise NotFound(
                f"fleet {fleet!r} has no running supervisor in namespace {space.name!r}: "
                f"start one with 'workers start --fleet {fleet}'"
            )
        if asked.word == "busy":
            raise Refused(
                f"fleet {fleet!r} is rolling already (requested by {asked.by}, {format_duration(asked.ago)} ago): "
                "try again when that roll has finished"
            )
        try:
            view = _follow(context, lambda: drive(wire, fleet_plans.read_roll(keys, fleet)), number)
        except KeyboardInterrupt:
            print_error("the roll continues without this command: 'workers list' shows the code of each process")
            raise
    return _show_result(context, fleet, view)


def _follow(context: CommandContext, look: Callable[[], RollView], number: str) -> RollView:
    """Show a progress bar until the roll has ended, and return the last view of the roll.

    Raises:
        Refused: If another roll of the fleet has replaced this one.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[so_far]}"),
        TimeElapsedColumn(),
    )
    clock = SystemClock()
    with Progress(*columns, console=context.stderr, transient=True, disable=not context.stderr.is_terminal) as progress:
        bars = {}
        while True:
            view = look()
            if view.roll != number:
                raise Refused("another roll of the fleet was requested, and replaced this one")
            for name, part in view.parts.items():
                if name not in bars:
                    bars[name] = progress.add_task(_host_and_pid(name), total=None, so_far="")
                so_far = f"{part.replaced}/{part.total}" if part.total else part.state
                progress.update(bars[name], completed=part.replaced, total=part.total or None, so_far=so_far)
            if not view.under_way:
                return view
            clock.sleep(PROGRESS_POLL_SECONDS)


def _host_and_pid(supervisor: str) -> str:
    return supervisor.rpartition(":")[0]


def _show_result(context: CommandContext, fleet: str, view: RollView) -> int:
    parts = {
        name: RollPart("lost", part.replaced, part.total) if name in view.lost else part
        for name, part in view.parts.items()
    }
    replaced = sum(part.replaced for part in parts.values())
    rows = [
        {"supervisor": _host_and_pid(name), "state": part.state, "replaced": part.replaced, "total": part.total,
         "reason": part.reason}
        for name, part in parts.items()
    ]  # fmt: skip
    problems = [problem for name, part in parts.items() if (problem := _describe_problem(_host_and_pid(name), part))]
    shown = f"fleet {fleet} rolled: {replaced} {'process' if replaced == 1 else 'processes'} replaced"
    answer = {"fleet": fleet, "rolled": not problems, "replaced": replaced, "parts": rows}
    context.answer(answer, *([] if problems else [Text(shown, "green")]))
    if not problems:
        return DONE
    print_error(f"the roll of fleet {fleet!r} is not complete: {'; '.join(problems)}")
    return PROBLEM


def _describe_problem(supervisor: str, part: RollPart) -> str:
    """Return the problem of a supervisor in a roll, in words; empty if it replaced all processes and they work."""
    so_far = f"supervisor {supervisor}: {part.replaced} of {part.total or '?'} replaced"
    match part.state:
        case "failed" if part.replaced < part.total:
            return f"{part.reason} ({so_far}, the other processes continue with the old code)"
        case "failed":
            return f"{part.reason} ({so_far}, no process with the old code is left)"
        case "lost":
            return f"the supervisor has not been seen for {format_duration(fleet_plans.SILENCE)} ({so_far})"
        case "left":
            return f"the supervisor was stopped during the roll ({so_far})"
        case _:
            return ""


# ---- drain -------------------------------------------------------------------------------------------------------------


def drain(
    context: CommandContext,
    worker: Annotated[
        str,
        typer.Argument(
            metavar="WORKER",
            help="A worker id or its first characters, a pid, or host:pid, as 'workers list' shows them.",
        ),
    ],
) -> None:
    """Let one worker process release its runs and end. Its supervisor starts a new process in its place."""
    with _connect(context) as (wire, space):
        known = drive(wire, workers(space))
        chosen = choose_process(worker, known)
        ids = {one.id for one in chosen}
        asked = [drive(wire, fleet_plans.drain(keys, id)) for keys in space.everywhere() for id in ids]
    one = chosen[0]
    if not any(asked):
        raise NotFound(f"worker {one.id} ({one.host}:{one.pid}) has ended already")
    said = f"worker process {one.host}:{one.pid} is draining; its supervisor will start a new process in its place"
    context.answer({"host": one.host, "pid": one.pid, "workers": sorted(ids)}, Text(said))


def choose_process(name: str, known: list[WorkerView]) -> list[WorkerView]:
    """Return the workers of the process that a name identifies. A process has one worker in each partition.

    Args:
        name: A worker id or its first characters, a pid, or host:pid.
        known: All workers.

    Raises:
        NotFound: If no process has this name.
        Refused: If the name fits several processes.
    """
    found = [one for one in known if one.id.startswith(name) or name in (f"{one.host}:{one.pid}", str(one.pid))]
    processes = {(one.host, one.pid) for one in found}
    if not processes:
        raise NotFound(f"there is no worker {name!r}: 'workers list' shows the running workers")
    if len(processes) > 1:
        listed = ", ".join(f"{one.id} ({one.host}:{one.pid})" for one in found[:5])
        raise Refused(f"{name!r} may mean {listed}: write more of the id, or host:pid")
    return [one for one in known if (one.host, one.pid) in processes]
