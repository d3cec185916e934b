"""Read outputs for an event loop: one task and one connection for each partition in which outputs are read."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinator.client.output.feed import AFTER_TROUBLE, BLOCK
from coordinator.client.output.subscriptions import Subscription, Subscriptions
from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.model.address import Address
from coordinator.store.keys import Keys
from coordinator.store.plans import output as output_plans
from coordinator.store.transport.wire import AsyncBell, AsyncWire, drive_async


class AsyncInbox(Subscription):
    """The inbox of a reader in an event loop."""

    def __init__(self) -> None:
        self._any = asyncio.Event()
        super().__init__(self._any.set)

    async def wait(self, seconds: float | None) -> bool:
        """Wait until `is_ready` is true. Return False if it is not within this number of seconds; None waits forever."""
        while not self.is_ready():
            self._any.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._any.wait()
            except TimeoutError:
                return False
        return True


class AsyncFeed:
    """The feed of an AsyncClient: it reads the outputs of runs from the server, and puts their entries into inboxes."""

    def __init__(self, address: Address, wire: AsyncWire, clock: Clock) -> None:
        self.client = uuid.uuid4().hex
        self._address, self._wire, self._clock = address, wire, clock
        self._parts: dict[int, _AsyncPart] = {}
        self._closed = False

    @asynccontextmanager
    async def subscribe(self, keys: Keys, id: str, cursor: str) -> AsyncIterator[AsyncInbox]:
        """Open an inbox, as a context manager. While it is open, it gets the entries of a run's output.

        Args:
            keys: The keys of the run's partition.
            id: The run.
            cursor: The id of the entry after which the reader wants entries.
        """
        part = self._parts.get(keys.partition)
        if part is None:
            part = self._parts[keys.partition] = _AsyncPart(keys, self.client)
        inbox, key = AsyncInbox(), keys.output(id)
        part.streams.add(key, cursor, inbox)
        try:
            await self._start(part)
            yield inbox
        finally:
            part.streams.remove(key, inbox)

    async def _start(self, part: _AsyncPart) -> None:
        if part.task is None or part.task.done():
            if not self._closed:
                part.task = asyncio.get_running_loop().create_task(self._read(part), name="coordinator-output")
        elif part.blocking and not part.interrupted:
            part.interrupted = True
            try:
                await drive_async(self._wire, output_plans.interrupt(part.streams.keys, self.client))
            except BaseException:
                part.interrupted = False  # the next reader interrupts the read
                raise

    async def _read(self, part: _AsyncPart) -> None:
        while part.streams and not self._closed:  # again, because a reader may subscribe while the connection is closed
            bell = AsyncBell(self._address)
            try:
                await self._read_with(bell, part)
            finally:
                part.blocking = part.interrupted = False
                await bell.close()

    async def _read_with(self, bell: AsyncBell, part: _AsyncPart) -> None:
        """Read entries on one connection and put them into the inboxes, until no reader is subscribed."""
        while part.streams:
            part.blocking = True
            try:
                entries = await bell.read(*part.streams.wanted(), BLOCK)
            except CoordinatorError:
                part.blocking = part.interrupted = False
                await self._clock.asleep(AFTER_TROUBLE)
                part.streams.deliver({})
                continue
            part.blocking = part.interrupted = False
            part.streams.deliver(entries)
            part.streams.doubt_silent(self._clock.monotonic(), BLOCK)

    async def close(self) -> None:
        """End the tasks of the feed, and close their connections. Readers end with an error."""
        self._closed = True
        for part in self._parts.values():
            task, part.task = part.task, None
            while task is not None and not task.done():
                task.cancel()  # repeated, because on Python 3.11 a cancel may be lost inside a timeout that ends at the same time
                with contextlib.suppress(Exception):
                    await asyncio.wait({task}, timeout=0.5)
            part.streams.deliver({})


class _AsyncPart:
    """The subscriptions of one partition, and the task that reads their streams.

    Attributes:
        streams: The subscriptions.
        task: The task; None until the first subscription.
        blocking: True while the task waits in a blocking read.
        interrupted: True if a new reader has already interrupted this read.
    """

    def __init__(self, keys: Keys, client: str) -> None:
        self.streams = Subscriptions(keys, client)
        self.task: asyncio.Task[None] | None = None
        self.blocking = self.interrupted = False
