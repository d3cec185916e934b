"""A worker process's right to its runs in one partition: under which id, until when, and whether it is in doubt.

The time of a lease counts from the sending of the last good beat: that is the latest moment at which the server can have seen it.
"""

from __future__ import annotations

import asyncio
import os

from coordinator.clock import Clock
from coordinator.store.keys import Keys


class Lease:
    """One membership. A worker that is gone gets a new one, under a new id."""

    def __init__(self, keys: Keys, length: float, clock: Clock) -> None:
        self.keys, self.length, self._clock = keys, length, clock
        self.worker = new_worker_id()
        self.number = 0  # of the last claim that was sent
        self.floor = 0  # up to here claims were answered or given up: one that arrives later takes nothing
        self.gone = False
        self._beat_at = clock.monotonic()
        self._doubted = False
        self._sure = asyncio.Event()
        self._sure.set()

    @property
    def in_doubt(self) -> bool:
        """No good beat for a lease. It stays so until a beat has compared what is held with what is owned."""
        if not self._doubted and self._clock.monotonic() - self._beat_at > self.length:
            self._doubted = True
            self._sure.clear()
        return self._doubted

    def renewed(self, sent_at: float, *, compared: bool) -> None:
        """A beat that was sent at this time was good."""
        self._beat_at = max(self._beat_at, sent_at)
        if compared and self._clock.monotonic() - self._beat_at <= self.length:
            self._doubted = False
            self._sure.set()

    async def sure(self) -> None:
        """Returns when the lease is not in doubt, or gone for good."""
        while self.in_doubt and not self.gone:
            await self._sure.wait()

    def lose(self) -> None:
        """The server knows this membership no more."""
        self.gone = True
        self._sure.set()


def new_worker_id() -> str:
    return f"w{os.urandom(8).hex()}"


def claim_number(token: str) -> int:
    """The number of the claim that a token came from."""
    return int(token.split("-", 2)[1])
