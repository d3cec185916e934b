"""Stop attempts: because of a cancel request, a deadline, a lost lease or a lease in doubt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.model.outcome import Fail, Release
from coordinator.model.policies.deadline import DeadlineExceeded
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.attempt import Attempt
from workers.attempt.failure import failure
from workers.liveness.lease import Lease
from workers.process.attempt_table import AttemptTable
from workers.process.endings import Endings
from workers.process.stopping.shutdown import Shutdown
from workers.process.tasks import TaskSet

logger = logging.getLogger(__name__)
CANCEL_AFTER = 1.0  # seconds that a handler has to stop at a cut before its task is cancelled
CANCEL_EVERY = 2.0  # seconds between two cancellations of a task
CLEAN_UP_SECONDS = 5.0  # how long a cancelled handler may take to clean up


class Stops:
    """Stop the attempts of a worker.

    Args:
        wire: The connection to the server.
        clock: The time source.
        table: The attempts of the process.
        endings: Removes attempts.
        shutdown: The shutdown of the worker, which is requested when a handler does not stop, so that the supervisor replaces the
            process.
        tasks: Holds background tasks.
        supervised: True if a supervisor replaces this process when it has drained.
        grace: Seconds that a handler without a grace time of its own may take to stop after its run was lost.
        report_stuck: A function that is called with the id of a run whose handler does not stop.
    """

    def __init__(
        self,
        wire: AsyncWire,
        clock: Clock,
        table: AttemptTable,
        endings: Endings,
        shutdown: Shutdown,
        tasks: TaskSet,
        *,
        supervised: bool,
        grace: float,
        report_stuck: Callable[[str], None],
    ) -> None:
        self._wire, self._clock, self._table, self._endings = wire, clock, table, endings
        self._shutdown, self._tasks = shutdown, tasks
        self._supervised, self._grace, self._report_stuck = supervised, grace, report_stuck
        self._lost = set[tuple[str, str]]()  # the attempts at lost runs whose handlers are being stopped

    # -- a cancel request

    def cancel(self, id: str) -> None:
        """Ask the handler of a cancelled run to stop. If the handler has not stopped a second later, cancel its task."""
        attempt = self._table.by_id(id)
        if attempt is not None and attempt.stopping is None and not attempt.decided:
            attempt.request_stop("cancel")
            self._tasks.spawn(self.cancel_until_ended(attempt, CANCEL_AFTER))

    async def cancel_until_ended(self, attempt: Attempt, after: float, most: float = CLEAN_UP_SECONDS) -> None:
        """Cancel the task of a handler every two seconds until it has ended.

        The cancellation is repeated, because Python 3.11 can swallow one. The handler has time to clean up between two of them.
        A plain handler cannot be cancelled. It gets the same time to reach a cut.

        Args:
            attempt: The attempt.
            after: Seconds to wait before the first cancellation.
            most: Seconds after which this method returns even if the handler has not ended.
        """
        task = attempt.task
        assert task is not None
        if after:
            await asyncio.wait({task}, timeout=after)
        until = self._clock.monotonic() + most
        while not task.done() and attempt.performing and self._clock.monotonic() < until:
            attempt.cancel()
            await asyncio.wait({task}, timeout=CANCEL_EVERY)

    # -- a deadline

    def kill(self, attempt: Attempt, error: DeadlineExceeded) -> None:
        """Stop an attempt whose deadline has passed. If it has not stopped a second later, cancel its task.

        The run fails with `error`.
        """
        logger.warning("run %s is killed: %s", attempt.id, error)
        attempt.request_kill(error)
        self._tasks.spawn(self._mark_killed(attempt, error))
        self._tasks.spawn(self._fail_if_it_does_not_stop(attempt))

    async def _mark_killed(self, attempt: Attempt, error: DeadlineExceeded) -> None:
        """Store the kill with the run, so that the run ends as failed even if this process dies before the handler has ended.

        The outcome of the attempt stores the same error again.
        """
        plan = attempt_plans.kill(attempt.lease.keys, attempt.id, attempt.token, failure(error))
        with contextlib.suppress(CoordinatorError):
            await drive_async(self._wire, plan, give_up=lambda: attempt.decided)

    async def _fail_if_it_does_not_stop(self, attempt: Attempt) -> None:
        await self.cancel_until_ended(attempt, CANCEL_AFTER)
        if attempt.decided or not attempt.performing:
            return
        logger.error("run %s is failed at its deadline, but %r does not stop", attempt.id, attempt.handler)
        await self._endings.end_without_handler(attempt, Fail(attempt.killed or TimeoutError()))
        self._replace_process(attempt)

    def _replace_process(self, attempt: Attempt) -> None:
        """Drain this process because of a handler that does not stop: only the end of the process ends the handler.

        Without a supervisor that replaces the process, only log that the handler keeps its slot.
        """
        self._report_stuck(attempt.id)
        self._table.mark_stuck(attempt)
        if not self._supervised:
            logger.error("no supervisor replaces this process: the handler keeps its slot until it stops")
        elif not self._shutdown.is_requested():
            logger.error("draining: only the end of this process ends that handler, and the supervisor replaces it")
            self._shutdown.request()

    # -- leases

    def lease_lost(self, lease: Lease) -> None:
        """Stop all attempts whose runs were claimed under a lease that is gone."""
        for attempt in self._table.of(lease):
            self._tasks.spawn(self._release_lost(attempt))

    async def _release_lost(self, attempt: Attempt) -> None:
        """Stop the handler, and try once to release the run with its newest state.

        The server accepts the release only if the token of the attempt still owns the run.
        """
        if not attempt.decided:
            attempt.lose()
            await self._endings.end_without_handler(attempt, Release(stopping=True))

    def run_lost(self, attempt: Attempt) -> None:
        """Stop an attempt whose run belongs to another owner, or was ended by another process.

        Heartbeats report the loss until the handler has ended. Further calls change nothing.
        """
        if attempt.key not in self._lost:
            self._lost.add(attempt.key)
            self._tasks.spawn(self._stop_lost(attempt))

    async def _stop_lost(self, attempt: Attempt) -> None:
        cancelling = self._tasks.spawn(self.cancel_until_ended(attempt, CANCEL_EVERY, math.inf))
        grace = attempt.handler.grace if attempt.handler.grace is not None else self._grace
        await asyncio.wait({cancelling}, timeout=max(grace, CANCEL_AFTER + CLEAN_UP_SECONDS))
        # While the server cannot be reached, a drain could not release the other runs of this process.
        while not cancelling.done() and attempt.lease.in_doubt and not attempt.lease.gone:
            await self._clock.asleep(CANCEL_AFTER)
        if not cancelling.done():
            logger.error("run %s is lost, but %r does not stop", attempt.id, attempt.handler)
            self._replace_process(attempt)
            await asyncio.wait({cancelling})
        self._lost.discard(attempt.key)

    async def watch_doubt(self, interval: float) -> None:
        """Stop attempts whose lease is in doubt, if their kind has on_lost_lease="stop", until this task is cancelled.

        An attempt whose handler has ended is not stopped, because then its work would be repeated. The server decides by its token
        whether the outcome counts.

        Args:
            interval: Seconds between two checks.
        """
        while True:
            await self._clock.asleep(interval)
            if not any(lease.in_doubt for lease in self._table.stopping_leases()):
                continue
            for attempt in self._table.all():
                stops = attempt.handler.on_lost_lease == "stop" and not attempt.decided
                if stops and attempt.lease.in_doubt and not attempt.lost:
                    attempt.lose()  # only once, because each call cancels the handler
