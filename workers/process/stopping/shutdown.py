"""Record that a worker has been asked to shut down, how quickly, and why."""

from __future__ import annotations

import asyncio

from coordinator.clock import Clock


class Shutdown:
    """The request to shut down a worker: whether it was made, whether handlers have a grace, and the error that caused it.

    Args:
        clock: The time source.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requested = asyncio.Event()
        self._without_grace = asyncio.Event()
        self.error: BaseException | None = None  # the reason, if the worker shuts down because of an error
        # The monotonic time until which a draining worker waits for the server; None before the drain.
        self.deadline: float | None = None

    def is_requested(self) -> bool:
        """Return True if the worker has been asked to shut down."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ask the worker to drain. Further requests change nothing."""
        self._requested.set()

    def request_without_grace(self) -> None:
        """Ask the worker to drain without waiting for its handlers."""
        self._requested.set()
        self._without_grace.set()

    def fail(self, error: BaseException | None) -> None:
        """Ask the worker to drain, and to raise `error` when it has drained."""
        self.error = error
        self._requested.set()

    async def wait_requested(self) -> None:
        """Wait until the worker is asked to shut down."""
        await self._requested.wait()

    async def wait_without_grace(self) -> None:
        """Wait until the worker is asked to shut down without grace."""
        await self._without_grace.wait()

    def out_of_time(self) -> bool:
        """Return True if a draining worker cannot wait for the server any longer."""
        return self.deadline is not None and self._clock.monotonic() > self.deadline
