"""The places of a worker process: how many runs it may hold, and when it must hold one alone.

A run whose next strike would be its last is only given to a process that holds nothing, and until it has progressed or ended the
process takes nothing more: so it dies only of a crash in which it was alone.
"""

from __future__ import annotations

import asyncio


class SlotTable:
    """Counts what is held and what is reserved by claims under way."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0
        self.alone = False  # a suspect is here and has shown nothing yet
        self._reserved = 0
        self._claims = 0
        self._exclusive = False
        self._changed = asyncio.Event()
        self.empty = asyncio.Event()  # nothing is held
        self.empty.set()

    @property
    def free(self) -> int:
        return 0 if self.alone or self._exclusive else max(0, self.size - self.held - self._reserved)

    async def reserve(self, most: int) -> tuple[int, bool]:
        """Some places (waits until there are any), and whether the process holds nothing else and asks for nothing else."""
        while not self.free:
            self._changed.clear()
            await self._changed.wait()
        # half of the places at most: while one half waits for the server, the other has something to do
        count = min(self.free, most, -(-self.size // 2))
        only = self.held == 0 and self._claims == 0
        self._reserved += count
        self._claims += 1
        self._exclusive = only
        return count, only

    def give_back(self, count: int, *, alone: bool) -> None:
        self._reserved -= count
        self._claims -= 1
        if alone:
            self._exclusive = False
        self._changed.set()

    def take(self, *, suspect: bool) -> None:
        self.held += 1
        self.empty.clear()
        self.alone = self.alone or suspect

    def free_one(self, *, suspect: bool) -> None:
        self.held -= 1
        if not self.held:
            self.empty.set()
        if suspect:
            self.alone = False
        self._changed.set()

    def cleared(self) -> None:
        """The suspect has progressed: it may have neighbours again."""
        if self.alone:
            self.alone = False
            self._changed.set()
