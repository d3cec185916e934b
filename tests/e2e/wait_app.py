"""Handlers that wait, for the end-to-end tests of waits under kills."""

from __future__ import annotations

from typing import Any

from tests.e2e.app import journal
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
