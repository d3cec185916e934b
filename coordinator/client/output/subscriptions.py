"""The outputs that a client reads in one partition, without I/O.

A subscription is the inbox of one reader. It is bounded: a reader that falls behind is unsubscribed, and reads the stored entries
in pages until it has caught up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from coordinator.store.keys import Keys
from coordinator.store.plans.output import Entry
from coordinator.store.transport.wire import Entries

MOST_ENTRIES = 2_000  # the largest number of entries in the inbox of one reader
MOST_BYTES = 1024 * 1024  # the largest number of bytes in the inbox of one reader
MOST_READ = 500  # the largest number of entries of one stream in one reply of the server
LARGE_REPLY = 1024 * 1024  # bytes of a reply above which the next one has fewer entries


class Subscription:
    """The inbox of one reader.

    Args:
        notify: Wakes the reader. The feed calls this from its own thread or task.

    Attributes:
        behind: True if the inbox was full. It gets no more entries, and the reader must read the stored entries.
        doubtful: True if the reader has received nothing for a long time. It should then ask for the status of the run.
        silent_since: The monotonic time since which the reader has received nothing; None until the next call of `doubt_silent`.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._entries: list[Entry] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self.behind = self.doubtful = False
        self.silent_since: float | None = None

    def is_ready(self) -> bool:
        """Return True if there are entries in the inbox, or the reader is behind or doubtful."""
        return bool(self._entries) or self.behind or self.doubtful

    def put(self, entries: list[Entry]) -> bool:
        """Add entries to the inbox. Return False if the inbox is full: the reader is behind then."""
        with self._lock:
            self.silent_since = None
            self._bytes += _size(entries)
            if len(self._entries) + len(entries) > MOST_ENTRIES or self._bytes > MOST_BYTES:
                self.behind = True
            else:
                self._entries += entries
        self._notify()
        return not self.behind

    def doubt(self) -> None:
        """Mark the reader as doubtful and wake it, so that it asks for the status of its run."""
        self.doubtful, self.silent_since = True, None
        self._notify()

    def take(self) -> list[Entry]:
        """Return the entries in the inbox, and empty it."""
        with self._lock:
            entries, self._entries, self._bytes = self._entries, [], 0
            return entries


class Subscriptions:
    """The subscriptions of a client in one partition.

    Args:
        keys: The keys of the partition.
        client: The name of the client.

    Attributes:
        most: The number of entries of one stream to read at once. The server limits a reply by this number and not by its size, so
            the number follows the size of the last replies. A very large reply would take long on a slow line, and delay the
            entries of all other readers.
    """

    def __init__(self, keys: Keys, client: str) -> None:
        self.keys, self.client = keys, client
        self.most = MOST_READ // 10
        self.lock = threading.Lock()
        self._bell, self._bell_cursor = keys.reader(client), "0-0"
        self._cursors: dict[str, str] = {}
        # Streams whose cursor comes from a reader. Perhaps no entry has this id.
        self._unproved: set[str] = set()
        self._readers: dict[str, list[Subscription]] = {}
        self._next_look = 0.0

    def __bool__(self) -> bool:
        """Return True if any reader is subscribed."""
        return bool(self._readers)

    def add(self, key: str, cursor: str, subscription: Subscription) -> None:
        """Subscribe a reader to the stream under a key. It gets the entries after the cursor, and perhaps some before it."""
        with self.lock:
            if key not in self._cursors:
                self._cursors[key] = cursor
                self._unproved.add(key)
            elif key in self._unproved:  # a cursor that lies in the future must not hide entries from the other readers
                self._cursors[key] = min(self._cursors[key], cursor, key=_order)
            self._readers.setdefault(key, []).append(subscription)

    def remove(self, key: str, subscription: Subscription) -> None:
        """Unsubscribe a reader."""
        with self.lock:
            readers = self._readers.get(key, [])
            if subscription in readers:
                readers.remove(subscription)
            self._drop_unread(key)

    def _drop_unread(self, key: str) -> None:
        if not self._readers.get(key):
            self._readers.pop(key, None)
            self._cursors.pop(key, None)
            self._unproved.discard(key)

    def wanted(self) -> tuple[list[str], list[str], int]:
        """Return the keys of the streams to read, the ids after which to read them, and the number of entries of each stream."""
        with self.lock:
            return [self._bell, *self._cursors], [self._bell_cursor, *self._cursors.values()], self.most

    def doubt_silent(self, now: float, seconds: float) -> None:
        """Mark each reader that has received nothing for some time as doubtful.

        Args:
            now: The present time of a monotonic clock.
            seconds: Seconds without an entry after which a reader becomes doubtful.
        """
        with self.lock:
            if now < self._next_look:
                return
            self._next_look = now + seconds / 10
            for reader in (one for readers in self._readers.values() for one in readers):
                if reader.silent_since is None:
                    reader.silent_since = now
                elif now - reader.silent_since >= seconds:
                    reader.doubt()

    def deliver(self, entries: Entries) -> None:
        """Put entries into the inboxes of the readers of their streams. Without any entry, mark every reader as doubtful."""
        with self.lock:
            if not entries:
                for reader in (one for readers in self._readers.values() for one in readers):
                    reader.doubt()
            self._follow_size(sum(_size(found) for found in entries.values()))
            for key, found in entries.items():
                last = found[-1][0].decode()
                if key == self._bell:
                    self._bell_cursor = last
                elif key in self._cursors:
                    self._cursors[key] = last
                    self._unproved.discard(key)
                    self._readers[key] = [one for one in self._readers[key] if one.put(found)]
                    self._drop_unread(key)

    def _follow_size(self, size: int) -> None:
        """Read fewer entries at once after a large reply of the server, and more after a small one."""
        if size > LARGE_REPLY:
            self.most = max(1, self.most * LARGE_REPLY // size)
        elif size < LARGE_REPLY // 4:
            self.most = min(MOST_READ, 2 * self.most)


def _size(entries: list[Entry]) -> int:
    """Return the number of bytes of the values of entries."""
    return sum(len(fields[1]) for _, fields in entries if len(fields) > 1)


def _order(id: str) -> tuple[int, int]:
    """Return the id of an entry as two numbers, so that ids can be compared."""
    first, _, second = id.partition("-")
    return int(first), int(second)
