"""Sequence numbers of saves."""

from __future__ import annotations

import threading


class SequenceNumbers:
    """Numbers that grow within a process, and usually from one process to the next, because each is at least the time in ms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self, now: float, after: int = 0) -> int:
        """Return a number that is higher than all numbers before it.

        Args:
            now: The time in seconds.
            after: A number that the result must exceed.
        """
        with self._lock:
            self._last = max(self._last + 1, after + 1, int(now * 1000))
            return self._last


# The process has only this object. So two checkpointers of one run, used one after the other, never give the same number to
# different content.
SEQUENCE = SequenceNumbers()
