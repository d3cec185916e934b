"""The open streams and waiting requests of callers. They are limited for each caller, and end when the server stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from coordinator.web.problems import Problem

T = TypeVar("T")


class OpenStreams:
    """The counts of open streams and waiting requests of each caller, and a way to end them when the server stops.

    A server that stops waits for its open requests, and a stream would not end on its own.

    Args:
        limit: The largest number of streams of one caller.
        waits: The largest number of waiting requests of one caller.
    """

    def __init__(self, limit: int, waits: int = 0) -> None:
        self._limit, self._most_waits = limit, waits
        self._open: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self._closing: set[asyncio.Future[None]] = set()
        self._readers: set[asyncio.Task[None]] = set()
        self._closed = False

    def open(self, caller: str) -> Callable[[], None]:
        """Count one more open stream of the caller. Return a function that counts it as closed.

        Raises:
            Problem: The caller has too many open streams (429).
        """
        if self._open[caller] >= self._limit:
            raise Problem(
                429,
                "TooManyStreams",
                f"The caller has {self._limit} open streams: close one, or read the run without a stream.",
                {"Retry-After": "5"},
            )
        return _take_place(self._open, caller)

    def open_wait(self, caller: str) -> Callable[[], None]:
        """Count one more waiting request of the caller. Return a function that counts it as ended.

        Raises:
            Problem: The caller has too many waiting requests (429).
        """
        if self._waits[caller] >= self._most_waits:
            raise Problem(
                429,
                "TooManyWaits",
                f"The caller has {self._most_waits} requests that wait: ask without waiting, or later.",
                {"Retry-After": "5"},
            )
        return _take_place(self._waits, caller)

    def __len__(self) -> int:
        """Return the number of open streams of all callers."""
        return self._open.total()

    @property
    def waits(self) -> int:
        """The number of waiting requests of all callers."""
        return self._waits.total()

    def close(self) -> None:
        """End all streams and waiting requests. Streams and requests that come later end immediately too."""
        self._closed = True
        for closing in self._closing:
            if not closing.done():
                closing.set_result(None)

    async def until_closed(self, work: Awaitable[T], timeout: float | None = None) -> asyncio.Future[T]:
        """Wait until the work is done, the time is over, or `close` is called. Return the work as a future.

        If the future is not done, the caller cancels it, or waits for it again.

        Args:
            work: An awaitable.
            timeout: Seconds to wait; None for no limit.
        """
        task = asyncio.ensure_future(work)
        if self._closed:
            return task
        closing = asyncio.get_running_loop().create_future()
        self._closing.add(closing)
        try:
            await asyncio.wait({task, closing}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            task.cancel()
            raise
        finally:
            self._closing.discard(closing)
        return task

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start the reader of a stream as a task. A reference to the task is kept until it has ended."""
        task = asyncio.get_running_loop().create_task(work)
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)
        return task

    @property
    def closed(self) -> bool:
        """Return True if `close` was called, because the server stops."""
        return self._closed


def _take_place(places: Counter[str], caller: str) -> Callable[[], None]:
    places[caller] += 1
    return partial(_free_place, places, caller)


def _free_place(places: Counter[str], caller: str) -> None:
    places[caller] -= 1
    if not places[caller]:
        del places[caller]
