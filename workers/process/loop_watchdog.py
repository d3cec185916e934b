"""Notices an event loop that stands still: a handler that blocks in a coroutine stops every other run of its process.

Watched from the heartbeat's thread. First it is said, with the stack; past a limit the supervisor is asked to replace the process,
and the leases are renewed no more, so that without a supervisor the runs come free too.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Literal

from coordinator.clock import Clock
from coordinator.logs import about

logger = logging.getLogger(__name__)
TICK = 0.25
SAID_AFTER = 1.0
LEAST_LIMIT = 5.0  # however short the lease is
NOBODY = "nobody"


class Stillness:
    """How long the loop has stood still while the watcher did not: in a process that was stopped as a whole nobody is to blame."""

    def __init__(self, limit: float) -> None:
        self.seconds = 0.0
        self._limit, self._before = limit, 0.0

    def tick(self, passed: float, *, moved: bool) -> Literal["said", "limit"] | None:
        """`passed` since the last tick, in which the loop has moved or not. Which mark this passes."""
        self._before, self.seconds = self.seconds, 0.0 if moved else self.seconds + min(passed, 2 * TICK)
        if self._passes(self._limit):
            return "limit"
        return "said" if self._passes(SAID_AFTER) else None

    def _passes(self, mark: float) -> bool:
        return self._before < mark <= self.seconds


class Blocked:
    """Watches the event loop that it is made on. `replace` asks the supervisor, and names the run to blame."""

    def __init__(self, clock: Clock, lease: float, replace: Callable[[str], None] | None) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._clock, self._replace = clock, replace
        self._stillness = Stillness(max(lease, LEAST_LIMIT))
        self._moved = True
        self.too_long = False  # the leases are not renewed meanwhile

    async def watch(self) -> None:
        """In another thread's loop, until it is cancelled."""
        before = self._clock.monotonic()
        while True:
            if self._moved:
                self._moved = False
                self._loop.call_soon_threadsafe(self._move)
            await self._clock.asleep(TICK)
            now = self._clock.monotonic()
            mark = self._stillness.tick(now - before, moved=self._moved)
            before = now
            if self._moved:
                self.too_long = False
            elif mark is not None:
                self._say(mark)

    def _move(self) -> None:
        self._moved = True

    def _say(self, mark: Literal["said", "limit"]) -> None:
        run = run_of(asyncio.current_task(self._loop))
        frame = sys._current_frames().get(self._thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        logger.error(
            "the event loop has stood still for %.1f s, and with it every run of this process; blocked by: %s%s\n%s",
            self._stillness.seconds, run, self._what_now(mark), stack,
        )  # fmt: skip
        if mark == "limit":
            self.too_long = True
            if self._replace is not None:
                self._replace(run)

    def _what_now(self, mark: Literal["said", "limit"]) -> str:
        if mark == "said":
            return ""
        if self._replace is None:
            return "; nobody replaces this process: its leases are not renewed until it moves again"
        return "; the process is replaced"


def run_of(task: asyncio.Task[Any] | None) -> str:
    """The run in whose context a task goes on, the task groups of its handler included."""
    # Task.get_context is newer than 3.11; the collector knows what a task refers to
    for found in gc.get_referents(task) if task is not None else ():
        if isinstance(found, contextvars.Context) and "run" in (known := found.get(about, {})):
            return str(known["run"])
    return NOBODY
