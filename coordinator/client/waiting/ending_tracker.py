"""Decide when a waiting client asks the server for the status of a run. This module does no I/O: callers pass in the time."""

from __future__ import annotations

from collections.abc import Collection

from coordinator.errors import ResultTimeout

ASK_AGAIN = 5.0  # seconds after which a client asks about all its runs without a hint


class EndingTracker:
    """A tracker of the runs that a call waits for. It says about which runs the client asks the server, and when.

    The client asks about a run after a hint, and about all runs every 5 seconds, so that a lost hint only causes a delay.

    Attributes:
        open: The ids of the runs that have not ended.
    """

    def __init__(self, ids: Collection[str], now: float, timeout: float | None) -> None:
        """Start to track runs.

        Args:
            ids: The runs.
            now: The present time of a monotonic clock.
            timeout: Seconds until the call gives up; None waits forever.
        """
        self.open = dict.fromkeys(ids)
        self._timeout = timeout
        self._until = None if timeout is None else now + timeout
        self._all_at = now
        self._hinted: dict[str, None] = {}

    def to_ask(self, now: float) -> list[str]:
        """Return the runs whose status the client reads now: the runs with a hint, or every 5 seconds all open runs."""
        hinted, self._hinted = self._hinted, {}
        if now < self._all_at:
            return [id for id in hinted if id in self.open]
        self._all_at = now + ASK_AGAIN
        return list(self.open)

    def ended(self, id: str) -> None:
        """Stop tracking a run that has ended."""
        self.open.pop(id, None)

    def hint(self, ids: Collection[str]) -> None:
        """Record that these runs may have ended, so that the next call of `to_ask` returns them."""
        self._hinted.update(dict.fromkeys(ids))

    def left(self, now: float) -> float | None:
        """Return the seconds until the timeout, or None if there is no timeout."""
        return None if self._until is None else max(0.0, self._until - now)

    def rest(self, now: float) -> float:
        """Return the seconds to wait for a hint before the client asks again.

        Raises:
            ResultTimeout: The timeout is over.
        """
        left = self.left(now)
        if left == 0.0:
            raise self.timed_out()
        until_all = max(0.0, self._all_at - now)
        return until_all if left is None else min(left, until_all)

    def block_seconds(self, now: float) -> float:
        """Return the seconds for which a call that asks the server now may block there, before it asks again."""
        left = self.left(now)
        return ASK_AGAIN if left is None else min(left, ASK_AGAIN)

    def timed_out(self) -> ResultTimeout:
        """Return the ResultTimeout error, which names a run that has not ended."""
        first = next(iter(self.open), "")
        what = f"run {first} has" if len(self.open) == 1 else f"{len(self.open)} runs, {first} among them, have"
        return ResultTimeout(f"{what} not ended within {self._timeout:g} s")
