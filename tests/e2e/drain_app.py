"""Handlers that make a drain hard.

Each writes its progress to the journal. A handler ends only when the gate "enough" is open.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.e2e.app import journal
from tests.waiting import block_for, eventually, work_for
from workers import AsyncRun, Registry, Run

runs = Registry()


def enough() -> bool:
    return Path(f"{os.environ['JOURNAL']}.enough").exists()


@runs.handler(throttle=0)
async def walks(run: AsyncRun) -> int:
    """Do a step every 50 ms, and write to the journal when the handler is stopped."""
    journal(run, "start", run.iteration)
    try:
        async for turn in run.loop(limit=100_000):
            journal(run, "step", turn)
            await work_for(0.05)
            if enough():
                return turn
    finally:
        journal(run, "over", run.iteration)
    return -1


@runs.handler(throttle=0)
async def flushes(run: AsyncRun, turns: int) -> list[int]:
    """Save at the end of each turn."""
    journal(run, "start", run.iteration)
    async for turn in run.loop(limit=turns):
        run.messages.append(turn)
        await work_for(0.02)
        await run.flush()
    return list(run.messages)


@runs.handler(throttle=0)
def flushes_plain(run: Run, turns: int) -> list[int]:
    """Save at the end of each turn."""
    journal(run, "start", run.iteration)
    for turn in run.loop(limit=turns):
        run.messages.append(turn)
        block_for(0.02)
        run.flush()
    return list(run.messages)


@runs.handler
async def family(run: AsyncRun) -> str:
    """Run children in a task group. Their clean-up raises."""
    journal(run, "start")

    async def child() -> None:
        try:
            await eventually(enough, "the test to have seen enough", timeout=3600, pause=0.05)
        finally:
            if not enough():
                raise OSError("a child's clean-up")

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(child())
    return "all children ended"


@runs.handler
async def broad(run: AsyncRun) -> str:
    """Catch every exception of an application, and continue."""
    journal(run, "start")
    while not enough():
        try:
            await run.phase(f"part-{len(run.state)}", asyncio.sleep, 0.02)
            run.state[str(len(run.state))] = True
            run.checkpoint()
        except Exception:  # noqa: BLE001  # A handler with a broad except is what this tests.
            journal(run, "caught")
    return "enough"


@runs.handler
def bare(run: Run) -> str:
    """Loop with a cut, in a thread."""
    journal(run, "start")
    while not enough():
        block_for(0.02)
        run.state["turns"] = run.state.get("turns", 0) + 1
        run.checkpoint()
    return "enough"


@runs.handler
async def bare_async(run: AsyncRun) -> str:
    journal(run, "start")
    while not enough():
        await work_for(0.02)
        run.state["turns"] = run.state.get("turns", 0) + 1
        run.checkpoint()
    return "enough"
