"""Handlers that report when they started, for the benchmark of due runs."""

from __future__ import annotations

import asyncio
import os
import time

import redis.asyncio as redis

from coordinator.model.policies.retry import RetryLater
from workers import AsyncRun, Registry

runs = Registry()
DELAY = 0.5


@runs.handler
async def reached(run: AsyncRun) -> float:
    return time.time()


@runs.handler
async def second_time(run: AsyncRun) -> float:
    """Report how late the second attempt is."""
    if "again" not in run.state:
        run.state["again"] = time.time() + DELAY
        run.checkpoint()
        raise RetryLater(after=DELAY)
    return time.time() - float(run.state["again"])


@runs.handler
async def until_told(run: AsyncRun) -> None:
    """Report when the handler could see that it was cancelled."""
    run.note("here")
    async with redis.from_url(os.environ["RUNS_URL"]) as client:
        while not run.stopping:  # noqa: ASYNC110  # The measurement needs the moment at which the flag is visible.
            await asyncio.sleep(0.001)
        await client.rpush(f"told:{run.id}", time.time())
    raise run.stopping
