"""Handlers with many steps of one kind, for the benchmark of steps."""

from __future__ import annotations

import time

from workers import AsyncRun, Registry

runs = Registry()


async def nothing() -> int:
    return 1


@runs.handler
async def steps(run: AsyncRun, what: str, count: int) -> list[float]:
    """Return how long each of many steps took."""
    taken = []
    for number in range(count):
        begin = time.perf_counter()
        if what == "phase":
            await run.phase(f"step-{number}", nothing)
        elif what == "once":
            await run.once(f"step-{number}", nothing)
        elif what == "limit":
            async with run.limit("free"):
                await nothing()
        elif what == "save":
            run.state["step"] = number
            await run.flush()
        else:
            await nothing()
        taken.append(time.perf_counter() - begin)
    return taken
