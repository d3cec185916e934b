"""A watchdog for the worker's event loop.

A handler that blocks inside a coroutine stops every other run of its process. The watchdog runs in the heartbeat's thread. After
a second it logs the block with the stack of the event loop. After a longer limit it asks the supervisor to replace the process,
and the heartbeats stop, so that the runs become free even without a supervisor.
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
TICK = 0.25  # seconds between two checks
LOG_AFTER = 1.0  # seconds
LEAST_LIMIT = 5.0  # seconds; the limit is the length of the lease, but at least this
NO_RUN = "nobody"  # stands for the run if the blocking task belongs to no run; the supervisor reads this word

Mark = Literal["log", "limit"]


class BlockTimer:
    """Measure how long the event loop has been blocked while the watchdog itself was running.

    Time in which the whole process was suspended does not count, because then no handler is the cause.

    Args:
        limit: Seconds after which the loop has been blocked for too long.
    """

    def __init__(self, limit: float) -> None:
        self.seconds = 0.0
        self._limit, self._before = limit, 0.0

    def tick(self, passed: float, *, moved: bool) -> Mark | None:
        """Record one interval, and return which limit the event loop has exceeded in it.

        Args:
            passed: Seconds since the last tick. At most two regular intervals count.
            moved: True if the event loop ran in this interval.

        Returns:
            "log" when the block should be logged, "limit" when it has lasted too long, else None.
        """
        self._before, self.seconds = self.seconds, 0.0 if moved else self.seconds + min(passed, 2 * TICK)
        if self._passes(self._limit):
            return "limit"
        return "log" if self._passes(LOG_AFTER) else None

    def _passes(self, mark: float) -> bool:
        return self._before < mark <= self.seconds


class LoopWatchdog:
    """Watch the event loop that runs when the object is created.

    Args:
        clock: The time source.
        lease: Length of the worker's lease in seconds. A longer block makes the supervisor replace the process.
        replace: A function that asks the supervisor to replace this process. Its argument is the id of the run that blocks the
            loop. None without a supervisor.
    """

    def __init__(self, clock: Clock, lease: float, replace: Callable[[str], None] | None) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._clock, self._replace = clock, replace
        self._timer = BlockTimer(max(lease, LEAST_LIMIT))
        self._moved = True
        self.too_long = False  # while this is true, the heartbeat renews no lease

    async def watch(self) -> None:
        """Watch the loop until this task is cancelled. The task runs on the event loop of another thread."""
        before = self._clock.monotonic()
        while True:
            if self._moved:
                self._moved = False
                self._loop.call_soon_threadsafe(self._move)
            await self._clock.asleep(TICK)
            now = self._clock.monotonic()
            mark = self._timer.tick(now - before, moved=self._moved)
            before = now
            if self._moved:
                self.too_long = False
            elif mark is not None:
                self._report(mark)

    def _move(self) -> None:
        self._moved = True

    def _report(self, mark: Mark) -> None:
        run = run_of(asyncio.current_task(self._loop))
        frame = sys._current_frames().get(self._thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        logger.error(
            "event loop blocked for %.1f s, and with it every run of this process; blocked by: %s%s\n%s",
            self._timer.seconds, run, self._consequence(mark), stack,
        )  # fmt: skip
        if mark == "limit":
            self.too_long = True
            if self._replace is not None:
                self._replace(run)

    def _consequence(self, mark: Mark) -> str:
        if mark == "log":
            return ""
        if self._replace is None:
            return "; no supervisor replaces this process: its leases are not renewed until the event loop runs again"
        return "; the supervisor replaces this process"


def run_of(task: asyncio.Task[Any] | None) -> str:
    """Return the id of the run that a task works for, or NO_RUN.

    Tasks that a handler has started, for example in a TaskGroup, count as tasks of its run.
    """
    # Python 3.11 has no Task.get_context, so the context is found through the garbage collector's references of the task.
    for found in gc.get_referents(task) if task is not None else ():
        if isinstance(found, contextvars.Context) and "run" in (known := found.get(about, {})):
            return str(known["run"])
    return NO_RUN
