"""Read outputs for threads: one thread and one connection for each partition in which outputs are read."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.client.output.subscriptions import Subscription, Subscriptions
from coordinator.clock import SystemClock
from coordinator.errors import CoordinatorError
from coordinator.model.address import Address
from coordinator.store.keys import Keys
from coordinator.store.plans import output as output_plans
from coordinator.store.transport.wire import Bell, Wire, drive

BLOCK = 30.0  # seconds of one blocking read
BLOCK_MEMORY = 0.05  # fakeredis has no connection that could be closed under a reader, so its reads are short
AFTER_TROUBLE = 0.5  # seconds of pause after an error

_clock = SystemClock()


class Inbox(Subscription):
    """The inbox of a reader in a thread."""

    def __init__(self) -> None:
        self._any = threading.Event()
        super().__init__(self._any.set)

    def wait(self, seconds: float | None) -> bool:
        """Wait until `is_ready` is true. Return False if it is not within this number of seconds; None waits forever."""
        while not self.is_ready():
            self._any.clear()
            if self.is_ready():  # another thread has put an entry into the inbox between the two lines above
                return True
            if not self._any.wait(seconds):
                return False
        return True


class Feed:
    """The feed of a Client: it reads the outputs of runs from the server, and puts their entries into inboxes."""

    def __init__(self, address: Address, wire: Wire) -> None:
        self.client = uuid.uuid4().hex
        self._address, self._wire = address, wire
        self._parts: dict[int, _Part] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @contextmanager
    def subscribe(self, keys: Keys, id: str, cursor: str) -> Iterator[Inbox]:
        """Open an inbox, as a context manager. While it is open, it gets the entries of a run's output.

        Args:
            keys: The keys of the run's partition.
            id: The run.
            cursor: The id of the entry after which the reader wants entries.
        """
        with self._lock:
            part = self._parts.setdefault(keys.partition, _Part(keys, self.client, self._closed))
        inbox, key = Inbox(), keys.output(id)
        part.streams.add(key, cursor, inbox)
        try:
            self._start(part)
            yield inbox
        finally:
            part.streams.remove(key, inbox)

    def _start(self, part: _Part) -> None:
        with self._lock:
            if part.thread is None and not self._closed.is_set():
                thread = threading.Thread(target=self._read, args=(part,), name="coordinator-output", daemon=True)
                thread.start()
                part.thread = thread  # only now: `close` joins it without the lock, and a start can fail
                return
        if part.blocking:
            drive(self._wire, output_plans.interrupt(part.streams.keys, self.client))

    def _read(self, part: _Part) -> None:
        bell = part.bell = Bell(self._address)
        memory = self._address.scheme == "memory"
        try:
            while not self._ends(part):
                part.blocking = True
                try:
                    entries = bell.read(*part.streams.wanted(), BLOCK_MEMORY if memory else BLOCK)
                except CoordinatorError:
                    part.blocking = False
                    self._closed.wait(AFTER_TROUBLE)
                    part.streams.deliver({})
                    continue
                part.blocking = False
                if entries or not memory:
                    part.streams.deliver(entries)
                part.streams.doubt_silent(_clock.monotonic(), BLOCK)
        except Exception:
            if not self._closed.is_set():  # redis-py may raise anything when its connection is closed under it
                raise
        finally:
            with self._lock:
                if part.thread is threading.current_thread():
                    part.thread = None  # the next reader starts another thread
            bell.close()

    def _ends(self, part: _Part) -> bool:
        with self._lock:
            if self._closed.is_set() or not part.streams:
                part.thread = None
                return True
            return False

    def close(self) -> None:
        """End the threads of the feed, and close their connections. Readers end with an error."""
        self._closed.set()
        # Without the lock, because a signal handler may call this in a thread that has the lock. A thread that is just being
        # started is not joined. It ends by itself.
        for part in list(self._parts.values()):
            thread, bell = part.thread, part.bell
            if thread is not None and thread is not threading.current_thread():
                if bell is not None and self._address.scheme != "memory":
                    bell.close()  # ends the blocking read
                thread.join(1.0)
            part.streams.deliver({})  # also if the thread has just ended on its own


class _Part:
    """The subscriptions of one partition, and the thread that reads their streams.

    Attributes:
        streams: The subscriptions.
        thread: The thread; None while it does not run.
        bell: The connection of the thread.
        blocking: True while the thread waits in a blocking read.
    """

    def __init__(self, keys: Keys, client: str, closed: threading.Event) -> None:
        self.streams = Subscriptions(keys, client)
        self.thread: threading.Thread | None = None
        self.bell: Bell | None = None
        self.blocking = False
