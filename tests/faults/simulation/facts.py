"""The facts of a seed that no simulated fault affects: what the handlers did to the world outside."""

from __future__ import annotations

from collections import Counter

GRANTED = 2  # requests of one grant
LIMIT = 4  # requests of a run with a budget
RATE, PER, BURST, CALLS_AT_ONCE = 20, 1000, 6, 2  # tokens and milliseconds of the rate of the outside calls


class Facts:
    """The world outside of a seed.

    Attributes:
        effects: How often each effect of a run was carried out.
        sink: The effects that a system outside has recorded. It recognises a repeated effect by its key.
        spent: How many requests each run has really made.
        emitted: The epoch of the newest attempt of each run, and the number of events up to its last one.
    """

    def __init__(self) -> None:
        self.effects: Counter[tuple[str, str]] = Counter()
        self.sink: set[str] = set()
        self.spent: Counter[str] = Counter()
        self.emitted: dict[str, tuple[int, int]] = {}

    def emits(self, id: str, epoch: int, events: int) -> None:
        """Note how many events a run has at this point of an attempt. A stale attempt changes nothing."""
        self.emitted[id] = max(self.emitted.get(id, (0, 0)), (epoch, events))
