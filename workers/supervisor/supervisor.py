"""Keep N worker processes running on one host until the supervisor is stopped.

If the supervisor itself dies, the pipe from it to each worker process (the lifeline) closes, and the process drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence

from coordinator.clock import Clock, SystemClock
from coordinator.errors import CoordinatorError, Unconfirmed, Unreachable
from coordinator.store.keys import Namespace
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.server_checks import enter
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.process.options import WorkerOptions
from workers.supervisor.child_pool import EXIT_TIMEOUT, ChildPool
from workers.supervisor.child_process import ChildProcess
from workers.supervisor.dead_workers import DeadWorkers
from workers.supervisor.fleet_rolls import RollParticipant
from workers.supervisor.pool_roll import RollResult

logger = logging.getLogger(__name__)
SILENT_CONNECT_SECONDS = 1.0  # after this time the supervisor warns that the server does not answer
CHECK_TIMEOUT = 2.0  # seconds that one of the background checks waits for the server
COORDINATOR_CHECK_DELAY = 5.0  # the first check waits, because workers and a coordinator are often started together


class Supervisor:
    """One supervisor of a fleet: its pool of worker processes, its background checks, and its part in rolls.

    Args:
        registries: The names of the registries, each as MODULE:REGISTRY.
        options: The options of each worker.
        clock: The time source; the system's clock by default.
        grace: The longest grace of any handler, in seconds.
        exit_timeout: Seconds after the grace until a process that has not ended is killed.
    """

    def __init__(
        self,
        registries: Sequence[str],
        options: WorkerOptions,
        clock: Clock | None = None,
        *,
        grace: float = 0.0,
        exit_timeout: float = EXIT_TIMEOUT,
    ) -> None:
        self.registries, self.options, self.clock = registries, options, clock or SystemClock()
        grace = max(grace, options.grace)
        self.pool = ChildPool(registries, options, self.clock, grace=grace, exit_timeout=exit_timeout)
        self.started = asyncio.Event()  # is set when the pool can be rolled
        self._extras: set[asyncio.Task[None]] = set()
        self._roll_participant: RollParticipant | None = None
        self._rolls: set[asyncio.Task[RollResult]] = set()

    @property
    def children(self) -> dict[int, ChildProcess]:
        """All worker processes that have not ended."""
        return self.pool.children

    @property
    def stopping(self) -> bool:
        """Return True if the supervisor was asked to stop."""
        return self.pool.stopping.is_set()

    async def run(self) -> int:
        """Keep the worker processes running until the supervisor is stopped.

        Returns:
            The highest exit code of the processes that were running when the supervisor was stopped.
        """
        settings = self.options.settings
        self._wire = AsyncWire(settings.address, settings.timeout)
        try:
            namespace = await self._enter_namespace()
            if namespace is not None:
                self._namespace: Namespace = namespace
                self.pool.connect(self._wire, namespace)
                self._log_start()
                await self._supervise()
                logger.info("supervisor stopped (process %d)", os.getpid())
        finally:
            await self._wire.close()
        return max(self.pool.exit_codes, default=0)

    def stop(self) -> None:
        """Drain all worker processes. The second call skips the grace."""
        if self.stopping:
            logger.info("stopping now: %s", self.pool.describe_wait())
        elif self.children:
            logger.info(
                "stopping: draining %s, with up to %g s of grace; a second signal skips the grace",
                _count(len(self.children), "worker process"),
                self.pool.grace,
            )
        self.pool.stop()

    def _log_start(self) -> None:
        logger.info(
            "supervisor started (process %d, fleet %s): %s for %s on %s, namespace %s",
            os.getpid(),
            self.options.fleet,
            _count(self.options.processes, "worker process"),
            ", ".join(self.registries),
            self.options.settings.address,
            self.options.settings.namespace,
        )

    async def roll(self, at_once: int = 1) -> RollResult:
        """Replace all worker processes, `at_once` of them at a time, and return the result.

        Each new process is ready before the old one drains.
        """
        if self._roll_participant is None:
            logger.warning("can't roll: the supervisor has not started yet")
            return RollResult(0, self.options.processes, "the supervisor has not started yet")
        return await self._roll_participant.roll(at_once)

    def roll_soon(self) -> None:
        """Start a roll in the background. All calls during a roll together start one more roll after it."""
        if len(self._rolls) < 2:
            rolling = asyncio.create_task(self.roll())
            self._rolls.add(rolling)
            rolling.add_done_callback(self._rolls.discard)

    async def _enter_namespace(self) -> Namespace | None:
        """Wait for the server and return the namespace. Return None if the supervisor was stopped meanwhile."""
        timeout = self.options.settings.timeout
        try:
            return await self._try_to_enter(SILENT_CONNECT_SECONDS)
        except (Unreachable, Unconfirmed) as error:
            logger.warning("%s; retrying for %.0f s", error, timeout)
        try:
            return await self._try_to_enter(timeout)
        except (Unreachable, Unconfirmed):
            if self.stopping:
                return None
            raise

    async def _try_to_enter(self, timeout: float) -> Namespace:
        until = self.clock.monotonic() + timeout

        def give_up() -> bool:
            return self.stopping or self.clock.monotonic() > until

        return await drive_async(self._wire, enter(self.options.settings), give_up=give_up)

    async def _supervise(self) -> None:
        """Keep all child slots filled until the last process has ended.

        After an unexpected error in one of the tasks, drain all processes and then raise the error.
        """
        dead = DeadWorkers(self._wire, self._namespace, self.pool)
        await dead.free_silent()
        self._roll_participant = RollParticipant(self.pool, self._wire, self._namespace.keys(0))
        self.started.set()
        background = [
            asyncio.create_task(dead.free_fresh()),
            asyncio.create_task(self._warn_without_coordinator()),
            asyncio.create_task(self._start_extras_for_suspects()),
            asyncio.create_task(self._roll_participant.follow_requests()),
        ]
        slots = [asyncio.create_task(self.pool.keep_slot_filled(slot)) for slot in range(self.options.processes)]
        await asyncio.wait([*slots, *background], return_when=asyncio.FIRST_EXCEPTION)
        if not self.stopping:
            self.stop()
        await asyncio.wait([*slots, *background, *self._extras, *self._rolls])
        await self.pool.wait_until_empty()
        for task in [*slots, *background]:
            task.result()

    # -- background checks

    async def _warn_without_coordinator(self) -> None:
        await self.pool.sleep_unless_stopped(COORDINATOR_CHECK_DELAY)
        if self.stopping:
            return
        with contextlib.suppress(CoordinatorError):
            plan = coordinator_plans.count_coordinators(self._namespace.keys(0))
            if not await drive_async(self._wire, plan, timeout=CHECK_TIMEOUT):
                logger.warning(
                    "no coordinator is running: delayed runs, schedules and the runs of lost hosts wait; "
                    "start one with 'coordinator start', or add --coordinator to 'workers start'"
                )

    async def _start_extras_for_suspects(self) -> None:
        """Start an extra process with one slot when suspect runs have waited for an empty process for longer than one lease.

        A suspect is a run whose next strike would be its last. Only a process that holds no other run may claim it.
        """
        waiting = 0
        while not self.stopping:
            await self.pool.sleep_unless_stopped(self.options.lease / 2)
            waiting = waiting + 1 if await self._suspects_wait() else 0
            # At most as many extras as child slots: a suspect that works well may keep its process for hours.
            if waiting > 2 and len(self._extras) < self.options.processes and not self.stopping:
                waiting = 0
                logger.info("starting an extra worker process: a suspect run waits and no process is empty")
                extra = asyncio.create_task(self.pool.run_extra())
                self._extras.add(extra)
                extra.add_done_callback(self._extras.discard)

    async def _suspects_wait(self) -> bool:
        try:
            looks = (
                drive_async(self._wire, coordinator_plans.count_suspects(k), CHECK_TIMEOUT)
                for k in self._namespace.everywhere()
            )
            return any(await asyncio.gather(*looks))
        except CoordinatorError:
            return False


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}es"
