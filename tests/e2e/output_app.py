"""Handlers that emit, for the end-to-end tests of outputs under kills and drains."""

from __future__ import annotations

import random

from tests.e2e.app import journal
from tests.waiting import block_for, work_for
from workers import AsyncRun, Registry, Run

runs = Registry()


@runs.handler(throttle=0)
async def teller(run: AsyncRun, words: int) -> list[str]:
    """Emit some words in each turn. Each word names its attempt, so the words of two attempts differ."""
    journal(run, "start", run.iteration)
    async for turn in run.loop(words // 5):
        said = []
        for number in range(5 * turn, 5 * turn + 5):
            said.append(f"{run.token}/{number}")
            journal(run, "said", number)
            run.emit(said[-1])
            await work_for(random.uniform(0, 0.02))
        run.state.setdefault("text", []).extend(said)
    journal(run, "end", len(run.state["text"]))
    return list(run.state["text"])


@runs.handler(throttle=0.05)
def plain_teller(run: Run, words: int) -> list[str]:
    """Emit words in a thread, and offer a checkpoint after every third one."""
    text = run.state.setdefault("text", [])
    journal(run, "start", len(text))
    while len(text) < words:
        text.append(f"{run.token}/{len(text)}")
        journal(run, "said", len(text) - 1)
        run.emit(text[-1])
        block_for(random.uniform(0, 0.02))
        if len(text) % 3 == 0:
            run.checkpoint()
    journal(run, "end", len(text))
    return list(text)
