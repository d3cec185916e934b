"""Start and carry out the attempts at claimed runs."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from coordinator.model.policies.deadline import DeadlineExceeded
from coordinator.store.plans.workers import Claimed
from workers.attempt.attempt import Attempt
from workers.attempt.deadlines.critic import Critic
from workers.attempt.executor import Executor
from workers.attempt.recorder import Recorder
from workers.handlers.handler import Handler
from workers.liveness.lease import Lease
from workers.metrics.worker_metrics import WorkerMetrics
from workers.process.attempt_table import AttemptTable
from workers.process.claiming.middleware import ClaimedMiddleware
from workers.process.claiming.slots import SlotTable
from workers.process.endings import Endings
from workers.process.options import WorkerOptions
from workers.process.stopping.shutdown import Shutdown
from workers.process.stopping.stops import Stops

logger = logging.getLogger(__name__)
LARGE_CLAIM = 8  # the runs of a claim with at least this number of runs start behind a gate
TURNS_FOR_A_CLAIM = 10  # turns of the event loop from the answer of one claim until the next claim is sent


class Runner:
    """Carry out attempts, from the claim to the recorded outcome. The runner is the observer of its attempts.

    Args:
        options: The settings of the worker.
        slots: Counts the slots that are taken.
        table: The attempts of the process.
        executor: Calls the handlers.
        recorder: Records the outcomes.
        critic: Watches deadlines.
        endings: Removes attempts that are over.
        stops: Stops attempts.
        shutdown: The shutdown of the worker. After it was requested, new attempts are stopped immediately.
        middleware: Finds the middleware of claimed runs.
        metrics: Measures the claims; None to measure nothing.
    """

    def __init__(
        self,
        options: WorkerOptions,
        slots: SlotTable,
        table: AttemptTable,
        executor: Executor,
        recorder: Recorder,
        critic: Critic,
        endings: Endings,
        stops: Stops,
        shutdown: Shutdown,
        middleware: ClaimedMiddleware,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._middleware, self._metrics = middleware, metrics
        self._slots, self._table, self._executor, self._recorder = slots, table, executor, recorder
        self._critic, self._endings, self._stops, self._shutdown = critic, endings, stops, shutdown
        # Usually the slot of an ended handler is free while its outcome is being recorded. There are two exceptions. A worker
        # that ends after a number of runs must not claim another run before it knows the outcome. And a worker with one slot
        # stays empty between two runs, so that it can take a suspect even while other runs are waiting.
        self._frees_slot_early = options.runs is None and options.concurrency > 1

    def start(self, lease: Lease, claims: Sequence[tuple[Claimed, Handler[..., Any]]]) -> None:
        """Start an attempt for each claimed run."""
        if self._metrics is not None:
            self._metrics.claimed(claims)
        loop = asyncio.get_running_loop()
        gate = open_later(loop) if len(claims) >= LARGE_CLAIM else None
        middleware = self._middleware.of(claims)
        for claimed, handler in claims:
            attempt = Attempt(
                claimed, lease, handler, self._executor.threads, self, self._executor.clock.monotonic, gate
            )
            if middleware and claimed.id in middleware:
                attempt.middleware = middleware[claimed.id]
            self._table.add(attempt)
            self._slots.take(suspect=claimed.suspect)
            if self._shutdown.is_requested():
                attempt.request_stop("drain")
            # The event loop keeps no reference to a task: the table holds the attempt, and the attempt holds its task.
            attempt.task = loop.create_task(self._execute(attempt))
            self._critic.watch(attempt)

    async def _execute(self, attempt: Attempt) -> None:
        recorded, slot_is_free = True, False
        try:
            outcome = await self._executor.execute(attempt)
            if outcome is not None:
                if self._frees_slot_early:
                    slot_is_free = True
                    self._slots.handler_ended()
                recorded = await self._recorder.record(attempt, outcome)
        except Exception:
            logger.exception("attempt at run %s failed inside the worker; releasing the run", attempt.id)
            attempt.abort()
            recorded = await self._recorder.release_with_strike(attempt)
        finally:
            self._endings.finish(attempt, recorded=recorded)
            # The slot is freed only now: a handler that was left behind keeps its slot, because it keeps its thread.
            self._slots.free_one(suspect=attempt.claimed.suspect, recorded=slot_is_free)

    # -- AttemptObserver

    def on_lost(self, attempt: Attempt) -> None:
        """Stop the handler of an attempt whose run is lost."""
        self._stops.run_lost(attempt)

    def on_progress(self, attempt: Attempt) -> None:
        """Allow other runs beside a suspect that has made progress, and restart the run's progress deadline."""
        if attempt.claimed.suspect:
            self._slots.cleared()
        self._critic.progressed(attempt)

    def may_linger(self, attempt: Attempt) -> bool:
        """Return True if the process has a free slot, so that no other run needs the slot of a waiting handler.

        A run with a group may not linger, because another run of the group may wait for its place.
        """
        return not attempt.has_group and (self._slots.free > 0 or self._slots.claiming)

    def on_deadline(self, attempt: Attempt, error: DeadlineExceeded) -> None:
        """Kill an attempt whose deadline has passed. Its run fails with `error`."""
        self._stops.kill(attempt, error)


def open_later(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Return a future that is done ten turns of the event loop later.

    The runs of a large claim wait for this future. So the next claim is sent before they start, and the server works on it while
    the worker executes these runs. Otherwise each of them would execute its first lines before the next claim is sent.
    """
    gate, turns = loop.create_future(), itertools.count(1)

    def take_turn() -> None:
        if next(turns) < TURNS_FOR_A_CLAIM:
            loop.call_soon(take_turn)
        elif not gate.done():  # the cancellation of an attempt that waits for the gate cancels the gate too
            gate.set_result(None)

    take_turn()
    return gate
