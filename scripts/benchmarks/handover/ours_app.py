"""run-coordinator: a run of many turns, 20 per second."""

from __future__ import annotations

import asyncio

from marks import mark

from workers import AsyncRun, Registry

runs = Registry()


@runs.handler
async def long(run: AsyncRun) -> None:
    mark("start", run.id, run.iteration)
    try:
        async for _ in run.loop(limit=100_000):
            await asyncio.sleep(0.05)
    finally:
        mark("stop", run.id, run.iteration)
