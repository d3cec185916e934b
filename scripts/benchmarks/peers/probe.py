"""The common part of the programs of all queues: the mark that a handler writes, and the commands of the program.

The first line of a handler writes two times to a file (BENCH_MARKS), both on the host's monotonic clock: the present time, and the
time at which the call that enqueued the job began. So no queue needs a result to be measured, and all are measured in the same way.
This module uses the standard library only, because it is imported in the environment of every queue.

    program one URL COUNT       enqueue one by one                  {"seconds": …, "cpu": …}
    program many URL COUNT      enqueue in batches                  the same
    program pick_up URL COUNT   one at a time on an idle system     {"ms": […]}
    program trip URL COUNT      enqueue and await the result        {"ms": […], "cpu": …}
    program work URL            a worker, until SIGTERM
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

MARK = struct.Struct("<qq")
TEXT = "x" * 100
TRIP = -1  # This replaces the time if the handler has to return its text.
_marks = os.open(os.environ["BENCH_MARKS"], os.O_RDWR | os.O_APPEND | os.O_CREAT)


def mark(began: int = 0) -> None:
    """Write the mark. Every handler calls this first."""
    os.write(_marks, MARK.pack(time.monotonic_ns(), began))


class Producer(Protocol):
    """The client calls that the benchmark needs. `many` and `trip` are None if the queue lacks them."""

    one: Callable[[int], Awaitable[Any]]
    many: Callable[[int], Awaitable[Any]] | None
    trip: Callable[[], Awaitable[Any]] | None


def main(producer: Callable[[str], Awaitable[Producer]], work: Callable[[str], Any]) -> None:
    verb, url = sys.argv[1], sys.argv[2]
    if verb == "work":
        work(url)
        return
    print(json.dumps(runner()(_drive(producer, verb, url, int(sys.argv[3])))))


def runner() -> Callable[[Any], Any]:
    """Return the function that runs a coroutine: on uvloop, if the environment of the queue has it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run  # type: ignore[no-any-return]


async def _drive(producer: Callable[[str], Awaitable[Producer]], verb: str, url: str, count: int) -> dict[str, Any]:
    made = await producer(url)
    if verb == "one":
        await made.one(0)  # This connects and loads the scripts.
        return await _timed(_repeat(made.one, count - 1))
    if verb == "many":
        if made.many is None:
            return {"missing": True}
        await made.one(0)
        return await _timed(made.many(count - 1))
    if verb == "pick_up":
        return {"ms": await _pick_up(made.one, count)}
    if made.trip is None:
        return {"missing": True}
    await made.trip()
    waits, cpu = [], 0.0
    for _ in range(count):
        began, spent = time.perf_counter(), time.process_time()
        await made.trip()
        waits.append((time.perf_counter() - began) * 1000)
        cpu += time.process_time() - spent
        await asyncio.sleep(0.005)
    return {"ms": waits, "cpu": cpu}


async def _repeat(one: Callable[[int], Awaitable[Any]], count: int) -> None:
    for _ in range(count):
        await one(0)


async def _timed(work: Awaitable[Any]) -> dict[str, Any]:
    began, cpu = time.perf_counter(), time.process_time()
    await work
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


async def _pick_up(one: Callable[[int], Awaitable[Any]], count: int) -> list[float]:
    """Return the milliseconds from the start of each enqueue call to the handler's first line.

    The first call, which connects, is left out.
    """
    waits: list[float] = []
    for _ in range(count + 1):
        size = os.fstat(_marks).st_size
        await one(time.monotonic_ns())
        until = time.monotonic() + 20
        while os.fstat(_marks).st_size < size + MARK.size:
            if time.monotonic() > until:
                raise SystemExit("a job was not picked up within 20 seconds")
            await asyncio.sleep(0.001)
        reached, began = MARK.unpack(os.pread(_marks, MARK.size, size))
        waits.append((reached - began) / 1e6)
        await asyncio.sleep(0.01)  # The system is idle again.
    return waits[1:]
