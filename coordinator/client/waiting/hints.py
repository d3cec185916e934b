"""Read hints that runs have ended, so that waiting calls need not poll.

Each client has one reader. The reader blocks on the client's wake lists, takes hints from them, and delivers them to the mailboxes
of the calls that wait. A hint only makes a call ask the server now. ending_tracker.py decides when a call asks without a hint. A
thread that waits alone for one run uses direct_wait.py instead.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from coordinator.client.waiting.mailboxes import AsyncMailbox, Mailbox, Mailboxes
from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.model.address import Address
from coordinator.store.keys import Keys
from coordinator.store.plans import clients as client_plans
from coordinator.store.transport.wire import AsyncBell, AsyncWire, Bell, Wire, drive, drive_async

BLOCK = 5.0  # seconds of one blocking read
BLOCK_MEMORY = 0.1  # fakeredis has no connection that could be closed under a reader, so its reads are short
AFTER_TROUBLE = 0.5  # seconds of pause after an error; a waiting call asks every 5 s and reports the error itself

WakeLists = Mapping[str, Keys]


class HintReader:
    """The reader of a Client: a thread that starts with the first wait and ends when no call has waited for a minute.

    Attributes:
        client: The random name of the client, under which the server wakes it.
    """

    def __init__(self, address: Address, wire: Wire, clock: Clock) -> None:
        """Make a reader; the thread starts when a mailbox is first read."""
        self.client = uuid.uuid4().hex
        self._address, self._wire = address, wire
        self._boxes: Mailboxes[Mailbox] = Mailboxes(clock)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._bell: Bell | None = None

    @contextmanager
    def mailbox(self, ids: Collection[str], lists: WakeLists) -> Iterator[Mailbox]:
        """Open a mailbox, as a context manager. While it is open, it receives the hints about these runs.

        Args:
            ids: The runs.
            lists: The keys of each partition by the name of its wake list.
        """
        box = Mailbox(lambda: self._start(lists))
        self._boxes.add(ids, box)
        try:
            yield box
        finally:
            self._boxes.remove(ids, box)

    def _start(self, lists: WakeLists) -> None:
        with self._boxes.lock:
            if self._thread is None and not self._closed.is_set():
                thread = threading.Thread(target=self._read, args=(lists,), name="coordinator-hints", daemon=True)
                thread.start()
                self._thread = thread  # only now: `close` joins it without the lock, and a start can fail

    def _read(self, lists: WakeLists) -> None:
        bell = self._bell = Bell(self._address)
        try:
            while not self._ends():
                self._next(bell, lists)
        except Exception:
            if not self._closed.is_set():  # redis-py may raise anything when its connection is closed under it
                raise
        finally:
            with self._boxes.lock:
                if self._thread is threading.current_thread():
                    self._thread = None  # the next wait starts another thread
            bell.close()

    def _next(self, bell: Bell, lists: WakeLists) -> None:
        seconds = BLOCK_MEMORY if self._address.scheme == "memory" else BLOCK
        try:
            if found := bell.wait(list(lists), seconds):
                # This hint is delivered first, so that its caller does not wait for the others.
                id = found[1].decode()
                self._boxes.deliver([id])
                if self._boxes.waits_for_others(id):
                    plan = client_plans.take_hints(lists[found[0]], self.client)
                    self._boxes.deliver(drive(self._wire, plan, timeout=1.0))
        except CoordinatorError:
            self._closed.wait(AFTER_TROUBLE)

    def _ends(self) -> bool:
        with self._boxes.lock:
            if self._closed.is_set() or self._boxes.idle():
                self._thread = None
                return True
            return False

    def close(self) -> None:
        """End the thread of the reader, and close its connection."""
        self._closed.set()
        # Without the lock, because a signal handler may call this in a thread that has the lock. A thread that is just being
        # started is not joined. It ends by itself.
        thread, bell = self._thread, self._bell
        if thread is None or thread is threading.current_thread():
            return
        if bell is not None and self._address.scheme != "memory":
            bell.close()  # ends the blocking read
        thread.join(1.0)


class AsyncHintReader:
    """The reader of an AsyncClient: a task that starts with the first wait and ends when no call has waited for a minute.

    Attributes:
        client: The random name of the client, under which the server wakes it.
    """

    def __init__(self, address: Address, wire: AsyncWire, clock: Clock) -> None:
        """Make a reader; the task starts when a mailbox is first read."""
        self.client = uuid.uuid4().hex
        self._address, self._wire, self._clock = address, wire, clock
        self._boxes: Mailboxes[AsyncMailbox] = Mailboxes(clock)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def mailbox(self, ids: Collection[str], lists: WakeLists) -> AsyncIterator[AsyncMailbox]:
        """Open a mailbox, as a context manager. While it is open, it receives the hints about these runs.

        Args:
            ids: The runs.
            lists: The keys of each partition by the name of its wake list.
        """
        box = AsyncMailbox(lambda: self._start(lists))
        self._boxes.add(ids, box)
        try:
            yield box
        finally:
            self._boxes.remove(ids, box)

    def _start(self, lists: WakeLists) -> None:
        if (self._task is None or self._task.done()) and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._read(lists), name="coordinator-hints")

    async def _read(self, lists: WakeLists) -> None:
        bell = AsyncBell(self._address)
        try:
            while not self._boxes.idle():
                try:
                    if found := await bell.wait(list(lists), BLOCK):
                        id = found[1].decode()
                        self._boxes.deliver([id])  # first, as in HintReader
                        if self._boxes.waits_for_others(id):
                            plan = client_plans.take_hints(lists[found[0]], self.client)
                            self._boxes.deliver(await drive_async(self._wire, plan, timeout=1.0))
                except CoordinatorError:
                    await self._clock.asleep(AFTER_TROUBLE)
        finally:
            await bell.close()

    async def close(self) -> None:
        """End the task of the reader, and close its connection."""
        self._closed = True
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()  # repeated, because on Python 3.11 a cancel may be lost inside a timeout that ends at the same moment
            await asyncio.wait({task}, timeout=0.5)
