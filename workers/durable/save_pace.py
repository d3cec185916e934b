"""Decide which record is saved next, and when. This module does no I/O: the checkpointer saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from coordinator.clock import Clock
from coordinator.errors import Refused, ServerFull
from workers.durable.records.record import Checkpoint, Fenced, Meta, Phase
from workers.throttle import Throttle

LONGEST_BACK_OFF = 5.0  # seconds


class SavePace:
    """The pending record of one run, and the time at which to save it.

    Args:
        meta: The metadata of the run.
        window: Seconds between two saves.
        clock: The time source.
    """

    def __init__(self, meta: Meta, window: float, clock: Clock) -> None:
        self.meta = meta
        self._throttle, self._clock = Throttle(window), clock
        self._pending: Checkpoint | None = None
        self._saved_phases = 0
        self._failures, self._retry_at = 0, 0.0
        self._ended = ""
        self._fenced: Fenced | None = None

    def submit(
        self, messages: Sequence[Any], iteration: int, phases: Iterable[Phase], state: Mapping[str, Any], schema: int
    ) -> bool:
        """Make the run's current state the pending record. Later changes of the messages do not change the record.

        Returns:
            True if the record is to be saved immediately.

        Raises:
            Fenced: If another process has taken over the run.
            Refused: If the run has ended.
        """
        if self._fenced is not None:
            raise self._fenced
        if self._ended:
            raise Refused(f"run {self.meta.run_id} has {self._ended}: it can't be saved any more")
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        self._pending = Checkpoint(self.meta, messages, iteration, tuple(phases), state, now, schema).frozen()
        new_phase = len(self._pending.phases) > self._saved_phases
        return new_phase or self._throttle.wait(self._clock.monotonic()) <= 0

    def wait(self) -> float | None:
        """Return the seconds until the pending record is due, or None if there is none."""
        if self._pending is None:
            return None
        now = self._clock.monotonic()
        return max(0.0, self._retry_at - now) if self._failures else self._throttle.wait(now)

    def begin(self) -> tuple[Checkpoint, float] | None:
        """Take the pending record in order to save it.

        Returns:
            The record and the time at which the save begins, or None if no record is pending.
        """
        pending, self._pending = self._pending, None
        return None if pending is None else (pending, self._clock.monotonic())

    def saved(self, record: Checkpoint, begun: float) -> None:
        """Note that a record was saved. Only this starts the throttle's window, so that a failed save does not delay the next."""
        self._throttle.saved(begun)
        self._saved_phases, self._failures = len(record.phases), 0

    def failed(self, record: Checkpoint, error: BaseException) -> None:
        """Note that the save of a record failed.

        The record becomes pending again, unless a newer one is pending, the run has ended, or the store refused it for good.
        """
        if isinstance(error, Fenced):
            self._fenced, self._pending = error, None
            return
        self._failures += 1
        self._retry_at = self._clock.monotonic() + min(0.1 * 2 ** min(self._failures, 10), LONGEST_BACK_OFF)
        final = isinstance(error, Refused) and not isinstance(error, ServerFull)
        if self._pending is None and not self._ended and not final:
            self._pending = record

    def end(self, how: str) -> None:
        """Note that the run has ended, and drop the pending record.

        Args:
            how: The ending, as `submit` names it in its error: completed or failed.
        """
        self._ended, self._pending = how, None
