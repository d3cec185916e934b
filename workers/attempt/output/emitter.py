"""Send the events of all attempts of a process to the server.

Handlers never wait for their events. The events of all runs that emit within 5 to 20 ms share trips. While the server cannot be
reached, or its memory is full, the events stay in the outboxes of the attempts, which drop the oldest ones if there are too many.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.model.features import OUTPUT
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.output.outbox import MOST_IN_A_CALL

if TYPE_CHECKING:
    from workers.attempt.attempt import Attempt

logger = logging.getLogger(__name__)

SHORTEST_PACE = 0.005  # seconds between two sends, while few runs emit
PACE = 0.02  # seconds between two sends, while many runs emit
PACE_OF_A_RUN = 0.0002  # seconds of pace for each run in the last send: from 100 runs on, the pace is the longest one
LONGEST_BACK_OFF = 2.0  # seconds between two sends to a server that cannot be reached, or whose memory is full
TRUSTED_SECONDS = 10.0  # seconds for which all processes of a partition count as knowing outputs


@dataclass(slots=True)
class Emitter:
    """Send the events of the attempts of a process.

    Attributes:
        wire: The connection to the server.
        clock: The time source.
    """

    wire: AsyncWire
    clock: Clock
    _dirty: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None
    _sent_at: float = -1.0
    _failures: int = 0
    _last_runs: int = 0  # runs in the last send
    _trusted: dict[int, float] = field(default_factory=dict)  # by partition: until when its processes need no check
    _warned: set[str] = field(default_factory=set)

    def schedule(self, attempt: Attempt) -> None:
        """Send the events of an attempt soon. Called on the worker's event loop."""
        self._dirty[attempt.key] = attempt
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._dirty:
                rest = self._sent_at + self._pause() - self.clock.monotonic()
                await self.clock.asleep(max(0.0, rest))
                self._sent_at = self.clock.monotonic()
                dirty, self._dirty = self._dirty, {}
                self._last_runs = len(dirty)
                results = await asyncio.gather(*(self._send(attempt) for attempt in dirty.values()))
                self._failures = self._failures + 1 if results and not any(results) else 0
        finally:
            self._task = None

    def _pause(self) -> float:
        """Return the seconds between the last send and the next one.

        If few runs emit, a send costs little, and readers get their events sooner. If many runs emit, fewer and larger sends save
        time of the server, of this process and of the readers.
        """
        if self._failures:
            return min(PACE * (1 << min(self._failures, 10)), LONGEST_BACK_OFF)
        return min(max(PACE_OF_A_RUN * self._last_runs, SHORTEST_PACE), PACE)

    async def _send(self, attempt: Attempt) -> bool:
        """Send events of one attempt. If some are left, the attempt is sent again. Return False after a failure."""
        attempt.emits_soon = False
        outbox = attempt.outbox
        output = outbox.take(most=MOST_IN_A_CALL) if outbox is not None else None
        if outbox is None or output is None:
            return True
        try:
            if not await self.is_known(attempt):
                self._dirty.setdefault(attempt.key, attempt)
                return False
            plan = attempt_plans.emit(attempt.lease.keys, attempt.id, attempt.token, output)
            answer = await drive_async(self.wire, plan, give_up=lambda: True)
        except CoordinatorError as error:
            logger.debug("events of run %s could not be stored and are sent again: %s", attempt.id, error)
            self._dirty.setdefault(attempt.key, attempt)
            return False
        if answer == "ok":
            outbox.stored(output)
        else:  # the run belongs to another owner; a save or a heartbeat stops the handler
            outbox.close()
        if outbox.waiting:
            self._dirty.setdefault(attempt.key, attempt)
        return True

    async def is_known(self, attempt: Attempt, give_up: Callable[[], bool] = lambda: True) -> bool:
        """Return False if a live process of the partition is of a version that does not know outputs. Log this process once.

        Such a process would end a run without an end of its output, and would leave the output behind for ever.

        Args:
            attempt: The attempt that wants to send events.
            give_up: Returns True when the worker cannot wait for the server any longer.

        Raises:
            CoordinatorError: If the server could not be asked.
        """
        keys, now = attempt.lease.keys, self.clock.monotonic()
        if now < self._trusted.get(keys.partition, 0.0):
            return True
        old = await drive_async(self.wire, worker_plans.find_process_without(keys, OUTPUT), give_up=give_up)
        if old is None:
            self._trusted[keys.partition] = now + TRUSTED_SECONDS
            return True
        if old not in self._warned:
            self._warned.add(old)
            logger.warning(
                "events of run %s are not stored yet, because %s was started with an older version that does not know them: "
                "restart that process with the new version", attempt.id, old,
            )  # fmt: skip
        return False

    def trusts(self, attempt: Attempt) -> bool:
        """Return whether saves may carry events: all processes of the partition have been found to know outputs."""
        return attempt.lease.keys.partition in self._trusted
