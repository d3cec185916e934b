"""Count and measure the attempts, claims, saves and heartbeats of a worker process.

The methods that are called for each attempt are written for speed: a worker completes 20,000 empty runs per second, and metrics
may cost less than 1 % of that.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Protocol

from coordinator.clock import Clock, SystemClock
from coordinator.metrics import catalog
from coordinator.metrics.catalog import LONG, OUTCOMES, SHORT
from coordinator.model.slots import SlotUse
from workers.metrics.cells import Cells

PRIORITY_STEP = 1 << 43  # see Counters.score
LARGE_CLAIM = 8  # of a claim with at least this number of runs, only one is measured, and its value counts for all
ONE_IN = 8  # of the attempts of such claims that are shorter than SHORT_ATTEMPT, one in this number is measured
SHORT_ATTEMPT = 0.1  # seconds

_PER_KIND = (
    *((catalog.ATTEMPTS, (outcome,)) for outcome in OUTCOMES),
    *(
        (metric, ())
        for metric in (
            catalog.ATTEMPT_SECONDS, catalog.QUEUED, catalog.PICKUP, catalog.RESUME, catalog.REDONE, catalog.STRIKES,
            catalog.FENCED, catalog.SAVE_SECONDS, catalog.SAVED_BYTES, catalog.THROTTLED, catalog.LIMIT_WAIT,
        )
    ),
)  # fmt: skip
_SINGLE = (
    *((catalog.CLAIMS, (answer,)) for answer in ("runs", "empty")),
    *(
        (metric, ())
        for metric in (
            catalog.ROUND_TRIP,
            catalog.SLOTS,
            catalog.SLOTS_BUSY,
            catalog.FINISHING,
            catalog.MEMORY,
            catalog.AT_RISK,
        )
    ),
)


class ClaimedRun(Protocol):
    """The attributes of a claimed run that the metrics read."""

    @property
    def cause(self) -> str:
        """The cause for which the run was started again, as in `Resumed.cause`; empty for a new run."""
        ...

    @property
    def counters(self) -> str:
        """The stored counters of the run."""
        ...

    @property
    def token(self) -> str:
        """The token of the run's owner."""
        ...


class KindOfRun(Protocol):
    """The attribute of a handler that the metrics read."""

    @property
    def kind(self) -> str:
        """The kind of the handler's runs."""
        ...


class OfferedCuts(Protocol):
    """The attributes of a saver that the metrics read."""

    @property
    def offered(self) -> int:
        """The number of cuts that were offered."""
        ...

    @property
    def skipped(self) -> int:
        """The number of cuts that were not sent, because a newer cut replaced them first."""
        ...


class EndedAttempt(Protocol):
    """The attributes of an ended attempt that the metrics read."""

    @property
    def handler(self) -> KindOfRun:
        """The handler of the attempt's kind."""
        ...

    @property
    def began(self) -> float:
        """The monotonic time at which the worker received the answer to its claim."""
        ...

    @property
    def saver(self) -> OfferedCuts | None:
        """The saver of the attempt; None if the attempt ended before it was loaded."""
        ...


class WorkerMetrics:
    """The counts, distributions and gauges of one worker process.

    Args:
        kinds: The kinds of the process's handlers.
        file: The descriptor of the file that the process shares with its supervisor; None if there is no supervisor.
    """

    def __init__(self, kinds: Sequence[str], file: int | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.cells = cells = Cells(kinds, _PER_KIND, _SINGLE, file)
        self._values, self._base = cells.values, cells.base
        self._outcomes = {word: cells.offset(catalog.ATTEMPTS, word) for word in OUTCOMES}
        self._seconds, self._seconds_sum = _histogram(cells, catalog.ATTEMPT_SECONDS)
        self._completed = list[EndedAttempt]()  # in this turn of the event loop
        self._queued, self._queued_sum = _histogram(cells, catalog.QUEUED)
        self._claims = cells.at(catalog.CLAIMS, "runs"), cells.at(catalog.CLAIMS, "empty")
        self._at = {one.metric.name: one.at for one in cells.per_kind}
        self._round_trip = cells.at(catalog.ROUND_TRIP)

    # -- called for each attempt

    def attempt_completed(self, attempt: EndedAttempt) -> None:
        """Count an attempt that completed its run, together with all others that complete in this turn of the event loop."""
        completed = self._completed
        if not completed:
            asyncio.get_running_loop().call_soon(self._count_completed)
        completed.append(attempt)

    def _count_completed(self) -> None:
        """Count the attempts that have completed since the last call.

        Every attempt is counted. If eight or more attempts of a kind have completed together, were short, and saved nothing, the
        time of one in eight counts for all of them, because measuring costs more than counting.
        """
        completed, self._completed = self._completed, []
        now, outcome = self._clock.monotonic(), self._outcomes["completed"]
        since = now - SHORT_ATTEMPT
        for kind, attempts in self._by_kind(completed):
            self._values[self._base[kind] + outcome] += len(attempts)
            if [one for one in attempts if one.began < since or one.saver is None or one.saver.offered]:
                for one in attempts:
                    self._count_skipped(kind, one.saver)
                step = 1
            else:
                step = ONE_IN if len(attempts) >= ONE_IN else 1
            for i in range(0, len(attempts), step):
                self._measure(kind, now - attempts[i].began, min(step, len(attempts) - i))

    def _by_kind(self, attempts: list[EndedAttempt]) -> Iterable[tuple[str, list[EndedAttempt]]]:
        """Return the attempts of each kind."""
        if len(self._base) == 1:
            return [(attempts[0].handler.kind, attempts)]
        found = dict[str, list[EndedAttempt]]()
        for one in attempts:
            found.setdefault(one.handler.kind, []).append(one)
        return found.items()

    def attempt_ended(self, attempt: EndedAttempt, outcome: str, now: float) -> None:
        """Count and measure an attempt whose outcome the server has confirmed.

        Args:
            attempt: The attempt.
            outcome: Its outcome, one of OUTCOMES.
            now: The monotonic time.
        """
        kind = attempt.handler.kind
        self._values[self._base[kind] + self._outcomes[outcome]] += 1.0
        self._count_skipped(kind, attempt.saver)
        self._measure(kind, now - attempt.began, 1.0)

    def _measure(self, kind: str, seconds: float, weight: float) -> None:
        values, base = self._values, self._base[kind]
        values[base + self._seconds + bisect_left(LONG, seconds)] += weight
        values[base + self._seconds_sum] += weight * seconds

    def _count_skipped(self, kind: str, saver: OfferedCuts | None) -> None:
        if saver is not None and saver.skipped:
            self._count(kind, catalog.THROTTLED, saver.skipped)

    def claimed(self, runs: Sequence[tuple[ClaimedRun, KindOfRun]]) -> None:
        """Count a claim, and measure how long its new runs were queued.

        Of a claim with eight or more runs, the one in the middle counts for all.

        Args:
            runs: The runs that the claim brought, with their handlers. The server orders them by the time that they waited.
        """
        count, values = len(runs), self._values
        values[self._claims[0] if count else self._claims[1]] += 1.0
        measured, weight = (runs, 1) if count < LARGE_CLAIM else (runs[count // 2 : count // 2 + 1], count)
        for run, handler in measured:
            if run.cause:
                continue
            # The score is the time at which the run could be claimed, minus its priority times 2^43. The token begins with the time
            # of the claim.
            ready = int(run.counters.rsplit(" ", 2)[1]) % PRIORITY_STEP
            seconds = max(0.0, (int(run.token.partition("-")[0]) - ready) / 1000)
            base = self._base[handler.kind]
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
            seconds: Seconds from the loss to the claim.
            redone: The largest number of seconds of work that may be repeated.
            struck: True if the run has strikes.
        """
        self._observe(kind, catalog.RESUME, LONG, seconds)
        self._count(kind, catalog.REDONE, redone)
        self._count(kind, catalog.STRIKES, float(struck))

    def saved(self, kind: str, seconds: float, size: int) -> None:
        """Measure a save that the server has answered.

        Args:
            kind: The kind of the run.
            seconds: How long the save took.
            size: The bytes of the messages, the state and the phases in the save.
        """
        self._observe(kind, catalog.SAVE_SECONDS, SHORT, seconds)
        self._count(kind, catalog.SAVED_BYTES, size)

    def fenced(self, kind: str) -> None:
        """Count a write that the server refused because the run belongs to another worker."""
        self._count(kind, catalog.FENCED, 1.0)

    def limit_waited(self, kind: str, seconds: float) -> None:
        """Measure how long an external call waited for its limit."""
        self._observe(kind, catalog.LIMIT_WAIT, LONG, seconds)

    def heartbeat_answered(self, seconds: float) -> None:
        """Measure a round trip to the server. The heartbeat's thread calls this, and no other thread writes these cells."""
        self._values[self._round_trip + bisect_left(SHORT, seconds)] += 1.0
        self._values[self._round_trip + len(SHORT) + 1] += seconds

    def set_gauges(self, *, use: SlotUse, memory: int, at_risk: float) -> None:
        """Set the gauges of the process.

        Args:
            use: How many slots there are, and how many are in use.
            memory: The resident memory in bytes.
            at_risk: The seconds of work that would be repeated if the process died now.
        """
        for metric, value in (
            (catalog.SLOTS, use.slots), (catalog.SLOTS_BUSY, use.busy), (catalog.FINISHING, use.finishing),
            (catalog.MEMORY, memory), (catalog.AT_RISK, at_risk),
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
