"""The depth and the age of each queue over the last minutes, for the plots of the page. This module does no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

STEP = 3  # seconds of one point
POINTS = 40  # points of a plot

QueueName = tuple[str, str]  # queue and kind


class Depths:
    """Keep the highest depth and the highest age of each queue and kind, for each step of a few seconds."""

    def __init__(self) -> None:
        # Only queues with queued runs are stored, so the size is limited by the queues that were not empty.
        self._steps: deque[tuple[int, dict[QueueName, tuple[int, float]]]] = deque(maxlen=POINTS)
        self._first = 0  # the first step that was measured

    def add(self, now: float, queued: Mapping[QueueName, int], oldest: Mapping[QueueName, float]) -> None:
        """Add a measurement.

        Args:
            now: The server's time.
            queued: The number of queued runs of each queue and kind.
            oldest: When the oldest queued run of each queue and kind was queued.
        """
        step = int(now) // STEP
        self._first = self._first or step
        if not self._steps or self._steps[-1][0] < step:
            self._steps.append((step, {}))
        values = self._steps[-1][1]
        for name, depth in queued.items():
            if depth:
                known_depth, known_age = values.get(name, (0, 0.0))
                values[name] = max(known_depth, depth), max(known_age, now - oldest.get(name, now))

    def history(self, now: float, name: QueueName) -> tuple[list[int], list[int]]:
        """Return the depths and the ages in seconds of a queue and kind, oldest first. Steps before the first one are left out."""
        last = int(now) // STEP
        steps = dict(self._steps)
        found = [
            steps.get(step, {}).get(name, (0, 0.0)) for step in range(max(self._first, last - POINTS + 1), last + 1)
        ]
        return [depth for depth, _ in found], [round(age) for _, age in found]
