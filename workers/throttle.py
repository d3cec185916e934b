"""When a held save goes. A pure decision over given times; the seeds' rule: the clock advances only after a success."""

from __future__ import annotations


class Throttle:
    """The first save goes at once; inside the window the newest is held, and goes when the window ends."""

    def __init__(self, window: float) -> None:
        self.window = window
        self._saved: float | None = None

    def wait(self, now: float) -> float:
        """Seconds until a save may go; 0 for at once."""
        if self.window <= 0 or self._saved is None:
            return 0.0
        return max(0.0, self._saved + self.window - now)

    def saved(self, now: float) -> None:
        """A save that was begun at this time has succeeded."""
        self._saved = now if self._saved is None else max(self._saved, now)
