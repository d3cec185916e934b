"""The commands that follow a namespace: events and top."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import aclosing
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.filters import KindFilter
from coordinator.cli.framework.inputs import parse_run_id
from coordinator.client.async_client import AsyncClient
from coordinator.errors import CoordinatorError, NotFound
from coordinator.feed.display import board_frame, event_line
from coordinator.feed.events import RunEvent
from coordinator.feed.feed import Feed
from coordinator.feed.history import past_events
from coordinator.feed.watcher import Watcher
from coordinator.model.names import name as check_name
from coordinator.model.run import ENDED
from coordinator.printable import json_text
from coordinator.views.json_data import to_json_data

PAST_RUNS = 200  # the number of newest runs whose past events are listed


def events(
    context: CommandContext,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print changes as they happen, until Ctrl-C.")] = False,
    kind: KindFilter = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only this run, until it ends.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Past events to print, newest last.")] = 50,
) -> None:
    """Show changes of runs: when each was queued, started, requeued and ended.

    Without --follow, the command shows the past events of the newest runs that the server still stores. With --json, each event is
    one line.
    """
    wanted = parse_run_id(run) if run else None
    kind = kind and check_name(kind, "kind")
    try:
        asyncio.run(_events(context, follow, kind, wanted, limit))
    except KeyboardInterrupt:
        return


async def _events(context: CommandContext, follow: bool, kind: str | None, run: str | None, limit: int) -> None:
    settings = context.settings
    async with AsyncClient(settings.url, settings.namespace, settings.timeout) as client:
        if not follow:
            views = [await client.handle(run).view()] if run else await client.list(kind=kind, limit=PAST_RUNS)
            _print(context, past_events(views)[-limit:])
            return
        begun = False
        async with aclosing(Feed(client).batches()) as batches:
            async for batch in batches:
                if not begun and not batch.error:
                    begun = True
                    context.stderr.print(Text(f"following namespace {settings.namespace}; Ctrl-C ends", "dim"))
                elif batch.error or batch.gap:
                    note = batch.error or "connected again; changes in between may be missing"
                    context.stderr.print(Text(note, "yellow"))
                wanted = [e for e in batch.events if kind in (None, e.kind) and run in (None, e.run)]
                _print(context, wanted)
                if run and any(event.status in ENDED for event in wanted):
                    return
                if run and batch.workers and not batch.error:  # the first batch of a connection
                    missed = await _missed_ending(client, run, batch.now)
                    if missed is not None:
                        _print(context, missed)
                        return


async def _missed_ending(client: AsyncClient, run: str, since: float) -> list[RunEvent] | None:
    """Return the events of an ended run since a Unix time. Return None if the run has not ended, or if the server can't be read.

    The run may have ended before the feed began. Then the feed reports no event of the run. The list is empty if the run does
    not exist.
    """
    try:
        view = await client.handle(run).view()
    except NotFound:
        return []
    except CoordinatorError:
        return None
    return [event for event in past_events([view]) if event.at >= since] if view.ended else None


def _print(context: CommandContext, found: Iterable[RunEvent]) -> None:
    for event in found:
        if context.as_json:
            sys.stdout.write(json_text(to_json_data(event)) + "\n")
        else:
            context.console.print(event_line(event), crop=False, overflow="ignore")
    sys.stdout.flush()


def top(context: CommandContext) -> None:
    """Show queues, workers and the latest changes, live, until Ctrl-C.

    If the output is not a terminal, the command prints the state once.
    """
    try:
        asyncio.run(_top(context))
    except KeyboardInterrupt:
        return


async def _top(context: CommandContext) -> None:
    settings, console = context.settings, context.console
    address = str(settings.address)
    async with (
        AsyncClient(settings.url, settings.namespace, settings.timeout) as client,
        aclosing(Watcher(client).boards()) as boards,
    ):
        if not console.is_terminal or context.as_json:
            board = await anext(boards)
            if board.overview is None:
                await client.status()  # raises the error that kept the board from reading the overview
            facts = {"overview": board.overview, "queues": board.queues(), "processes": board.processes()}
            context.answer(facts, board_frame(board, address, 100, 60))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            async for board in boards:
                live.update(board_frame(board, address, console.width, console.height), refresh=True)
