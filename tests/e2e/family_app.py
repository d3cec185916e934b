"""Handlers of parents that wait for many children. Each child writes to the journal which part of which parent it is."""

from __future__ import annotations

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Registry

runs = Registry()


@runs.handler(throttle=0)
async def part(run: AsyncRun, number: int) -> int:
    journal(run, "start", number)
    await work_for(0.05)
    journal(run, "end", number)
    return number


@runs.handler(throttle=0, linger=0.2)
async def family(run: AsyncRun, first: int, count: int) -> int:
    """Add up the results of children, half of them in small groups."""
    numbers = [part.inputs(number) for number in range(first, first + count)]
    total: int = sum(await run.gather("all at once", numbers[: count // 2]))
    async for done in run.as_completed("in groups", numbers[count // 2 :], at_once=4):
        total += done.result
    return total
