"""Handlers that wait, for the end-to-end tests of waits under kills."""

from __future__ import annotations

from typing import Any

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Registry, Run

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
