"""Handlers that emit, for the benchmark of outputs."""

from __future__ import annotations

import asyncio
import time

from workers import AsyncRun, Registry

runs = Registry()


@runs.handler
async def typing(run: AsyncRun, tokens: int, per_second: float, begin: float) -> None:
    """Emit the time at a given rate per second, from a given time on."""
    begun = time.monotonic() + begin - time.time()
    for number in range(tokens):
        await asyncio.sleep(max(0.0, begun + number / per_second - time.monotonic()))
        run.emit({"delta": "token", "at": time.time()})


@runs.handler
async def pouring(run: AsyncRun, tokens: int) -> None:
    """Emit as fast as the worker can send, in small groups."""
    for number in range(tokens):
        run.emit({"delta": "token", "number": number})
        if number % 20 == 19:
            await asyncio.sleep(0.02)


@runs.handler
async def silent(run: AsyncRun, seconds: float) -> None:
    await asyncio.sleep(seconds)
