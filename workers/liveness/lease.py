"""The lease of a worker process in one partition.

A lease is the worker's right to the runs that it has claimed. Heartbeats renew it. Its time counts from the moment at which the
last successful heartbeat was sent. The server cannot have received that heartbeat earlier, so the worker's view of the lease never
ends later than the server's.
"""

from __future__ import annotations

import asyncio
import os

from coordinator.clock import Clock
from coordinator.store.keys import Keys


class Lease:
    """One registration of this process as a worker in one partition.

    When the server has taken the lease away, the process registers again with a new lease and a new worker id.

    Args:
        keys: The keys of the partition.
        length: Seconds without a successful heartbeat after which the worker counts as lost.
        clock: The time source.
    """

    def __init__(self, keys: Keys, length: float, clock: Clock) -> None:
        self.keys, self.length, self._clock = keys, length, clock
        self.worker = new_worker_id()
        self.number = 0  # the number of the last claim that was sent
        # The worker has the answers to all claims up to this number, or no longer waits for them. If such a claim reaches the
        # server late, the server refuses it.
        self.floor = 0
        self.gone = False
        self._beat_at = clock.monotonic()
        self._doubted = False
        self._confirmed = asyncio.Event()
        self._confirmed.set()

    @property
    def in_doubt(self) -> bool:
        """Return True if the lease may have expired on the server.

        A lease is in doubt when no heartbeat has succeeded for the lease's length. It stays in doubt until a heartbeat has
        compared the runs that this process holds with the runs that it owns on the server.
        """
        if not self._doubted and self._clock.monotonic() - self._beat_at > self.length:
            self._doubted = True
            self._confirmed.clear()
        return self._doubted

    def renewed(self, sent_at: float, *, compared: bool) -> None:
        """Record a successful heartbeat.

        Args:
            sent_at: When the heartbeat was sent.
            compared: True if the heartbeat compared the runs that this process holds with the runs that it owns on the server.
        """
        self._beat_at = max(self._beat_at, sent_at)
        if compared and self._clock.monotonic() - self._beat_at <= self.length:
            self._doubted = False
            self._confirmed.set()

    async def wait_until_confirmed(self) -> None:
        """Wait until the lease is no longer in doubt, or until the server has taken the lease away."""
        while self.in_doubt and not self.gone:
            await self._confirmed.wait()

    def lose(self) -> None:
        """Record that the server no longer knows this worker."""
        self.gone = True
        self._confirmed.set()


def new_worker_id() -> str:
    """Return a new random worker id."""
    return f"w{os.urandom(8).hex()}"


def claim_number(token: str) -> int:
    """Return the number of the claim that created a token."""
    return int(token.split("-", 2)[1])
