"""Send the events of all attempts of a process to the server.

Handlers never wait for their events. The events of all runs of a partition that emit within 5 to 20 ms share requests. While the
server cannot be reached, or its memory is full, the events stay in the outboxes of the attempts, which drop the oldest ones if
there are too many. Each partition has a task of its own, so a partition whose server does not answer delays no events of the
others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError, Unreadable
from coordinator.model.features import OUTPUT
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.attempts import Output
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.output.outbox import UnsentBytes

if TYPE_CHECKING:
    from workers.attempt.attempt import Attempt

logger = logging.getLogger(__name__)

SHORTEST_PACE = 0.005  # seconds between two sends, while few runs emit
PACE = 0.02  # seconds between two sends, while many runs emit
PACE_OF_A_RUN = 0.0002  # seconds of pace for each run in the last send: from 100 runs on, the pace is the longest one
LONGEST_BACK_OFF = 2.0  # seconds between two sends to a server that cannot be reached, or whose memory is full
MOST_EVENTS = 500  # in one request
MOST_BYTES = 256 * 1024  # of the events in one request, except for the events of its last run
TRUSTED_SECONDS = 10.0  # seconds after a check for which all processes of a partition are assumed to know outputs


@dataclass(slots=True)
class Sending:
    """The runs of one partition that have events to send, and the task that sends them.

    Attributes:
        dirty: The attempts that have events.
        task: The task; None while there is nothing to send.
        at: When the last send began.
        runs: The number of runs in the last send; 0 while there is nothing to send.
        failures: The number of sends in succession that failed.
    """

    dirty: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    at: float = -1.0
    runs: int = 0
    failures: int = 0


@dataclass(slots=True)
class Emitter:
    """Send the events of the attempts of a process.

    Attributes:
        wire: The connection to the server.
        clock: The time source.
        unsent: The bytes of the events of all runs of the process that the server may not have stored yet.
    """

    wire: AsyncWire
    clock: Clock
    unsent: UnsentBytes = field(default_factory=UnsentBytes)
    _partitions: defaultdict[str, Sending] = field(default_factory=lambda: defaultdict(Sending))
    _trusted: dict[int, float] = field(default_factory=dict)  # by partition: until when its processes need no check
    _warned: set[str] = field(default_factory=set)

    def schedule(self, attempt: Attempt) -> None:
        """Send the events of an attempt soon. The caller must be on the worker's event loop."""
        sending = self._partitions[attempt.lease.keys.at]
        sending.dirty[attempt.key] = attempt
        if sending.task is None:
            sending.task = asyncio.get_running_loop().create_task(self._work(sending))

    async def _work(self, sending: Sending) -> None:
        try:
            while sending.dirty:
                rest = sending.at + self._pause(sending) - self.clock.monotonic()
                await self.clock.asleep(max(0.0, rest))
                sending.at = self.clock.monotonic()
                attempts = deque(sending.dirty.values())
                sending.dirty, sending.runs = {}, len(attempts)
                sending.failures = 0 if await self._send(sending, attempts) else sending.failures + 1
        finally:
            sending.task, sending.runs = None, 0

    def _pause(self, sending: Sending) -> float:
        """Return the seconds between the last send of a partition and the next one.

        If few runs emit, a send costs little, and readers get their events sooner. If many runs emit, fewer and larger sends save
        time of the server, of this process and of the readers.
        """
        if sending.failures:
            return min(PACE * (1 << min(sending.failures, 10)), LONGEST_BACK_OFF)
        runs = sum(partition.runs for partition in self._partitions.values())
        return min(max(PACE_OF_A_RUN * runs, SHORTEST_PACE), PACE)

    async def _send(self, sending: Sending, left: deque[Attempt]) -> bool:
        """Send the events of attempts of one partition, one request after the other. Return False after a failure.

        The requests are small, and each one waits for the answer to the one before. So the server can answer saves, claims and
        heartbeats between two of them, however many runs emit.
        """
        while left:
            batch = self._take_batch(left)
            if not batch:
                continue
            answers = await self._ask(batch)
            if answers is None:
                for attempt in (*(attempt for attempt, _ in batch), *left):
                    sending.dirty.setdefault(attempt.key, attempt)
                return False
            for (attempt, output), answer in zip(batch, answers, strict=True):
                if not self._take_answer(attempt, output, answer):
                    sending.dirty.setdefault(attempt.key, attempt)
        return True

    async def _ask(self, batch: list[tuple[Attempt, Output]]) -> list[str] | None:
        """Return the server's answer for each attempt. Return None if the events may not be stored, and must be sent again."""
        try:
            return await self._store(batch) if await self.is_known(batch[0][0]) else None
        except CoordinatorError as error:
            logger.debug("events of %d runs could not be stored and are sent again: %s", len(batch), error)
        except Exception:  # without this, no further event of the partition would be sent
            logger.exception("events of %d runs could not be stored and are sent again", len(batch))
        return None

    def _take_batch(self, left: deque[Attempt]) -> list[tuple[Attempt, Output]]:
        """Remove attempts from the front of `left`, as many as fit into a request. Return those with events, and their events."""
        batch: list[tuple[Attempt, Output]] = []
        events = size = 0
        while left and events < MOST_EVENTS and size < MOST_BYTES:
            attempt = left.popleft()
            attempt.emits_soon = False
            outbox = attempt.outbox
            output = None if outbox is None else outbox.take(most=MOST_EVENTS - events)
            if output is not None:
                batch.append((attempt, output))
                events += len(output.events)
                size += sum(map(len, output.events))
        return batch

    async def _store(self, batch: list[tuple[Attempt, Output]]) -> list[str]:
        """Send the events of a batch in one request, and return the server's answer for each attempt."""
        plan = attempt_plans.emit(
            batch[0][0].lease.keys.at, [(attempt.id, attempt.token, output) for attempt, output in batch]
        )
        answers = await drive_async(self.wire, plan, give_up=lambda: True)
        if len(answers) != len(batch):
            raise Unreadable(f"the server answered {len(answers)} of {len(batch)} runs")
        return answers

    def _take_answer(self, attempt: Attempt, output: Output, answer: str) -> bool:
        """Remove the events of an attempt that the server has stored. Return False if some are left, and must be sent again.

        Args:
            attempt: The attempt.
            output: The events that were sent.
            answer: The server's answer: `ok`, or another word if it refuses the events.
        """
        outbox = attempt.outbox
        assert outbox is not None
        if answer == "ok":
            outbox.stored(output)
        else:  # the run belongs to another owner; a save or a heartbeat stops the handler
            outbox.close()
        return not outbox.waiting

    async def send_ahead(self, attempt: Attempt, give_up: Callable[[], bool] = lambda: False) -> None:
        """Send events of an attempt until few are left, which its save or its outcome then carries.

        The server answers no other request while it stores the events of one. If a request fails, the save or the outcome carries
        all events.

        Args:
            attempt: The attempt.
            give_up: Returns True when the worker has no time left for this. The save or the outcome then carries all events.
        """
        outbox = attempt.outbox
        assert outbox is not None
        for _ in range(len(outbox) // MOST_EVENTS):  # a handler that emits meanwhile does not make this longer
            if give_up():
                return
            output = outbox.take(most=MOST_EVENTS)
            answers = None if output is None else await self._ask([(attempt, output)])
            if output is None or answers is None:
                return
            self._take_answer(attempt, output, answers[0])

    async def is_known(self, attempt: Attempt, give_up: Callable[[], bool] = lambda: True) -> bool:
        """Return False if a live process of the partition runs an older version that does not know outputs. Log this process once.

        When such a process ends a run, it would not write the end of the run's output, and would never delete the output.

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
                "events of run %s are not stored yet, because %s was started with an older version that does not support events: "
                "restart that process with the new version", attempt.id, old,
            )  # fmt: skip
        return False

    async def may_carry(self, attempt: Attempt, give_up: Callable[[], bool] = lambda: True) -> bool:
        """Return True if a save or an outcome may carry the events of an attempt.

        A run whose output exists keeps it complete, even if a process of an older version was started meanwhile.

        Args:
            attempt: The attempt.
            give_up: Returns True when the worker cannot wait for the server any longer.

        Raises:
            CoordinatorError: If the server could not be asked.
        """
        return (attempt.outbox is not None and attempt.outbox.begun) or await self.is_known(attempt, give_up)
