"""The slots of a worker process: how many handlers may run, and when a run must be alone in the process.

A slot is free as soon as its handler has ended. While the outcome of that run is being recorded, the worker already asks for the
next run, so that neither request waits for the other. Until the outcome is recorded, the process still holds the run; it holds at
most twice as many runs as it has slots. A process with one slot is different: it claims only when it holds no run. It
never holds two runs, so a crash affects at most one run.

A suspect is a run whose next strike would be its last. Only a process that holds no run may claim a suspect, and the process
claims nothing else until the suspect has made progress or has ended. A suspect therefore dies only of a crash in which it was
alone.
"""

from __future__ import annotations

import asyncio


class SlotTable:
    """Count running handlers, held runs, and slots that claims have reserved.

    Args:
        size: How many handlers may run at the same time.

    Attributes:
        held: The number of runs that the process holds.
        alone: True while the process holds a suspect that has not made progress yet.
        empty: An event that is set while the process holds no run.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0
        self.alone = False
        self.empty = asyncio.Event()
        self.empty.set()
        self._recording = 0  # held runs whose handler has ended and whose outcome is being recorded
        self._reserved = 0
        self._claims = 0
        self._exclusive = False
        self._changed = asyncio.Event()

    @property
    def free(self) -> int:
        """The number of slots that a claim may reserve now."""
        if self.alone or self._exclusive:
            return 0
        return max(0, min(self.size - self.running, 2 * self.size - self.held) - self._reserved)

    @property
    def running(self) -> int:
        """The number of held runs whose handler has not ended."""
        return self.held - self._recording

    @property
    def claiming(self) -> bool:
        """Return True if a claim has reserved slots: then a slot is free, and no run has to wait for one."""
        return self._reserved > 0

    async def reserve(self, most: int) -> tuple[int, bool]:
        """Reserve slots for a claim, and wait until there are any.

        Args:
            most: The largest number of slots to reserve.

        Returns:
            The number of reserved slots, and whether the process holds no run and has no other claim under way.
        """
        while not self.free:
            self._changed.clear()
            await self._changed.wait()
        # At most half of the slots: while one half waits for the server, the handlers of the other half run.
        count = min(self.free, most, -(-self.size // 2))
        only = self.held == 0 and self._claims == 0
        self._reserved += count
        self._claims += 1
        self._exclusive = only
        return count, only

    def give_back(self, count: int, *, alone: bool) -> None:
        """Free reserved slots. The arguments are the two values that `reserve` returned."""
        self._reserved -= count
        self._claims -= 1
        if alone:
            self._exclusive = False
        self._changed.set()

    def take(self, *, suspect: bool) -> None:
        """Record that the process holds another run.

        Args:
            suspect: True if the run is a suspect. The process then claims nothing until the suspect has made progress or ended.
        """
        self.held += 1
        self.empty.clear()
        self.alone = self.alone or suspect

    def handler_ended(self) -> None:
        """Free the slot of a handler that has ended. The process holds the run until `free_one` is called."""
        self._recording += 1
        self._changed.set()

    def free_one(self, *, suspect: bool, recorded: bool = False) -> None:
        """Record that the process no longer holds a run.

        Args:
            suspect: True if the run was a suspect.
            recorded: True if `handler_ended` has freed the slot of the run before.
        """
        self.held -= 1
        self._recording -= recorded
        if not self.held:
            self.empty.set()
        if suspect:
            self.alone = False
        self._changed.set()

    def cleared(self) -> None:
        """Allow other runs beside the suspect, because the suspect has made progress."""
        if self.alone:
            self.alone = False
            self._changed.set()
