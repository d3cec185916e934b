"""Mailboxes: each waiting call has one, and the client's hint reader puts the ids of ended runs into them."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

from coordinator.clock import Clock

IDLE = 60.0  # seconds without a waiting call after which a hint reader ends


class _Box(Protocol):
    def put(self, id: str) -> None: ...


B = TypeVar("B", bound=_Box)


class Mailboxes(Generic[B]):
    """A registry of mailboxes by run id. A call that waits for runs registers its mailbox, and gets the ids of ended runs in it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boxes: dict[str, list[B]] = {}
        self._empty_since = clock.monotonic()
        self.lock = threading.Lock()

    def add(self, ids: Collection[str], box: B) -> None:
        """Register a mailbox for hints about these runs."""
        with self.lock:
            for id in ids:
                self._boxes.setdefault(id, []).append(box)

    def remove(self, ids: Collection[str], box: B) -> None:
        """Remove a mailbox that was registered for these runs."""
        with self.lock:
            for id in ids:
                boxes = self._boxes[id]
                boxes.remove(box)
                if not boxes:
                    del self._boxes[id]
            self._empty_since = self._clock.monotonic()

    def deliver(self, ids: Collection[str]) -> None:
        """Put hints about these runs into the mailboxes that wait for them."""
        with self.lock:
            for id in ids:
                for box in self._boxes.get(id, ()):
                    box.put(id)

    def waits_for_others(self, id: str) -> bool:
        """Return True if a call waits for a run other than this one."""
        with self.lock:
            return len(self._boxes) > (id in self._boxes)

    def idle(self) -> bool:
        """Return True if no call has waited for a minute. The caller holds the lock."""
        return not self._boxes and self._clock.monotonic() - self._empty_since > IDLE


class Mailbox:
    """The hints for one waiting thread: the ids of runs that have ended."""

    def __init__(self, start: Callable[[], None]) -> None:
        """Store the function that starts the hint reader."""
        self._start = start
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()

    def put(self, id: str) -> None:
        """Add a hint that the run with this id has ended."""
        self._queue.put(id)

    def take(self, seconds: float) -> set[str]:
        """Take and return all hints. If there is none, wait for the first hint, up to this number of seconds."""
        self._start()
        with contextlib.suppress(queue.Empty):
            hints = {self._queue.get(timeout=seconds)}
            with contextlib.suppress(queue.Empty):
                while True:
                    hints.add(self._queue.get_nowait())
            return hints
        return set()


class AsyncMailbox:
    """The hints for one waiting task: the ids of runs that have ended."""

    def __init__(self, start: Callable[[], None]) -> None:
        """Store the function that starts the hint reader."""
        self._start = start
        self._hints: set[str] = set()
        self._any = asyncio.Event()

    def put(self, id: str) -> None:
        """Add a hint that the run with this id has ended."""
        self._hints.add(id)
        self._any.set()

    async def take(self, seconds: float) -> set[str]:
        """Take and return all hints. If there is none, wait for the first hint, up to this number of seconds."""
        self._start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._any.wait()
        self._any.clear()
        hints, self._hints = self._hints, set()
        return hints
