"""An event loop with a virtual clock, in which whole processes run, pause and die.

Time passes only when no callback is ready. Each callback belongs to a process by its context. After a process dies,
none of its callbacks runs again, as after kill -9. While it is paused, all of them wait, as after SIGSTOP.
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
START = 1_700_000_000.0  # Unix time at the start of a simulation
FEW = 64  # the number of cancelled timers that may stay in the list
TICK = 1e-6  # the shortest wait, as with any clock: otherwise a remainder of rounding would be waited for endlessly
MANY_TURNS = 100_000  # turns of the loop without any time passing, after which it counts as stuck


class Process:
    """A simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.backlog: list[Callback] = []


current: ContextVar[Process | None] = ContextVar("current", default=None)


class Callback:
    """A minimal replacement of asyncio's Handle, because a seed creates thousands."""

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
            self.call, self.args = _nothing, ()  # Its arguments are no longer needed.
            self._loop.cancelled += self.timed

    def cancelled(self) -> bool:
        return self.over


def _nothing() -> None:
    """Do nothing: the body of a cancelled callback."""


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number.

    Otherwise the order of a set of tasks would depend on addresses, and seeds would not repeat. asyncio itself asks for
    the hash first, when it adds a new task to its set of all tasks. So tasks are numbered in the order of their
    creation.
    """

    _numbers = itertools.count()
    _number: int | None = None
    _log_destroy_pending: bool

    def __hash__(self) -> int:
        if self._number is None:
            self._number = next(self._numbers)
        return self._number


class Stuck(Exception):
    """No callback is ready and none ever will be, or callbacks are always ready and no time passes."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Run callbacks in the order of an ordinary loop. When all tasks wait, the clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        NumberedTask._numbers = itertools.count()
        self._virtual = 0.0
        self._calls: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self.cancelled = 0  # cancelled timers that are still in the list
        self.tasks: list[NumberedTask] = []
        self.turns = 0
        self._moved = 0  # the last turn in which time passed
        self.outside = copy_context()  # the context of the server and the network
        self.outside.run(current.set, None)

    def time(self) -> float:
        return self._virtual

    def leap(self, seconds: float) -> None:
        """Let time pass in which nothing happens."""
        self._virtual += seconds

    def start(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in a process."""
        context = copy_context()
        context.run(current.set, process)
        return context.run(self.create_task, work)

    def resume(self, process: Process) -> None:
        process.paused = False
        self._calls.extend(process.backlog)
        process.backlog = []

    def abandon_all(self) -> None:
        """Throw away all unfinished tasks. Their clean-up finds neither loop nor server."""
        for task in self.tasks:
            if not task.done():
                try:
                    task.get_coro().close()
                except BaseException:  # noqa: BLE001  # A clean-up that waits cannot work here.
                    continue
        self.tasks.clear()

    # -- the interface of an asyncio loop, without the parts that a simulation does not need

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> NumberedTask:
        task = NumberedTask(coro, loop=self, name=name or "-", context=context)
        task._log_destroy_pending = False  # The tasks of a killed process stay where they are.
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
        """Do nothing: there are no I/O events."""

    def _write_to_self(self) -> None:
        """Do nothing: no thread sleeps in a selector."""

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
                raise Stuck("no callback is ready")
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
            except BaseException as error:  # noqa: BLE001  # As in an ordinary loop, the exception handler decides.
                self.call_exception_handler({"message": "a callback raised", "exception": error})


class VirtualClock:
    """The clock of the simulated code."""

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
