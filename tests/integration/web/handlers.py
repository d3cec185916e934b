"""The handlers that the tests of the HTTP API enqueue."""

from __future__ import annotations

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
