"""The drain of a worker: stop claiming, stop the handlers, release their runs, and leave."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.clock import Clock
from coordinator.model.outcome import Release
from workers.attempt.attempt import Attempt
from workers.process.attempt_table import AttemptTable
from workers.process.claiming.claimer import Claimer
from workers.process.endings import Endings
from workers.process.membership import Membership
from workers.process.stopping.shutdown import Shutdown
from workers.process.stopping.stops import CLEAN_UP_SECONDS, Stops
from workers.process.tasks import TaskSet, cancel_all

logger = logging.getLogger(__name__)
SETTLE_SECONDS = 1.0  # how long a drain waits until the server knows the real costs of external calls
CLAIM_ANSWER_SECONDS = 1.0  # how long a drain waits for the answer of a claim before it stops the handlers


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of a drain.

    Attributes:
        left_to_recovery: The ids of runs that the worker could not release. The coordinator recovers them.
        has_left: True if the server has removed the worker, so that it owns no run.
    """

    left_to_recovery: list[str]
    has_left: bool


class Drain:
    """Drain a worker. The heartbeats continue until the drain is over.

    Args:
        grace: Seconds that a handler without a grace time of its own may take to reach a cut.
        clock: The time source.
        table: The attempts of the process.
        stops: Stops attempts.
        endings: Removes attempts.
        membership: The leases.
        shutdown: The shutdown of the worker, which may take away the grace of the handlers.
        tasks: Holds background tasks.
        settle: Waits until the server knows the ends of all external calls, at most for a number of seconds.
    """

    def __init__(
        self,
        grace: float,
        clock: Clock,
        table: AttemptTable,
        stops: Stops,
        endings: Endings,
        membership: Membership,
        shutdown: Shutdown,
        tasks: TaskSet,
        settle: Callable[[float], Awaitable[None]],
    ) -> None:
        self._settle = settle
        self._default_grace, self._clock, self._table, self._stops = grace, clock, table, stops
        self._endings, self._membership, self._shutdown, self._tasks = endings, membership, shutdown, tasks

    async def run(self, claimers: Sequence[Claimer], listening: Sequence[asyncio.Task[Any]]) -> DrainResult:
        """Drain the worker, and return how the drain ended.

        Args:
            claimers: The claimers of all partitions.
            listening: The tasks that claim runs and read the inbox. They are cancelled first.
        """
        count = len(self._table)
        logger.info("draining %d %s (process %d)", count, "run" if count == 1 else "runs", os.getpid())
        for lease in self._membership.leases.values():
            self._tasks.spawn(self._membership.announce_drain(lease))
        await self._stop_claiming(claimers, listening)
        for attempt in self._table.all():
            attempt.request_stop("drain")
        graces = [self._grace(attempt) for attempt in self._table.all()]
        deadline = self._clock.monotonic() + max(graces, default=0.0) + 2 * CLEAN_UP_SECONDS
        self._shutdown.deadline = deadline
        await self._end_attempts()
        # The last claim was answered or cancelled. If it returned runs, they are released too.
        await asyncio.gather(*_unanswered(claimers), return_exceptions=True)
        await self._end_attempts()
        self._shutdown.deadline = min(deadline, self._clock.monotonic() + CLEAN_UP_SECONDS)
        await self._wait_until_empty(CLEAN_UP_SECONDS)
        # The server ends the calls of a worker that leaves with the cost that they have reserved.
        await self._settle(SETTLE_SECONDS)
        return await self._leave()

    async def _stop_claiming(self, claimers: Sequence[Claimer], listening: Sequence[asyncio.Task[Any]]) -> None:
        """Stop claiming, and wait for the claims that are under way. Otherwise the worker would claim runs only to release them."""
        for claimer in claimers:
            claimer.draining = True
        await cancel_all(listening)
        if unanswered := _unanswered(claimers):
            await asyncio.wait(unanswered, timeout=CLAIM_ANSWER_SECONDS)

    def _grace(self, attempt: Attempt) -> float:
        return attempt.handler.grace if attempt.handler.grace is not None else self._default_grace

    async def _end_attempts(self) -> None:
        await asyncio.gather(*(self._end_attempt(attempt) for attempt in self._table.all()))

    async def _end_attempt(self, attempt: Attempt) -> None:
        """Wait for the handler until its grace is over, then cancel it. If it still does not stop, release the run without it."""
        task = attempt.task
        assert task is not None
        hurry = self._tasks.spawn(self._shutdown.wait_without_grace())
        # The handler of a lost run has been asked to stop before, and its result does not count.
        grace = 0.0 if attempt.lost else self._grace(attempt)
        await asyncio.wait({task, hurry}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await self._stops.cancel_until_ended(attempt, 0.0)
        if attempt.performing and not attempt.decided:
            logger.warning("run %s is released, but %r does not stop", attempt.id, attempt.handler)
            await self._endings.end_without_handler(attempt, Release(stopping=True))

    async def _wait_until_empty(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._table.empty.wait()
        except TimeoutError:
            return

    async def _leave(self) -> DrainResult:
        leases = list(self._membership.leases.values())
        left = dict(zip(leases, await asyncio.gather(*map(self._membership.leave, leases)), strict=True))
        # In partitions that the worker has left, `leave` has released the runs whose outcome could not be recorded.
        unrecorded = [attempt for attempt in self._endings.unrecorded if not left.get(attempt.lease, True)]
        left_to_recovery = [attempt.id for attempt in [*unrecorded, *self._table.all()]]
        for id in left_to_recovery:
            logger.error("run %s is left to recovery", id)
        return DrainResult(left_to_recovery, has_left=all(left.values()) and not left_to_recovery)


def _unanswered(claimers: Sequence[Claimer]) -> list[asyncio.Task[Any]]:
    return [claimer.asking for claimer in claimers if claimer.asking is not None]
