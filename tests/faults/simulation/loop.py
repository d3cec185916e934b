"""An event loop with a clock of its own, in which whole processes run, stand still and die.

Time passes only when nobody has anything to do. What runs belongs to a process by its context: when that dies, nothing of it runs
ever again, as after a kill -9; while it is paused, everything waits, as after a SIGSTOP.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

START = 1_700_000_000.0  # Unix time when a simulation begins


class Process:
    """A simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.backlog: list[asyncio.Handle] = []

    def may_run(self, handle: asyncio.Handle) -> bool:
        if self.alive and self.paused:
            self.backlog.append(handle)
        return self.alive and not self.paused


current: ContextVar[Process | None] = ContextVar("current", default=None)


class NumberedTask(asyncio.Task[Any]):
    """Its hash is its number: else the order of a set of tasks would follow addresses, and no seed would repeat."""

    def __init__(self, number: int, coro: Any, **more: Any) -> None:
        self.number = number
        super().__init__(coro, **more)
        self._log_destroy_pending = False  # a process that was killed leaves its tasks where they are

    def __hash__(self) -> int:
        return self.number


class Stuck(Exception):
    """Nobody has anything to do, and nobody ever will."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of an ordinary loop; where all wait, the clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0
        self._numbers = itertools.count()
        self.tasks: list[NumberedTask] = []
        self.turns = 0
        self.set_task_factory(self._numbered)
        self.nobody = copy_context()  # the context of the server and the network
        self.nobody.run(current.set, None)

    def _numbered(self, loop: Any, coro: Any, **more: Any) -> NumberedTask:
        task = NumberedTask(next(self._numbers), coro, loop=loop, **more)
        self.tasks.append(task)
        return task

    def time(self) -> float:
        return self._virtual

    def leap(self, seconds: float) -> None:
        """Time passes in which nobody does anything."""
        self._virtual += seconds

    def start(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs something in a process."""
        context = copy_context()
        context.run(current.set, process)
        return context.run(self.create_task, work)

    def resume(self, process: Process) -> None:
        process.paused = False
        handles, process.backlog = process.backlog, []
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def abandon_all(self) -> None:
        """What has not ended is thrown away; its clean-up finds neither loop nor server."""
        for task in self.tasks:
            if not task.done():
                try:
                    task.get_coro().close()
                except BaseException:  # noqa: BLE001  # a clean-up that would wait can't
                    continue
        self.tasks.clear()

    # -- what BaseEventLoop asks of a loop

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        self.turns += 1
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise Stuck("nobody has anything to do")
            self._virtual = max(self._virtual, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._virtual:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(current)
            if process is None or process.may_run(handle):
                handle._run()


class VirtualClock:
    """The clock that the code under simulation is given."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return START + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a thread can't wait in a simulation")

    async def asleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
