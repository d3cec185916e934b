"""The handlers that the tests of the HTTP API enqueue."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from typing import Any

from workers import AsyncRun, Registry

runs = Registry()


@runs.handler
async def double(run: AsyncRun, number: int) -> int:
    return number * 2


@runs.handler
async def echo(run: AsyncRun, value: Any) -> Any:
    return value


@runs.handler
async def odd_values(run: AsyncRun) -> dict[str, Any]:
    """Return values that JSON does not have."""
    return {"nan": math.nan, "bytes": b"\x00\xff", "time": datetime(2026, 1, 2, tzinfo=UTC), "line": "a\u2028b\nc"}


@runs.handler
async def fail(run: AsyncRun) -> None:
    raise ValueError("no luck")


@runs.handler(linger=0)
async def ask(run: AsyncRun) -> Any:
    signal = await run.receive("answer")
    return signal.payload


@runs.handler
async def talk(run: AsyncRun, values: list[Any]) -> int:
    for value in values:
        run.emit(value)
    return len(values)


@runs.handler
async def pour(run: AsyncRun, count: int, size: int) -> None:
    """Emit many events, in groups of 300."""
    for number in range(count):
        run.emit("x" * size)
        if number % 300 == 299:
            await asyncio.sleep(0.02)  # lets the worker send the events


@runs.handler
async def nest(run: AsyncRun, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    for one in ("before", value, "after"):
        run.emit(one)


@runs.handler
async def tick(run: AsyncRun) -> None:
    """Emit an event four times a second, until the run is cancelled."""
    while True:
        run.emit("tick")
        await asyncio.sleep(0.25)  # the pace of the events


@runs.handler(linger=0)
async def chat(run: AsyncRun) -> None:
    await run.phase("ask", say, run, "What is your name?")  # a phase, so that the resumed handler does not say it again
    answer = await run.receive("answer")
    run.emit(f"Hello {answer.payload}")


async def say(run: AsyncRun, text: str) -> None:
    run.emit(text)


@runs.handler(linger=0)
async def note_down(run: AsyncRun, count: int, size: int = 1) -> None:
    if not run.messages:
        run.messages.extend({"number": number, "text": "x" * size} for number in range(count))
    await run.receive("answer")
