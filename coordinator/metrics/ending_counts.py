"""Count the runs that ended without a worker, by kind and status."""

from __future__ import annotations

from collections import Counter

from coordinator.metrics.catalog import ENDED, MOST_KINDS, OTHER
from coordinator.metrics.samples import Samples


class EndingCounts:
    """The counts of one coordinator process. The first 100 kinds have values of their own; the others are counted as `other`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._kinds: set[str] = set()

    def count(self, kind: str, status: str) -> None:
        """Count the end of a run.

        Args:
            kind: The kind of the run; empty if it is not known.
            status: The status in which the run ended.
        """
        if kind and len(self._kinds) < MOST_KINDS:
            self._kinds.add(kind)
        self._counts[kind if kind in self._kinds else OTHER, status] += 1

    def add_to(self, samples: Samples) -> None:
        """Add the present counts to samples."""
        for labels, count in self._counts.items():
            samples.add(ENDED, count, *labels)
