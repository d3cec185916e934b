"""Decide when a checkpoint may be saved.

The decision is pure: the caller passes in the time. Only a successful save starts a new window, so a failed save may be
repeated immediately.
"""

from __future__ import annotations


class Throttle:
    """Allow one save per time window.

    The first save may be sent immediately. A save that is requested inside the window has to wait until the window ends.

    Args:
        window: Length of the window in seconds. With 0 or less, every save may be sent immediately.
    """

    def __init__(self, window: float) -> None:
        self.window = window
        self._saved: float | None = None

    def wait(self, now: float) -> float:
        """Return the number of seconds until the next save is allowed, or 0.0 if it is allowed now."""
        if self.window <= 0 or self._saved is None:
            return 0.0
        return max(0.0, self._saved + self.window - now)

    def saved(self, now: float) -> None:
        """Record that a save succeeded.

        Args:
            now: The monotonic time at which that save was sent. The next window starts at this time.
        """
        self._saved = now if self._saved is None else max(self._saved, now)
