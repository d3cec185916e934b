"""The places of a worker process: how many handlers it may have at work, and when it must hold a run alone.

A place is free when its handler has ended: while the server is told of that ending it is asked for the next run, so that neither
waits for the other. Until it has been told, the run is held; no more are than twice the places. A process of one place asks only
then: it is empty between two runs, and a crash there takes no other run along.

A run whose next strike would be its last is only given to a process that holds nothing, and until it has progressed or ended the
process takes nothing more: so it dies only of a crash in which it was alone.
"""

from __future__ import annotations

import asyncio


class SlotTable:
    """Counts handlers at work, runs that are held, and what is reserved by claims under way."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0
        self._recording = 0  # of those that are held: the handler has ended, and the server is being told
        self.alone = False  # a suspect is here and has shown nothing yet
        self._reserved = 0
        self._claims = 0
        self._exclusive = False
        self._changed = asyncio.Event()
        self.empty = asyncio.Event()  # nothing is held
        self.empty.set()

    @property
    def free(self) -> int:
        if self.alone or self._exclusive:
            return 0
        at_work = self.held - self._recording
        return max(0, min(self.size - at_work, 2 * self.size - self.held) - self._reserved)

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

    def handler_ended(self) -> None:
        """Its place is free; the run is held until `free_one`."""
        self._recording += 1
        self._changed.set()

    def free_one(self, *, suspect: bool, recorded: bool = False) -> None:
        """`recorded`: its place was free already, since its handler had ended."""
        self.held -= 1
        self._recording -= recorded
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
