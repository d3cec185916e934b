"""Compute how long a child slot waits before it starts its next worker process.

The first two processes in a row that end as soon as they start are replaced immediately. From the third on, the wait doubles from
one second up to `LONGEST_WAIT`. A random factor keeps the slots of a fleet from restarting at the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable

LONGEST_WAIT = 30.0  # seconds, before the random factor
WORKED_SECONDS = 10.0  # a process that lived for this time counts as started
FREE_RESTARTS = 2  # restarts without a wait


class RestartBackoff:
    """Compute how long one child slot waits before its next process. `jitter` returns a number from 0 to 1."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self.failures = 0  # processes in a row that ended as soon as they started
        self._jitter = jitter

    def record_end(self, *, failed: bool) -> float:
        """Record that a process ended. Return the seconds to wait before the next one starts.

        Args:
            failed: True if the process ended as soon as it started (see `failed_to_start`). False resets the count of failed
                starts to zero.
        """
        self.failures = self.failures + 1 if failed else 0
        if self.failures <= FREE_RESTARTS:
            return 0.0
        return min(0.5 * 2.0 ** (self.failures - FREE_RESTARTS), LONGEST_WAIT) * (0.75 + 0.5 * self._jitter())


def failed_to_start(*, as_asked: bool, ready: bool, held_runs: int, seconds: float) -> bool:
    """Return True if a process ended as soon as it started and no run is to blame.

    A run that crashes its process gets a strike each time and is dead after the third strike, so such crashes need no wait.

    Args:
        as_asked: True if the process drained and held no run any more, or if the supervisor stopped it before it had started.
        ready: True if the server had answered the first claim of the process.
        held_runs: The number of runs that the process held when it ended.
        seconds: How long the process lived.
    """
    if as_asked:
        return False
    return not ready or (not held_runs and seconds < WORKED_SECONDS)
