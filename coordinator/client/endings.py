"""Waiting for endings: woken, not polled.

One reader per client takes hints from its wake lists and puts them into the boxes of who waits. A hint only says "look now":
who waits asks again after a hint and every 5 s, so that a lost one costs seconds and never an ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, Protocol, TypeVar

from coordinator.clock import Clock
from coordinator.config import Address
from coordinator.errors import CoordinatorError, ResultTimeout
from coordinator.store.keys import Keys
from coordinator.store.plans import clients as client_plans
from coordinator.store.transport.wire import AsyncBell, AsyncWire, Bell, Wire, drive, drive_async

ASK_AGAIN = 5.0
BLOCK = 5.0
BLOCK_MEMORY = 0.1  # fakeredis has no connection that could be cut under a reader
IDLE = 60.0
AFTER_TROUBLE = 0.5
HINTS_PER_READ = 500


class Watch:
    """Which of some runs to ask about now, and for how long to rest. Pure: times are given."""

    def __init__(self, ids: Collection[str], now: float, timeout: float | None) -> None:
        self.open = dict.fromkeys(ids)
        self._timeout = timeout
        self._until = None if timeout is None else now + timeout
        self._all_at = now
        self._hinted: dict[str, None] = {}

    def to_ask(self, now: float) -> list[str]:
        hinted, self._hinted = self._hinted, {}
        if now < self._all_at:
            return [id for id in hinted if id in self.open]
        self._all_at = now + ASK_AGAIN
        return list(self.open)

    def ended(self, id: str) -> None:
        self.open.pop(id, None)

    def hint(self, ids: Collection[str]) -> None:
        self._hinted.update(dict.fromkeys(ids))

    def left(self, now: float) -> float | None:
        """How much of the time that was given is left."""
        return None if self._until is None else max(0.0, self._until - now)

    def rest(self, now: float) -> float:
        """Seconds until the next asking without a hint; ResultTimeout where the time is over."""
        left = self.left(now)
        if left == 0.0:
            raise self.too_late()
        until_all = max(0.0, self._all_at - now)
        return until_all if left is None else min(left, until_all)

    def too_late(self) -> ResultTimeout:
        first = next(iter(self.open), "")
        what = f"run {first} has" if len(self.open) == 1 else f"{len(self.open)} runs, {first} among them, have"
        return ResultTimeout(f"{what} not ended within {self._timeout:g} s")


class _Box(Protocol):
    def put(self, id: str) -> None: ...


B = TypeVar("B", bound=_Box)


class _Boxes(Generic[B]):
    """Who waits for which run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boxes: dict[str, list[B]] = {}
        self._empty_since = clock.monotonic()
        self.lock = threading.Lock()

    def add(self, ids: Collection[str], box: B) -> None:
        with self.lock:
            for id in ids:
                self._boxes.setdefault(id, []).append(box)

    def remove(self, ids: Collection[str], box: B) -> None:
        with self.lock:
            for id in ids:
                boxes = self._boxes[id]
                boxes.remove(box)
                if not boxes:
                    del self._boxes[id]
            self._empty_since = self._clock.monotonic()

    def deliver(self, ids: Collection[str]) -> None:
        with self.lock:
            for id in ids:
                for box in self._boxes.get(id, ()):
                    box.put(id)

    def idle(self) -> bool:
        """Whether nobody has waited for long. With the lock held."""
        return not self._boxes and self._clock.monotonic() - self._empty_since > IDLE


Places = Mapping[str, Keys]


# ---- threads ---------------------------------------------------------------------------------------------------------


class Mailbox:
    """Hints for one waiting thread."""

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()

    def put(self, id: str) -> None:
        self._queue.put(id)

    def take(self, seconds: float) -> set[str]:
        """The hints that are there; waits for the first one."""
        self._start()
        with contextlib.suppress(queue.Empty):
            hints = {self._queue.get(timeout=seconds)}
            with contextlib.suppress(queue.Empty):
                while True:
                    hints.add(self._queue.get_nowait())
            return hints
        return set()


class Hints:
    """The reader of a Client: a thread, from the first wait until nobody has waited for long."""

    def __init__(self, address: Address, wire: Wire, clock: Clock) -> None:
        self.client = uuid.uuid4().hex
        self._address, self._wire = address, wire
        self._boxes: _Boxes[Mailbox] = _Boxes(clock)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._bell: Bell | None = None

    @contextmanager
    def mailbox(self, ids: Collection[str], places: Places) -> Iterator[Mailbox]:
        box = Mailbox(lambda: self._start(places))
        self._boxes.add(ids, box)
        try:
            yield box
        finally:
            self._boxes.remove(ids, box)

    def _start(self, places: Places) -> None:
        with self._boxes.lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._read, args=(places,), name="coordinator-hints", daemon=True
                )
                self._thread.start()

    def _read(self, places: Places) -> None:
        bell = self._bell = Bell(self._address)
        try:
            while not self._ends():
                self._next(bell, places)
        except Exception:
            if not self._closed.is_set():  # redis-py raises anything where its connection is closed under it
                raise
        finally:
            with self._boxes.lock:
                if self._thread is threading.current_thread():
                    self._thread = None  # the next wait starts another
            bell.close()

    def _next(self, bell: Bell, places: Places) -> None:
        seconds = BLOCK_MEMORY if self._address.scheme == "memory" else BLOCK
        try:
            if found := bell.wait(list(places), seconds):
                self._boxes.deliver([found[1].decode()])  # who waits for that one need not wait for the others
                self._boxes.deliver(
                    drive(self._wire, client_plans.hints(places[found[0]], self.client, HINTS_PER_READ), timeout=1.0)
                )
        except CoordinatorError:
            self._closed.wait(AFTER_TROUBLE)  # whoever waits asks every 5 s, and is told what is wrong

    def _ends(self) -> bool:
        with self._boxes.lock:
            if self._closed.is_set() or self._boxes.idle():
                self._thread = None
                return True
            return False

    def close(self) -> None:
        self._closed.set()
        thread, bell = self._thread, self._bell
        if thread is None or thread is threading.current_thread():
            return
        if bell is not None and self._address.scheme != "memory":
            bell.close()  # ends the wait that is under way
        thread.join(1.0)


# ---- event loops -----------------------------------------------------------------------------------------------------


class AsyncMailbox:
    """Hints for one waiting task."""

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start
        self._hints: set[str] = set()
        self._any = asyncio.Event()

    def put(self, id: str) -> None:
        self._hints.add(id)
        self._any.set()

    async def take(self, seconds: float) -> set[str]:
        self._start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._any.wait()
        self._any.clear()
        hints, self._hints = self._hints, set()
        return hints


class AsyncHints:
    """The reader of an AsyncClient: a task, from the first wait until nobody has waited for long."""

    def __init__(self, address: Address, wire: AsyncWire, clock: Clock) -> None:
        self.client = uuid.uuid4().hex
        self._address, self._wire, self._clock = address, wire, clock
        self._boxes: _Boxes[AsyncMailbox] = _Boxes(clock)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def mailbox(self, ids: Collection[str], places: Places) -> AsyncIterator[AsyncMailbox]:
        box = AsyncMailbox(lambda: self._start(places))
        self._boxes.add(ids, box)
        try:
            yield box
        finally:
            self._boxes.remove(ids, box)

    def _start(self, places: Places) -> None:
        if (self._task is None or self._task.done()) and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._read(places), name="coordinator-hints")

    async def _read(self, places: Places) -> None:
        bell = AsyncBell(self._address)
        try:
            while not self._boxes.idle():
                try:
                    if found := await bell.wait(list(places), BLOCK):
                        self._boxes.deliver([found[1].decode()])  # who waits for that one need not wait for the others
                        plan = client_plans.hints(places[found[0]], self.client, HINTS_PER_READ)
                        self._boxes.deliver(await drive_async(self._wire, plan, timeout=1.0))
                except CoordinatorError:
                    await self._clock.asleep(AFTER_TROUBLE)
        finally:
            await bell.close()

    async def close(self) -> None:
        self._closed = True
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()  # again: on 3.11 one cancel may be lost inside a timeout that ends at the same moment
            await asyncio.wait({task}, timeout=0.5)
