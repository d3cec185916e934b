"""The commands that ask a running fleet for something, from any machine: roll, drain.

What they ask for is a fact in the store: it is carried out whether or not the command is still there.
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

from coordinator.cli.options import BADLY, DONE, Here, complain
from coordinator.client.overview import workers
from coordinator.clock import SystemClock
from coordinator.errors import NotFound, Refused
from coordinator.store import server_checks as checks
from coordinator.store.keys import Namespace
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans.fleets import Part, RollView
from coordinator.store.transport.wire import Wire, drive
from coordinator.views.formatting import format_duration
from coordinator.views.namespace_view import WorkerView

LOOK_EVERY = 0.2


@contextmanager
def _store(here: Here) -> Iterator[tuple[Wire, Namespace]]:
    settings = here.settings
    wire = Wire(settings.address, settings.timeout)
    try:
        yield wire, drive(wire, checks.enter(settings))
    finally:
        wire.close()


# ---- roll --------------------------------------------------------------------------------------------------------------


def roll(
    here: Here,
    fleet: Annotated[str, typer.Option(envvar="RUNS_FLEET", metavar="NAME", help="The fleet's name.")] = "default",
    at_once: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Processes at a time.")] = 1,
) -> int:
    """Replace the processes of a fleet by new ones with the code that is on disk now, host by host; no run is lost."""
    with _store(here) as (wire, space):
        keys, number = space.keys(0), os.urandom(8).hex()
        by = f"{socket.gethostname()}:{os.getpid()}"
        asked = drive(wire, fleet_plans.ask_roll(keys, fleet, number, at_once=at_once, by=by))
        if asked.word == "nobody":
            raise NotFound(
                f"fleet {fleet!r} has no supervisor in namespace {space.name!r}: 'workers start --fleet {fleet}'"
            )
        if asked.word == "busy":
            raise Refused(
                f"fleet {fleet!r} is being rolled already, asked for by {asked.by} {format_duration(asked.ago)} ago: "
                "ask again when that is over"
            )
        try:
            view = _followed(here, lambda: drive(wire, fleet_plans.roll_view(keys, fleet)), number)
        except KeyboardInterrupt:
            complain("the roll goes on without this command: 'workers list' shows who was replaced")
            raise
    return _ended(here, fleet, view)


def _followed(here: Here, look: Callable[[], RollView], number: str) -> RollView:
    """The roll when it is over, with a bar meanwhile."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[so_far]}"),
        TimeElapsedColumn(),
    )
    clock = SystemClock()
    with Progress(*columns, console=here.aside, transient=True, disable=not here.aside.is_terminal) as progress:
        bars = {}
        while True:
            view = look()
            if view.roll != number:
                raise Refused("another roll of the fleet was asked for meanwhile, and this one was given up")
            for name, part in view.parts.items():
                if name not in bars:
                    bars[name] = progress.add_task(_host(name), total=None, so_far="")
                so_far = f"{part.replaced}/{part.total}" if part.total else part.state
                progress.update(bars[name], completed=part.replaced, total=part.total or None, so_far=so_far)
            if not view.under_way:
                return view
            clock.sleep(LOOK_EVERY)


def _host(supervisor: str) -> str:
    """host:pid of a supervisor."""
    return supervisor.rpartition(":")[0]


def _ended(here: Here, fleet: str, view: RollView) -> int:
    parts = {
        name: Part("lost", part.replaced, part.total) if name in view.lost else part
        for name, part in view.parts.items()
    }
    replaced = sum(part.replaced for part in parts.values())
    rows = [
        {"supervisor": _host(name), "state": part.state, "replaced": part.replaced, "total": part.total, "reason": part.reason}
        for name, part in parts.items()
    ]  # fmt: skip
    troubles = [trouble for name, part in parts.items() if (trouble := _trouble(_host(name), part))]
    shown = f"fleet {fleet} is rolled: {replaced} {'process' if replaced == 1 else 'processes'} replaced"
    answer = {"fleet": fleet, "rolled": not troubles, "replaced": replaced, "parts": rows}
    here.answer(answer, *([] if troubles else [Text(shown, "green")]))
    if not troubles:
        return DONE
    complain(f"the roll of fleet {fleet!r} is not complete: {'; '.join(troubles)}")
    return BADLY


def _trouble(host: str, part: Part) -> str:
    """What is to be said of a supervisor that did not replace all its processes, or whose new ones are no good."""
    so_far = f"supervisor {host}, {part.replaced} of {part.total or '?'} replaced"
    match part.state:
        case "failed" if part.replaced < part.total:
            return f"{part.reason} ({so_far}, and the old ones go on working)"
        case "failed":
            return f"{part.reason} ({so_far}: none of the old ones is left)"
        case "lost":
            return f"a supervisor was not seen for {format_duration(fleet_plans.SILENCE)} ({so_far})"
        case "left":
            return f"a supervisor was stopped meanwhile ({so_far})"
        case _:
            return ""


# ---- drain -------------------------------------------------------------------------------------------------------------


def drain(
    here: Here, worker: Annotated[str, typer.Argument(help="An id, how one begins, a pid or host:pid; as listed.")]
) -> None:
    """Let a worker process hand over its runs and end; its supervisor starts another one in its place."""
    with _store(here) as (wire, space):
        known = drive(wire, workers(space))
        meant = chosen(worker, known)
        where = {one.id for one in meant}
        asked = [drive(wire, fleet_plans.drain(keys, id)) for keys in space.everywhere() for id in where]
    one = meant[0]
    if not any(asked):
        raise NotFound(f"worker {one.id} ({one.host}:{one.pid}) is gone already")
    said = f"worker process {one.host}:{one.pid} drains; its supervisor starts another one in its place"
    here.answer({"host": one.host, "pid": one.pid, "workers": sorted(where)}, Text(said))


def chosen(name: str, known: list[WorkerView]) -> list[WorkerView]:
    """The workers of the one process that is meant: it has one in each partition."""
    found = [one for one in known if one.id.startswith(name) or name in (f"{one.host}:{one.pid}", str(one.pid))]
    processes = {(one.host, one.pid) for one in found}
    if not processes:
        raise NotFound(f"there is no worker {name!r}: 'workers list' shows those that are there")
    if len(processes) > 1:
        listed = ", ".join(f"{one.id} ({one.host}:{one.pid})" for one in found[:5])
        raise Refused(f"{name!r} may mean {listed}: write more of the id, or host:pid")
    return [one for one in known if (one.host, one.pid) in processes]
