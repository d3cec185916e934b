"""Handlers that wait, for the end-to-end tests of waits under kills."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, ChildFailed, Registry, Run

runs = Registry()


@runs.handler(linger=0.1, throttle=0)
async def listener(run: AsyncRun, count: int) -> list[Any]:
    """Receive signals one after the other, without a loop: each wait is a step of its own."""
    journal(run, "start", len(run.messages))
    heard = []
    for number in range(count):
        signal = await run.receive("word", "other")
        journal(run, "heard", number)
        heard.append(signal.payload)
    journal(run, "end", count)
    return heard


@runs.handler(linger=0, throttle=0)
def plain_listener(run: Run, count: int) -> list[Any]:
    """Receive one signal in each turn, and sleep for a moment."""
    journal(run, "start", run.iteration)
    for turn in run.loop(limit=count):
        signal = run.receive("word", "other")
        run.sleep(0.01)
        journal(run, "heard", turn)
        run.state.setdefault("heard", []).append(signal.payload)
    journal(run, "end", count)
    return list(run.state["heard"])


@runs.handler(throttle=0)
async def child(run: AsyncRun, number: int) -> int:
    """Work for a moment."""
    journal(run, "child", number)
    await work_for(0.01)
    return number


@runs.handler(linger=0.1, throttle=0)
async def parent(run: AsyncRun, count: int, at_once: int | None) -> int:
    """Add up the results of children: half of them gathered, half of them in the order in which they end."""
    journal(run, "start")
    gathered = await run.gather("half", [child.inputs(number) for number in range(count)], at_once=at_once)
    total = sum(gathered)
    async for done in run.as_completed(
        "other half", [child.inputs(number) for number in range(count)], at_once=at_once
    ):
        total += done.result
    journal(run, "end", total)
    return int(total)


@runs.handler(linger=0)
async def nested(run: AsyncRun, depth: int) -> int:
    """Wait for a child that does the same, down to depth 1."""
    journal(run, "nested", depth)
    if depth == 1:
        return 1
    (below,) = await run.gather("below", [nested.inputs(depth - 1)])
    return int(below) + 1


@runs.handler(linger=0)
async def member(run: AsyncRun, how: str) -> str:
    """End in the given way, or wait until the run is cancelled."""
    journal(run, how.replace(" ", "_"))
    if how == "fails":
        raise ValueError("no result")
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "is cancelled":
        await run.receive("never")
    return how


@runs.handler(linger=0)
async def family(run: AsyncRun, ways: list[str]) -> list[str]:
    """Wait for children that end in different ways, and for one that expires, because no worker knows its kind."""
    journal(run, "start")
    together = await run.gather("family", [member.inputs(how) for how in ways], return_failures=True)
    unknown: Any = ("unknown", {})
    alone = await run.gather("expires", [unknown], return_failures=True, expires=1)
    return [str(one.status) if isinstance(one, ChildFailed) else one for one in (*together, *alone)]


@runs.handler(linger=0, throttle=0)
async def alarm(run: AsyncRun, number: int, at: float) -> list[Any]:
    """Wait for a signal until a moment, in seconds since 1970. Return the payload or None, and that of a signal that came later."""
    signal = await run.receive("word", timeout=max(0.0, at - time.time()), default=None)
    journal(run, "woke", number)
    later = await run.receive("word", timeout=0, default=None)
    return [None if one is None else one.payload for one in (signal, later)]
