"""The numbers of busy slots and of finishing runs of worker processes, for displays and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotUse:
    """The numbers of busy slots and of finishing runs of worker processes.

    A process frees the slot of a handler that has ended, and claims the next run, while it still records the outcome of the
    ended run. So it can own more runs than it has slots. The runs beyond the slots are finishing.

    Attributes:
        slots: The number of slots.
        busy: The number of slots that a run occupies.
        finishing: The number of further runs, whose handlers have ended and whose outcomes are being recorded.
    """

    slots: int
    busy: int
    finishing: int

    @classmethod
    def of(cls, owned: int, slots: int) -> SlotUse:
        """Return the numbers for one process that owns `owned` runs and has `slots` slots."""
        return cls(slots, min(owned, slots), max(0, owned - slots))

    def __add__(self, other: SlotUse) -> SlotUse:
        """Return the sums of the numbers of both objects."""
        return SlotUse(self.slots + other.slots, self.busy + other.busy, self.finishing + other.finishing)

    @property
    def remark(self) -> str:
        """Return for example `2 finishing`; an empty text if no run is finishing."""
        return f"{self.finishing:,} finishing" if self.finishing else ""
