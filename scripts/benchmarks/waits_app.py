"""Handlers that wait, for the benchmark of waits."""

from __future__ import annotations

import time

from workers import AsyncRun, Registry

runs = Registry()
LONG = 30 * 86_400.0


@runs.handler(linger=600)
async def lingering(run: AsyncRun) -> float:
    await run.receive("go")
    return time.time()


@runs.handler(linger=0)
async def suspended(run: AsyncRun) -> float:
    await run.receive("go")
    return time.time()


@runs.handler(linger=600)
async def napping(run: AsyncRun, seconds: float) -> float:
    """Sleep in the process, and return how late the handler continued."""
    due = time.time() + seconds
    await run.sleep(seconds)
    return time.time() - due


@runs.handler(linger=0)
async def sleeping(run: AsyncRun, seconds: float) -> float:
    """Sleep suspended, and return how late the handler continued. The state remembers the time across the suspension."""
    due = run.state.setdefault("due", time.time() + seconds)
    await run.sleep(seconds)
    return time.time() - due


@runs.handler(linger=0)
async def patient(run: AsyncRun, text: str) -> None:
    """Wait with a small checkpoint: a number in the state, and the deadline of the wait."""
    run.state["step"] = 1
    await run.receive("go", timeout=LONG)


@runs.handler(linger=0)
async def talkative(run: AsyncRun, text: str) -> None:
    """Wait with a message of 100 characters too."""
    run.state["step"] = 1
    run.messages.append({"role": "user", "content": text})
    await run.receive("go", timeout=LONG)


@runs.handler
async def nothing(run: AsyncRun) -> None:
    """End immediately."""


@runs.handler
async def fan_out(run: AsyncRun, count: int) -> int:
    """Wait for many children that end immediately, and return their number."""
    return len(await run.gather("nothing", [nothing.inputs() for _ in range(count)]))
