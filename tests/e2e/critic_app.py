"""Handlers that take too long, each in a different way."""

from __future__ import annotations

import asyncio
import time

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Deadline, Registry, Run

runs = Registry()


@runs.handler(deadline=Deadline(hard=1.0))
def deaf(run: Run) -> None:
    """Run as a plain function without a cut, and ignore every request to stop."""
    journal(run, "deaf")
    time.sleep(600)  # The handler ignores every request to stop.


@runs.handler(deadline=Deadline(hard=12.0))
async def turns(run: AsyncRun) -> None:
    """Continue until the worker stops the handler at a cut."""
    journal(run, "start", run.attempt)
    async for _ in run.loop(limit=1_000_000):
        await work_for(0.05)


@runs.handler
async def blocks(run: AsyncRun, in_a_group: bool) -> None:
    """Block the event loop."""
    journal(run, "blocks", run.attempt)

    async def block() -> None:
        time.sleep(600)  # noqa: ASYNC251  # The handler blocks its event loop on purpose.

    if not in_a_group:
        await block()
    async with asyncio.TaskGroup() as group:
        group.create_task(block())
