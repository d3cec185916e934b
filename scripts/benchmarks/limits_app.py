"""Handlers that call the outside under a limit, for the benchmark of limits."""

from __future__ import annotations

import os
import struct
import time

from workers import AsyncRun, Registry

runs = Registry()
_starts = os.open(os.environ.get("BENCH_STARTS", os.devnull), os.O_WRONLY | os.O_APPEND)


@runs.handler
async def uncontended(run: AsyncRun, count: int) -> list[float]:
    """Return how long the handler takes to enter and leave each of many blocks that need not wait."""
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        async with run.limit("free"):
            pass
        taken.append(time.perf_counter() - begin)
    return taken


@runs.handler
async def contended(run: AsyncRun) -> None:
    """Write when the call started to the file of the benchmark."""
    async with run.limit("busy"):
        os.write(_starts, struct.pack("<d", time.time()))


@runs.handler
async def holding(run: AsyncRun) -> tuple[float, float]:
    """Return when the call started and ended. It hands its place to the next call."""
    async with run.limit("places"):
        begin = time.time()
    return begin, time.time()
