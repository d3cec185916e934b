"""Keep a board up to date for all viewers of a process."""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress

from coordinator.client.async_client import AsyncClient
from coordinator.client.operations import lists as list_operations
from coordinator.clock import Clock, SystemClock
from coordinator.errors import CoordinatorError
from coordinator.feed.board import Board
from coordinator.feed.events import RunLook
from coordinator.feed.feed import Feed
from coordinator.feed.lateness import read_lateness
from coordinator.feed.looks import look_at, oldest_queued, owned_runs

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0  # between two readings of counts, ages and heartbeats
PACE_SECONDS = 0.1  # between two versions of the board
RETRY_SECONDS = 1.0
MOST_ERROR = 300  # characters of an error that the board shows


class Watcher:
    """A watcher: it reads the feed and the overview of a namespace into a board, while the board has viewers.

    The first viewer starts the watcher. The watcher ends after the last viewer has left. Every viewer gets the same board.

    Attributes:
        board: The board.
        version: The version of the board. It grows with each change.
    """

    def __init__(self, client: AsyncClient, clock: Clock | None = None, linger: float = 0.0) -> None:
        """Make a watcher, which starts with its first viewer.

        Args:
            client: The client that reads the namespace.
            clock: The clock.
            linger: Seconds for which the watcher continues after its last viewer has left. A page that is reloaded within this time
                still shows the history.
        """
        self._linger = linger
        self._leaving: asyncio.Task[None] | None = None
        self._client = client
        self._clock = clock or SystemClock()
        self._task: asyncio.Task[None] | None = None
        self._viewers: set[asyncio.Event] = set()
        self._stale = asyncio.Event()
        # Runs that have not changed since the feed began. They are kept apart from the looks of the feed, because the feed compares
        # each of its looks with the previous one.
        self._other_looks: dict[str, RunLook] = {}
        self._oldest: Mapping[str, float] = {}
        self._oldest_at = float("-inf")
        self.board = Board()
        self.version = 0

    @property
    def viewers(self) -> int:
        """The number of viewers."""
        return len(self._viewers)

    async def boards(self) -> AsyncGenerator[Board, None]:
        """Yield the board to a new viewer: when it is first read, and again after each change. A slow viewer skips versions."""
        changed = asyncio.Event()
        self._viewers.add(changed)
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._task is None:
            self.board = Board()
            self._task = asyncio.create_task(self._watch())
        elif self.board.overview is not None:
            changed.set()
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield self.board
        finally:
            self._viewers.discard(changed)
            if not self._viewers and not self._linger:
                await self.close()
            elif not self._viewers:
                self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        await self._clock.asleep(self._linger)
        self._leaving = None
        await self.close()

    async def close(self) -> None:
        """Stop reading. The next viewer starts the watcher again."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        tasks = [asyncio.create_task(self._refresh_often()), asyncio.create_task(self._follow())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        """Add the events of the feed to the board, and read the workers' runs again when they may have changed."""
        feed = Feed(self._client, self._clock)
        self.board.looks = ChainMap(feed.looks, self._other_looks)
        while True:
            try:
                async with aclosing(feed.batches()) as batches:
                    async for batch in batches:
                        self.board.error = batch.error
                        if batch.error:
                            self._show()
                            continue
                        self.board.add(batch.events, batch.now)
                        if batch.events:
                            self._show()
                        self._stale.set()
            except Exception as error:  # noqa: BLE001  # _fail logs it with its traceback
                self._fail(error)
                await self._clock.asleep(RETRY_SECONDS)

    async def _refresh_often(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._stale.wait()
            self._stale.clear()
            began = self._clock.monotonic()
            try:
                await self._refresh()
                self._show()
            except Exception as error:  # noqa: BLE001  # _fail logs it with its traceback
                self._fail(error)
            # A large fleet takes longer to read, and is read less often.
            await self._clock.asleep(max(PACE_SECONDS, 2 * (self._clock.monotonic() - began)))

    async def _refresh(self) -> None:
        board = self.board
        overview, owned = await asyncio.gather(self._client._do(list_operations.count), self._client._do(owned_runs))
        oldest = await self._read_oldest()
        board.late = await self._client._do(read_lateness, overview.groups)
        unknown = [id for ids in owned.values() for id in ids if id not in board.looks]
        found, now = await self._client._do(look_at, unknown)
        for id in self._other_looks.keys() - {id for ids in owned.values() for id in ids}:
            del self._other_looks[id]
        self._other_looks.update({id: look for id, look in found.items() if look is not None})
        board.overview, board.owned, board.oldest, board.error = overview, owned, oldest, ""
        board.add((), now)
        board.measure_queues()

    async def _read_oldest(self) -> Mapping[str, float]:
        """Return when the oldest run of each route was queued. It is read once a second, however often runs change."""
        now = self._clock.monotonic()
        if now - self._oldest_at >= REFRESH_SECONDS:
            self._oldest, self._oldest_at = await self._client._do(oldest_queued), now
        return self._oldest

    def _fail(self, error: Exception) -> None:
        """Show an error on the board. The watcher continues, because later viewers depend on it."""
        if isinstance(error, CoordinatorError):
            self.board.error = str(error)
        else:
            log.error("the board could not be read: %s: %s", type(error).__name__, error, exc_info=error)
            self.board.error = f"{type(error).__name__}: {error}"[:MOST_ERROR]
        self._show()

    def _show(self) -> None:
        self.version += 1
        for changed in self._viewers:
            changed.set()
