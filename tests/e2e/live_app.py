"""A handler for thousands of live runs in one process: each saves and emits, and none ends before the test opens a gate."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Registry

runs = Registry()
LOOK_SECONDS = 0.2


class Gate:
    """A gate that the test opens. The file is looked for only now and then, because thousands of runs ask."""

    def __init__(self, name: str) -> None:
        self._name, self._open, self._looked_at = name, False, 0.0

    def is_open(self) -> bool:
        if not self._open and time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._open, self._looked_at = Path(f"{os.environ['JOURNAL']}.{self._name}").exists(), time.monotonic()
        return self._open


enough = Gate("enough")


@runs.handler(throttle=0)
async def live(run: AsyncRun, every: float) -> int:
    """Emit and save a number again and again. Each attempt saves at least once."""
    journal(run, "start", len(run.messages))
    while True:
        number = len(run.messages)
        run.emit(number)
        run.messages.append(number)
        await run.flush()
        journal(run, "saved", number)
        await work_for(every * (0.5 + random.random()))
        if enough.is_open():
            break
    journal(run, "end", len(run.messages))
    return len(run.messages)
