"""Handlers that call the outside under a limit, for the end-to-end tests."""

from __future__ import annotations

import os
from pathlib import Path

from tests.e2e.app import journal
from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry, Run

runs = Registry()


@runs.handler
async def call(run: AsyncRun, cost: int) -> None:
    """Make one call, which takes a moment. The message is progress, so that kills do not make the run a poison run."""
    run.messages.append({"attempt": run.attempt})
    await run.flush()
    async with run.limit("api", cost=cost):
        journal(run, "call", cost)
        await work_for(0.01)


@runs.handler
def plain_call(run: Run, cost: int) -> None:
    """Make one call from a thread."""
    run.messages.append({"attempt": run.attempt})
    run.flush()
    with run.limit("api", cost=cost):
        journal(run, "call", cost)


@runs.handler
async def hold(run: AsyncRun, gate: str) -> None:
    """Hold a place until the test opens the gate."""
    path = Path(f"{os.environ['JOURNAL']}.{gate}")
    async with run.limit("gpu"):
        journal(run, "enter")
        await eventually(path.exists, f"the gate {gate} is open", timeout=600)
        journal(run, "leave")


@runs.handler
async def brief(run: AsyncRun, seconds: float) -> None:
    """Hold a place for a moment."""
    run.messages.append({"attempt": run.attempt})
    await run.flush()
    async with run.limit("gpu"):
        journal(run, "enter")
        await work_for(seconds)
        journal(run, "leave")
