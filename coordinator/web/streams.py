"""The streams of events that callers have open, and the end of all of them when the server stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from coordinator.web.problems import Problem

T = TypeVar("T")


class OpenStreams:
    """Count the open streams of each caller, and end waiting requests when the server stops.

    A server that stops waits for its open requests. Streams would never end on their own.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()
        self._closing: set[asyncio.Future[None]] = set()
        self._readers: set[asyncio.Task[None]] = set()
        self._closed = False

    def open(self, caller: str) -> Callable[[], None]:
        """Take a place for a stream of the caller. Return the function that frees it.

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
        self._open[caller] += 1
        return partial(self._free, caller)

    def _free(self, caller: str) -> None:
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]

    def __len__(self) -> int:
        """Return the number of open streams."""
        return self._open.total()

    def close(self) -> None:
        """End all streams and waiting requests. Streams and requests that come later end immediately too."""
        self._closed = True
        for closing in self._closing:
            if not closing.done():
                closing.set_result(None)

    async def until_closed(self, work: Awaitable[T], timeout: float | None = None) -> asyncio.Future[T]:
        """Wait until the work is done, the time is over or the server stops. Return the work, which may be unfinished.

        The caller cancels unfinished work, or waits for it again.
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
        """Return True if the server stops."""
        return self._closed
