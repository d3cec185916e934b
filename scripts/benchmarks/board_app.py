"""The handler of scripts/bench board: a run that works until its process ends."""

from __future__ import annotations

import asyncio

from workers import AsyncRun, Registry

runs: Registry[None] = Registry()


@runs.handler
async def endless(run: AsyncRun[None]) -> None:
    async for _ in run.loop(limit=10**9):
        await asyncio.sleep(0.05)
