"""Handlers of kinds with a limit per group, for the end-to-end tests."""

from __future__ import annotations

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Registry

runs = Registry()


@runs.handler(at_once=2, group_by="customer")
async def work(run: AsyncRun, customer: str, seconds: float) -> None:
    """Work for a customer. The message is progress, so that kills do not make the run a poison run."""
    journal(run, "enter")
    run.messages.append({"attempt": run.attempt})
    await run.flush()
    await work_for(seconds)
    journal(run, "leave")


@runs.handler(at_once=1, group_by="customer")
async def turn(run: AsyncRun, customer: str) -> None:
    """Take a turn for a customer."""
    journal(run, "turn")


@runs.handler(rate="20/s", burst=3, group_by="customer")
async def paced(run: AsyncRun, customer: str) -> None:
    """Start at the rate of a customer."""
    journal(run, "enter")
