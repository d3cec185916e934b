"""A handler that emits words, for the end-to-end tests of the HTTP API."""

from __future__ import annotations

import os

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Registry

runs = Registry()


@runs.handler(throttle=0)
async def tell(run: AsyncRun, turns: int, words: int) -> str:
    """Emit words in turns. The checkpoint at the end of a turn covers its words."""
    journal(run, "start", run.iteration)
    async for turn in run.loop(limit=turns):
        for number in range(words):
            run.emit({"word": f"{turn}.{number} ", "pid": os.getpid()})
            journal(run, "step", turn * words + number)
            await work_for(0.02)
    return "".join(f"{turn}.{number} " for turn in range(turns) for number in range(words))
