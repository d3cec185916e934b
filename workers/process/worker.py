"""A worker process: it joins, claims runs, executes them, renews its leases, and drains without losing a run."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from coordinator.clock import Clock, SystemClock
from coordinator.config import current_settings
from coordinator.errors import Unconfirmed, Unreachable
from coordinator.middleware import end_worker
from coordinator.model.policies.budget import describe_budgets
from coordinator.model.policies.groups import HandlerLimit, describe_limits
from coordinator.model.slots import SlotUse
from coordinator.store import server_checks as checks
from coordinator.store.keys import Namespace
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.attempt import Attempt
from workers.attempt.deadlines.critic import Critic
from workers.attempt.executor import Executor
from workers.attempt.kind_health import KindHealth
from workers.attempt.loader import Loader
from workers.attempt.measuring import SaveMeter
from workers.attempt.output.emitter import Emitter
from workers.attempt.recorder import Recorder
from workers.attempt.save_batch import SaveBatch
from workers.attempt.waits.limits import ServerLimits
from workers.attempt.waits.waiter import ServerWaiter
from workers.handlers.registry import Registry
from workers.liveness.heartbeat import Heartbeat
from workers.liveness.host import resident_bytes
from workers.liveness.loop_watchdog import LoopWatchdog
from workers.metrics.worker_metrics import WorkerMetrics
from workers.process.attempt_table import AttemptTable
from workers.process.beat_results import BeatResults
from workers.process.claiming.intake import Intake, all_routes
from workers.process.claiming.middleware import ClaimedMiddleware
from workers.process.claiming.slots import SlotTable
from workers.process.endings import Endings
from workers.process.lifespan import open_resources
from workers.process.membership import Membership
from workers.process.options import WorkerOptions
from workers.process.runner import Runner
from workers.process.stopping.drain import Drain
from workers.process.stopping.shutdown import Shutdown
from workers.process.stopping.stops import Stops
from workers.process.tasks import TaskSet

logger = logging.getLogger(__name__)


class Worker:
    """One worker process. All its methods have to be called on one event loop.

    Args:
        registry: The handlers.
        options: The settings.
        clock: The time source.
        announce: The function that is called with the partition and the id of each worker that this process registers.
        ask_to_be_replaced: A function that asks the supervisor to replace this process. Its argument is the id of the run that
            blocks the event loop. None without a supervisor.
        metrics: Counts and measures the work of the process; None to measure nothing.

    Attributes:
        ready: An event that is set when the first claim in each reachable partition was answered.
        drained: True if the worker has drained, or was stopped before it served.
        has_left: True if the server has removed the worker, so that it owns no run.
        left_to_recovery: The ids of runs that the worker could not release while it drained.
        moved_at: A function that returns the monotonic time at which the last heartbeat was sent. The supervisor notices a stuck
            worker by this time.
        on_refused: The function that is called with a kind if this process could start no run of the kind, probably because of its
            code.
        on_stuck: The function that is called with the id of a run that this process no longer executes, but whose handler does not
            stop.
    """

    def __init__(
        self,
        registry: Registry[Any],
        options: WorkerOptions,
        clock: Clock | None = None,
        announce: Callable[[int, str], None] = lambda partition, worker: None,
        ask_to_be_replaced: Callable[[str], None] | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self.registry, self.options, self.clock = registry, options, clock or SystemClock()
        self._announce, self._ask_to_be_replaced, self.metrics = announce, ask_to_be_replaced, metrics
        self.ready = asyncio.Event()
        self.drained = self.has_left = False
        self.left_to_recovery: list[str] = []
        self.moved_at: Callable[[], float] = self.clock.monotonic
        self.on_refused: Callable[[str], None] = lambda kind: None
        self.on_stuck: Callable[[str], None] = lambda run: None
        self._outdated = False
        self._intake: Intake | None = None
        self._table, self._slots, self._tasks = AttemptTable(), SlotTable(options.concurrency), TaskSet()
        self._shutdown = Shutdown(self.clock)

    @property
    def attempts(self) -> Mapping[tuple[str, str], Attempt]:
        """The attempts of this process, by run id and token."""
        return self._table.attempts

    @property
    def outdated(self) -> bool:
        """Return True if the fleet has newer code than this process.

        For a second after a run was released, an outdated worker does not claim the run, so that a newer worker can claim it.
        """
        return self._outdated

    @outdated.setter
    def outdated(self, outdated: bool) -> None:
        self._outdated = outdated
        if self._intake is not None:
            self._intake.set_outdated(outdated)

    @property
    def stopping(self) -> bool:
        """Return True if the worker was asked to stop, or has failed."""
        return self._shutdown.is_requested()

    def refresh_gauges(self) -> None:
        """Write the present gauges to the metrics: the slots, the memory, and the seconds of work that are not saved yet."""
        if self.metrics is None:
            return
        now, at_risk = self.clock.monotonic(), 0.0
        for attempt in self._table.all():
            if attempt.performing:
                saved = attempt.saver.saved_at if attempt.saver is not None else None
                at_risk += now - (saved or attempt.began)
        use = SlotUse.of(self._slots.held, self._slots.size)
        self.metrics.set_gauges(use=use, memory=resident_bytes(), at_risk=at_risk)

    # -- start and stop

    def stop(self) -> None:
        """Start to drain the worker. The second call drains it without grace time for the handlers."""
        if self._shutdown.is_requested():
            self.hurry()
        self.drain()

    def drain(self) -> None:
        """Start to drain the worker. Further calls change nothing."""
        self._shutdown.request()

    def hurry(self) -> None:
        """Drain the worker without grace time, whether or not it is draining already."""
        self._shutdown.request_without_grace()

    async def run(self) -> int:
        """Serve until the worker is asked to stop.

        Returns:
            The exit code: 0, or 1 if runs had to be left to recovery.

        Raises:
            CoordinatorError: If the server cannot be used, or is not the one that the worker started with.
        """
        settings = self.options.settings
        wire = AsyncWire(settings.address, settings.timeout)
        # Every task of the worker inherits this, so that a client without arguments in a handler uses the worker's server.
        outside = current_settings.set(settings.pinned())
        try:
            namespace = await self._enter(wire)
            async with AsyncExitStack() as stack:
                resources = None
                if namespace is not None:
                    resources = await open_resources(stack, self.registry, self._shutdown, self._tasks)
                if namespace is None or self._shutdown.is_requested():
                    self.drained = self.has_left = True
                    return 0
                return await self._serve(wire, namespace, resources)
        finally:
            current_settings.reset(outside)
            await wire.close()

    async def _enter(self, wire: AsyncWire) -> Namespace | None:
        """Wait until the server can be reached, and return the namespace; None if the worker was stopped meanwhile."""
        until = self.clock.monotonic() + self.options.settings.timeout

        def give_up() -> bool:
            return self._shutdown.is_requested() or self.clock.monotonic() > until

        try:
            return await drive_async(wire, checks.enter(self.options.settings), give_up=give_up)
        except (Unreachable, Unconfirmed):
            if self._shutdown.is_requested():
                return None
            raise

    async def _serve(self, wire: AsyncWire, namespace: Namespace, resources: Any) -> int:
        threads = ThreadPoolExecutor(self.options.concurrency, thread_name_prefix="handler")
        self._build(wire, namespace, resources, threads)
        assert self._intake is not None
        self._heartbeat.on_failed = self._stop_without_heartbeats
        self._heartbeat.start(self._results.handle)
        self.moved_at = self._heartbeat.moved_at
        listening: list[asyncio.Task[Any]] = []
        try:
            joins, only = await self._membership.join_all(), namespace.partitions == 1
            parts = [self._intake.serve(partition, join, only=only) for partition, join in joins]
            parts.append(self._stops.watch_doubt(min(0.1, self.options.lease / 20)))
            listening += [self._tasks.spawn(part) for part in parts]
            await self._wait_until_stopped(self._intake, listening)
            result = await self._drain.run(self._intake.claimers, listening)
            self.left_to_recovery = result.left_to_recovery
            self.drained, self.has_left = True, result.has_left
            if self._shutdown.error is not None:
                raise self._shutdown.error
        finally:
            for task in listening:
                task.cancel()
            self._heartbeat.stop()
            end_worker(self.registry.middleware_by_kind().values())
            threads.shutdown(wait=False, cancel_futures=True)
        return 1 if self.left_to_recovery else 0

    def _build(self, wire: AsyncWire, namespace: Namespace, resources: Any, threads: ThreadPoolExecutor) -> None:
        """Build the parts of the worker that need a connection."""
        options, clock, table, tasks, shutdown = self.options, self.clock, self._table, self._tasks, self._shutdown
        health, replace = KindHealth(), self._ask_to_be_replaced
        self._wire, critic = wire, Critic(wire, clock)
        recorder = Recorder(wire, clock, health, shutdown.out_of_time, self.on_refused, self.metrics)
        waiter = ServerWaiter(wire, clock, namespace)
        limits = ServerLimits(wire, clock, namespace, waiter, lambda: self._membership.leases, self.metrics)
        meters = {kind: SaveMeter(kind, self.metrics) for kind in self.registry.handlers} if self.metrics else {}
        loader = Loader(
            wire,
            clock,
            resources,
            waiter,
            Emitter(wire, clock),
            SaveBatch(wire),
            self.metrics,
            limits,
            meters,
        )
        executor = Executor(clock, threads, loader, health, self.metrics)
        watchdog = LoopWatchdog(clock, options.lease, replace)
        self._heartbeat = heartbeat = Heartbeat(options.settings.address, clock, table, watchdog)
        if self.metrics is not None:
            heartbeat.on_round_trip = self.metrics.heartbeat_answered
        endings = Endings(table, critic, recorder, shutdown, tasks, options.runs)
        self._stops = stops = Stops(
            wire, clock, table, endings, shutdown, tasks,
            supervised=replace is not None, grace=options.grace, report_stuck=self.on_stuck,
        )  # fmt: skip
        handlers = self.registry.handlers
        middleware = ClaimedMiddleware(self.registry.middleware_by_kind(), len(handlers))
        runner = Runner(
            options, self._slots, table, executor, recorder, critic, endings, stops, shutdown, middleware, self.metrics
        )
        self._membership = membership = Membership(
            wire, namespace, options, all_routes(self.registry, options),
            (describe_limits(
                {kind: HandlerLimit(handler.at_once, handler.rate, handler.burst) for kind, handler in handlers.items()}
            ),
             describe_budgets({kind: handler.budget for kind, handler in handlers.items()})),
            clock, heartbeat, stops, shutdown, tasks, self._announce,
        )  # fmt: skip
        self._results = results = BeatResults(wire, table, stops, membership, shutdown, tasks, limits)
        self._drain = Drain(options.grace, clock, table, stops, endings, membership, shutdown, tasks, limits.settle)
        self._intake = Intake(
            wire, options, self.registry, clock, self._slots, health, membership, heartbeat, results, runner, tasks
        )
        self._intake.set_outdated(self._outdated)

    def _stop_without_heartbeats(self, error: BaseException) -> None:
        """Drain without grace, because the leases of this process end soon, and then raise an error, so that the process ends."""
        logger.error(
            "the heartbeat thread of process %d has ended with an error, so that its leases cannot be renewed; draining: %r",
            os.getpid(), error,
        )  # fmt: skip
        self._shutdown.fail(error)
        self._shutdown.request_without_grace()

    async def _wait_until_stopped(self, intake: Intake, listening: Sequence[asyncio.Task[Any]]) -> None:
        """Wait until the worker is asked to stop, or one of its parts fails."""
        ready = self._tasks.spawn(self._announce_ready(intake))
        stopping = self._tasks.spawn(self._shutdown.wait_requested())
        done, _ = await asyncio.wait({stopping, *listening}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        for task in done - {stopping}:  # the parts run until cancelled, so a part that has ended has failed
            self._shutdown.fail(task.exception())
        self._shutdown.request()

    async def _announce_ready(self, intake: Intake) -> None:
        for claimer in list(intake.claimers):
            await claimer.first_answer.wait()
        self.ready.set()
        kinds = ", ".join(sorted(self.registry.handlers))
        logger.info("ready: %d slots for %s (process %d)", self.options.concurrency, kinds, os.getpid())
