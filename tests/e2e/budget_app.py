"""Handlers with budgets, for the end-to-end tests of budgets under kills and over a roll."""

from __future__ import annotations

import asyncio

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Budget, BudgetExceeded, Registry

LIMIT, RESERVED, PAID, CALLS = 5.0, 0.1, 0.01, 50
runs = Registry()


@runs.handler(throttle=0, budget=Budget(usd=LIMIT))
async def spender(run: AsyncRun) -> int:
    """Make 50 calls at the same time, again and again, until no reservation fits into the budget."""

    async def call() -> bool:
        try:
            async with run.reserve(usd=RESERVED, requests=1) as reservation:
                await work_for(0.05)
                journal(run, "paid")
                reservation.spend(usd=PAID, requests=1)
                return True
        except BudgetExceeded:
            return False

    async for turn in run.loop(500):
        if not any(await asyncio.gather(*(call() for _ in range(CALLS)))):
            return turn
    raise AssertionError("the budget is never spent")


@runs.handler(linger=0.1)
async def parent(run: AsyncRun, count: int) -> float | None:
    """Wait for spenders."""
    await run.gather("children", [spender.inputs() for _ in range(count)])
    return run.spent.usd


@runs.handler(linger=0.0, budget=Budget(requests=3, then="wait"))
async def asker(run: AsyncRun, count: int) -> int:
    """Ask one question after the other. Each of them costs one request."""

    def ask(number: int) -> None:
        journal(run, "asked", number)
        run.spend(requests=1)

    for number in range(count):
        await run.phase(f"ask {number}", ask, number)
    return count
