"""Count what happens in a worker process. Every method costs less than a microsecond and never raises."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from coordinator.metrics import catalog
from coordinator.metrics.catalog import LONG, OUTCOMES, SHORT
from workers.metrics.cells import Cells

PRIORITY_STEP = 1 << 43  # see Counters.score
SAMPLED = 8  # of a claim with at least this number of runs, every eighth run is measured and counted for eight

_PER_KIND = (
    *((catalog.ATTEMPTS, (outcome,)) for outcome in OUTCOMES),
    *(
        (metric, ())
        for metric in (
            catalog.ATTEMPT_SECONDS, catalog.QUEUED, catalog.PICKUP, catalog.RESUME, catalog.REDONE, catalog.STRIKES,
            catalog.FENCED, catalog.SAVE_SECONDS, catalog.SAVED_BYTES, catalog.THROTTLED,
        )
    ),
)  # fmt: skip
_SINGLE = (
    *((catalog.CLAIMS, (answer,)) for answer in ("runs", "empty")),
    *(
        (metric, ())
        for metric in (catalog.ROUND_TRIP, catalog.SLOTS, catalog.SLOTS_BUSY, catalog.MEMORY, catalog.AT_RISK)
    ),
)


class ClaimedRun(Protocol):
    """The parts of a claimed run that are measured."""

    @property
    def cause(self) -> str:
        """Why the run was started again; empty for a new run."""
        ...

    @property
    def counters(self) -> str:
        """The stored counters of the run."""
        ...


class KindOfRun(Protocol):
    """The handler of a run."""

    @property
    def kind(self) -> str:
        """The kind."""
        ...


class WorkerMetrics:
    """The counts, distributions and gauges of one worker process.

    Args:
        kinds: The kinds of the process's handlers.
        file: The descriptor of the file that the process shares with its supervisor; None if there is no supervisor.
    """

    def __init__(self, kinds: Sequence[str], file: int | None = None) -> None:
        self.cells = cells = Cells(kinds, _PER_KIND, _SINGLE, file)
        self._values, self._base = cells.values, cells.base
        self._outcomes = {word: cells.offset(catalog.ATTEMPTS, word) for word in OUTCOMES}
        self._seconds, self._seconds_sum = _histogram(cells, catalog.ATTEMPT_SECONDS)
        self._queued, self._queued_sum = _histogram(cells, catalog.QUEUED)
        self._claims = cells.at(catalog.CLAIMS, "runs"), cells.at(catalog.CLAIMS, "empty")
        self._at = {one.metric.name: one.at for one in cells.per_kind}
        self._round_trip = cells.at(catalog.ROUND_TRIP)

    # -- called for each attempt

    def attempt_ended(self, kind: str, outcome: str, seconds: float) -> None:
        """Count an attempt whose outcome the server has confirmed."""
        values, base = self._values, self._base[kind]
        values[base + self._outcomes[outcome]] += 1.0
        values[base + self._seconds + bisect_left(LONG, seconds)] += 1.0
        values[base + self._seconds_sum] += seconds

    def claimed(self, runs: Sequence[tuple[ClaimedRun, KindOfRun]]) -> None:
        """Count a claim, and measure how long its new runs were queued. Of a large claim, one run in eight is measured.

        Args:
            runs: The runs that the claim brought, with their handlers.
        """
        count, values = len(runs), self._values
        values[self._claims[0] if count else self._claims[1]] += 1.0
        step = SAMPLED if count >= SAMPLED else 1
        for i in range(0, count, step):
            run, handler = runs[i]
            if run.cause:
                continue
            parts = run.counters.split(" ")
            # The score is the time at which the run could be claimed, minus its priority times 2^43.
            seconds = max(0.0, (int(parts[2]) - int(parts[10]) % PRIORITY_STEP) / 1000)
            weight, base = min(step, count - i), self._base[handler.kind]
            values[base + self._queued + bisect_left(LONG, seconds)] += weight
            values[base + self._queued_sum] += weight * seconds

    # -- called less often

    def started(self, kind: str, seconds: float) -> None:
        """Measure the time from the claim to the handler's first line."""
        self._observe(kind, catalog.PICKUP, SHORT, seconds)

    def resumed(self, kind: str, seconds: float, redone: float, *, struck: bool) -> None:
        """Measure an attempt at a run that had lost its worker.

        Args:
            kind: The kind of the run.
            seconds: Time from the loss to the claim.
            redone: Seconds of work that are repeated at most.
            struck: Whether the run has strikes.
        """
        self._observe(kind, catalog.RESUME, LONG, seconds)
        self._count(kind, catalog.REDONE, redone)
        self._count(kind, catalog.STRIKES, float(struck))

    def saved(self, kind: str, seconds: float, size: int) -> None:
        """Measure a save that the server has answered."""
        self._observe(kind, catalog.SAVE_SECONDS, SHORT, seconds)
        self._count(kind, catalog.SAVED_BYTES, size)

    def fenced(self, kind: str) -> None:
        """Count a write that the server refused because the run belongs to another worker."""
        self._count(kind, catalog.FENCED, 1.0)

    def throttled(self, kind: str, cuts: int) -> None:
        """Count cuts that were replaced by newer ones before they were sent."""
        self._count(kind, catalog.THROTTLED, cuts)

    def heartbeat_answered(self, seconds: float) -> None:
        """Measure a round trip to the server. The heartbeat's thread calls this, and no other thread writes these cells."""
        self._values[self._round_trip + bisect_left(SHORT, seconds)] += 1.0
        self._values[self._round_trip + len(SHORT) + 1] += seconds

    def set_gauges(self, *, slots: int, busy: int, memory: int, at_risk: float) -> None:
        """Set the gauges of the process."""
        for metric, value in (
            (catalog.SLOTS, slots), (catalog.SLOTS_BUSY, busy), (catalog.MEMORY, memory), (catalog.AT_RISK, at_risk),
        ):  # fmt: skip
            self._values[self.cells.at(metric)] = value

    def _count(self, kind: str, metric: catalog.Metric, value: float) -> None:
        self._values[self._base[kind] + self._at[metric.name]] += value

    def _observe(self, kind: str, metric: catalog.Metric, bounds: tuple[float, ...], seconds: float) -> None:
        first = self._base[kind] + self._at[metric.name]
        self._values[first + bisect_left(bounds, seconds)] += 1.0
        self._values[first + len(bounds) + 1] += seconds


def _histogram(cells: Cells, metric: catalog.Metric) -> tuple[int, int]:
    """Return the positions of the first bucket and of the sum of a histogram."""
    first = cells.offset(metric)
    return first, first + len(metric.bounds) + 1
