"""Handlers that emit, for the benchmark of outputs."""

from __future__ import annotations

import asyncio
import random
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


@runs.handler
async def talking(run: AsyncRun, phases: list[tuple[float, float]], seconds: float) -> None:
    """Emit in each phase at its pace, in events per second. The phases begin at given times."""
    for begin, pace in phases:
        if not pace:
            continue
        await asyncio.sleep(max(0.0, begin + random.random() / pace - time.time()))
        while time.time() < begin + seconds:
            run.emit({"delta": "token"})
            await asyncio.sleep(1 / pace)


@runs.handler(throttle=0)
async def saving(run: AsyncRun, until: float) -> list[tuple[float, float]]:
    """Save a small checkpoint every 0.2 s. Return the time of each save, and the seconds that it took."""
    saves = []
    while (now := time.time()) < until:
        run.state["saves"] = len(saves)
        await run.flush()
        saves.append((now, time.time() - now))
        await asyncio.sleep(0.2)
    return saves


@runs.handler
async def begun_at(run: AsyncRun) -> float:
    return time.time()
