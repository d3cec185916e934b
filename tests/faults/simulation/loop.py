"""An event loop with a clock of its own, in which whole processes run, stand still and die.

Time passes only when nobody has anything to do. What runs belongs to a process by its context: when that dies, nothing of it runs
ever again, as after a kill -9; while it is paused, everything waits, as after a SIGSTOP.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

Call = Callable[..., Any]
START = 1_700_000_000.0  # Unix time when a simulation begins
FEW = 64  # cancelled timers that nobody minds
TICK = 1e-6  # the least time that passes for who waits, as with any clock: else what rounding leaves over is waited for for ever
MANY_TURNS = 100_000  # in which something is always to be done, and no time passes: then it never will


class Process:
    """A simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.backlog: list[Callback] = []


current: ContextVar[Process | None] = ContextVar("current", default=None)


class Callback:
    """What asyncio knows as a handle, and nothing more: a seed makes thousands."""

    __slots__ = ("_loop", "args", "call", "context", "over", "timed")

    def __init__(
        self, loop: VirtualLoop, call: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._loop, self.call, self.args = loop, call, args
        self.context = context if context is not None else copy_context()
        self.over = False
        self.timed = False

    def cancel(self) -> None:
        if not self.over:
            self.over = True
            self.call, self.args = _nothing, ()  # what it would have been called with may go
            self._loop.cancelled += self.timed

    def cancelled(self) -> bool:
        return self.over


def _nothing() -> None:
    """What is left to do for a callback that was cancelled."""


class NumberedTask(asyncio.Task[Any]):
    """Its hash is its number: else the order of a set of tasks would follow addresses, and no seed would repeat.

    The first who asks is asyncio itself, which keeps a set of all tasks, when one is made: so they are numbered in their order.
    """

    _numbers = itertools.count()
    _number: int | None = None
    _log_destroy_pending: bool

    def __hash__(self) -> int:
        if self._number is None:
            self._number = next(self._numbers)
        return self._number


class Stuck(Exception):
    """Nobody has anything to do, and nobody ever will; or somebody has, for ever, in no time."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of an ordinary loop; where all wait, the clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        NumberedTask._numbers = itertools.count()
        self._virtual = 0.0
        self._calls: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self.cancelled = 0  # timers that are still in the list
        self.tasks: list[NumberedTask] = []
        self.turns = 0
        self._moved = 0  # the turn in which time passed
        self.nobody = copy_context()  # the context of the server and the network
        self.nobody.run(current.set, None)

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
        self._calls.extend(process.backlog)
        process.backlog = []

    def abandon_all(self) -> None:
        """What has not ended is thrown away; its clean-up finds neither loop nor server."""
        for task in self.tasks:
            if not task.done():
                try:
                    task.get_coro().close()
                except BaseException:  # noqa: BLE001  # a clean-up that would wait can't
                    continue
        self.tasks.clear()

    # -- what asyncio asks of a loop; the same as an ordinary one does, without what nobody here needs

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> NumberedTask:
        task = NumberedTask(coro, loop=self, name=name or "-", context=context)
        task._log_destroy_pending = False  # a process that was killed leaves its tasks where they are
        self.tasks.append(task)
        return task

    def call_soon(self, callback: Call, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        call = Callback(self, callback, args, context)
        self._calls.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_at(self, when: float, callback: Call, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        call = Callback(self, callback, args, context)
        call.timed = True
        heapq.heappush(self._timers, (when, next(self._order), call))
        return call

    def call_later(self, delay: float, callback: Call, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        return self.call_at(self._virtual + max(delay, TICK), callback, *args, context=context)

    def get_debug(self) -> bool:
        return False

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""

    def _run_once(self) -> None:
        calls, timers = self._calls, self._timers
        self.turns += 1
        if self.cancelled > FEW and self.cancelled * 2 > len(timers):
            self._timers = timers = [timer for timer in timers if not timer[2].over]
            heapq.heapify(timers)
            self.cancelled = 0
        while timers and timers[0][2].over:
            heapq.heappop(timers)
            self.cancelled -= 1
        if not calls:
            if not timers:
                raise Stuck("nobody has anything to do")
            self._virtual, self._moved = max(self._virtual, timers[0][0]), self.turns
        elif self.turns - self._moved > MANY_TURNS:
            raise Stuck("no time passes")
        while timers and timers[0][0] <= self._virtual:
            call = heapq.heappop(timers)[2]
            call.timed = False
            if call.over:
                self.cancelled -= 1
            else:
                calls.append(call)
        for _ in range(len(calls)):
            call = calls.popleft()
            if call.over:
                continue
            process = call.context.get(current)
            if process is not None:
                if not process.alive:
                    continue
                if process.paused:
                    process.backlog.append(call)
                    continue
            try:
                call.context.run(call.call, *call.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  # as in an ordinary loop: whoever handles what escapes decides
                self.call_exception_handler({"message": "a callback raised", "exception": error})


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

    def asleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return asyncio.sleep(max(seconds, TICK))
