"""Hold the events of one attempt until the server has stored them."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

from coordinator.encoding.seal import sealed
from coordinator.model import limits
from coordinator.store.plans.attempts import Output


class UnsentBytes:
    """The number of bytes of the events in all outboxes of a process. Any thread may use it."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> bool:
        """Add a number of bytes, which is negative to subtract. Return True if the total is now above the limit of a process."""
        with self._lock:
            self.total += count
            return self.total > limits.OUTPUT_UNSENT_IN_PROCESS


class Outbox:
    """The events of an attempt that the server may not have stored yet.

    The handler's thread adds events, and the worker's event loop sends and removes them. If the events are larger than 1 MiB
    together, the oldest are dropped. If all runs of the process hold more than 64 MiB, each new event takes the place of older
    events of its own run. Events are numbered, so readers notice that some are missing.

    Args:
        base: The number of the last event that the run's checkpoint covers.
        unsent: The bytes of the events of all runs of the process.

    Attributes:
        position: The number of the last event.
        begun: True if the server has stored events of the run, in this attempt or before its checkpoint.
        dropped: The number of events that were dropped.
        settled: The number of the last event that a stored checkpoint covers, as far as the server has confirmed.
        closed: True if the server refuses the events, because the run belongs to another owner.
    """

    def __init__(self, base: int, unsent: UnsentBytes) -> None:
        self.position = self.settled = self._base = base
        self.begun = base > 0
        self.dropped = 0
        self.closed = False
        self._events: deque[bytes] = deque()
        self._size = 0
        self._unsent = unsent
        self._lock = threading.Lock()

    @property
    def has_stream(self) -> bool:
        """Return True if the run has emitted an event, in this attempt or before its checkpoint."""
        return self.position > 0

    @property
    def waiting(self) -> bool:
        """Return True if there are events that the server may not have stored."""
        return self.has_news()

    def __len__(self) -> int:
        """Return the number of events that the server may not have stored."""
        return len(self._events)

    def add(self, letter: bytes, data: bytes) -> int:
        """Add an event, and return its number. Any thread may call this.

        Args:
            letter: `e` for an event, `n` for a note.
            data: The encoded value.
        """
        event = letter + sealed(data)
        with self._lock:
            self.position += 1
            if self.closed:
                return self.position
            self._events.append(event)
            self._size += len(event)
            room = len(event) if self._unsent.add(len(event)) else 0
            while self._size > limits.OUTPUT_UNSENT or (room > 0 and len(self._events) > 1):
                room -= self._remove_oldest()
                self.dropped += 1
            return self.position

    def _remove_oldest(self) -> int:
        """Remove the oldest event, and return its size in bytes."""
        size = len(self._events.popleft())
        self._size -= size
        self._unsent.add(-size)
        return size

    def has_news(self, settled: int = 0) -> bool:
        """Return True if `take` with this settled position returns something to send."""
        return not self.closed and (bool(self._events) or settled > self.settled)

    def take(self, settled: int = 0, most: int | None = None) -> Output | None:
        """Return the events that the server may not have stored, without removing them; None if there is nothing to send.

        Args:
            settled: The events are sent with a save. This is the number of the last event that the save covers.
            most: The largest number of events; None for all.
        """
        with self._lock:
            if not self.has_news(settled):
                return None
            first = self.position - len(self._events) + 1
            events = tuple(self._events if most is None else islice(self._events, most))
            return Output(first, self._base, settled, events)

    def stored(self, output: Output) -> None:
        """Remove the events that the server has stored."""
        with self._lock:
            self.begun = True
            self.settled = max(self.settled, output.settled)
            while self._events and self.position - len(self._events) + 1 <= output.last:
                self._remove_oldest()

    def close(self) -> None:
        """Drop all events, because the server refuses them."""
        with self._lock:
            self.closed = True
            self._events.clear()
            self._unsent.add(-self._size)
            self._size = 0
