"""The phases of an async handler that run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class ParallelPhases:
    """The phases whose functions are running. The object is true while a phase is running. Phases inside phases are not counted."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._ended: asyncio.Event | None = None

    def __bool__(self) -> bool:
        return bool(self._running)

    @contextmanager
    def running(self, field: str, inner: bool) -> Iterator[None]:
        """Count a phase as running while the context is open.

        Args:
            field: The field of the phase.
            inner: True if the phase is inside another phase. Such a phase is not counted.
        """
        if inner:
            yield
            return
        self._running.add(field)
        try:
            yield
        finally:
            self._running.discard(field)
            if not self._running and self._ended is not None:
                self._ended.set()
                self._ended = None

    async def wait_until_ended(self) -> None:
        """Wait until no phase is running."""
        if self._running:
            if self._ended is None:
                self._ended = asyncio.Event()
            await self._ended.wait()
