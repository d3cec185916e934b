"""The part of one supervisor in the rolls of its fleet: register the supervisor, and roll its pool when a roll is requested.

A requested roll is stored on the server. The message in the supervisor's inbox only makes the supervisor check immediately. A lock
over all hosts of the fleet makes the supervisors roll one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket

from coordinator.errors import CoordinatorError
from coordinator.store.keys import Keys
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans.fleets import RollOrder, RollPart
from coordinator.store.transport.wire import AsyncBell, AsyncWire, drive_async
from workers.supervisor.child_pool import ChildPool
from workers.supervisor.pool_roll import START_TIMEOUT, RollResult, roll_pool
from workers.supervisor.roll_lock import RollLock

logger = logging.getLogger(__name__)
PRESENCE_SECONDS = (
    6.0  # between two calls that show that the supervisor is alive; it counts as lost after 15 s without one
)
CALL_SECONDS = 2.0  # the longest time for such a call
RENEWAL_SECONDS = 24.0  # between two renewals of the list of supervisors, which expires after one minute


class RollParticipant:
    """One supervisor's part in the rolls of its fleet.

    Args:
        pool: The worker processes of the supervisor.
        wire: The connection to the server.
        keys: The keys of partition 0.
        start_timeout: Seconds after which a new process must be ready.
    """

    def __init__(self, pool: ChildPool, wire: AsyncWire, keys: Keys, *, start_timeout: float = START_TIMEOUT) -> None:
        self._pool, self._wire, self._keys, self._start_timeout = pool, wire, keys, start_timeout
        self.supervisor = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
        self._fleet = pool.options.fleet
        self._one_at_a_time = asyncio.Lock()
        self._rolls: set[asyncio.Task[None]] = set()
        self._renewed_at: float | None = None  # when the list of supervisors was renewed
        self._latest_order = ""  # the id of the last requested roll that was begun

    async def follow_requests(self) -> None:
        """Register the supervisor and carry out requested rolls, until the pool is stopped."""
        bell, failing = AsyncBell(self._pool.options.settings.address), False
        try:
            while not self._pool.stopping.is_set():
                try:
                    await self._check_for_request()
                    failing = False
                    await self._wait_for_inbox(bell)
                except CoordinatorError as error:
                    if not failing:
                        logger.warning("can't check whether a roll is requested, trying again: %s", error)
                    failing = True
                    await self._pool.sleep_unless_stopped(1.0)
        finally:
            await bell.close()
        while self._rolls:
            await asyncio.wait(self._rolls)
        with contextlib.suppress(CoordinatorError):
            plan = fleet_plans.supervise(self._keys, self._fleet, self.supervisor, leaves=True)
            await drive_async(self._wire, plan, timeout=1.0)

    async def roll(self, at_once: int = 1) -> RollResult:
        """Replace all processes of this supervisor, as soon as no other supervisor of the fleet is rolling. Return the result.

        A roll that is requested during another roll starts after it, because the code may have changed meanwhile.
        """
        return await self._roll(at_once, None)

    # -- rolls that were requested on the server

    async def _check_for_request(self) -> None:
        now = self._pool.clock.monotonic()
        renews = self._renewed_at is None or now - self._renewed_at >= RENEWAL_SECONDS
        plan = fleet_plans.supervise(self._keys, self._fleet, self.supervisor, renews=renews)
        order = await drive_async(self._wire, plan, CALL_SECONDS)
        if renews:
            self._renewed_at = now
        if order is not None and order.part.state == "waiting" and order.roll != self._latest_order:
            self._latest_order = order.roll
            # The processes count as outdated from now on, even while this supervisor waits for its turn.
            self._pool.set_outdated(True, started_before=self._pool.clock.monotonic())
            task = asyncio.create_task(self._carry_out(order))
            self._rolls.add(task)
            task.add_done_callback(self._rolls.discard)

    async def _wait_for_inbox(self, bell: AsyncBell) -> None:
        """Wait until a message arrives, until it is time to check again, or until the pool is stopped."""
        waiting = asyncio.create_task(bell.wait([self._keys.inbox(self.supervisor)], PRESENCE_SECONDS))
        stopping = asyncio.create_task(self._pool.stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()
            stopping.cancel()
            await asyncio.gather(waiting, stopping, return_exceptions=True)

    async def _carry_out(self, order: RollOrder) -> None:
        try:
            result = await self._roll(order.at_once, order.roll)
        except _Withdrawn:
            logger.info("roll stopped: it failed at another supervisor of the fleet; nothing was replaced here")
            self._pool.set_outdated(False, started_before=self._pool.clock.monotonic())
            return
        except Exception:
            logger.exception("roll stopped by an unexpected error")
            processes = self._pool.options.processes
            result = RollResult(0, processes, "the supervisor had an unexpected error, which is in its log")
        part = RollPart("failed" if result.problem else "done", result.replaced, result.total, result.problem)
        # The command that requested the roll waits for this report, so the report is repeated until it arrives. When the fleet is
        # stopped, the supervisor reports instead that it leaves, which does not stop the roll of the other supervisors.
        while not self._pool.stopping.is_set() and await self._report(order.roll, part) is None:
            await self._pool.sleep_unless_stopped(1.0)

    async def _report(self, roll: str, part: RollPart) -> bool | None:
        """Store the progress of this supervisor in a roll.

        Returns:
            True if the roll still includes this supervisor, False if not, None if the server did not answer.
        """
        plan = fleet_plans.report_part(self._keys, self._fleet, roll, self.supervisor, part)
        try:
            return await drive_async(self._wire, plan, give_up=self._pool.stopping.is_set)
        except CoordinatorError as error:
            logger.warning("can't report the progress of the roll: %s", error)
            return None

    # -- one roll

    async def _roll(self, at_once: int, order: str | None) -> RollResult:
        """Roll the pool, and return the result.

        Args:
            at_once: The number of processes to replace at the same time.
            order: The id of the requested roll, or None for a roll of this supervisor alone.
        """
        async with self._one_at_a_time:
            so_far = RollResult(0, self._pool.options.processes)
            lock = RollLock(self._pool, self._wire, self._keys, f"roll:{self._fleet}", self.supervisor)

            async def wait_for_turn() -> None:
                await lock.acquire()
                if order is None:
                    return
                if await self._report(order, RollPart("going", so_far.replaced, so_far.total)) is False:
                    raise _Withdrawn

            async def report(result: RollResult) -> None:
                nonlocal so_far
                so_far = result
                if order is not None:
                    await self._report(order, RollPart("going", result.replaced, result.total))

            logger.info("roll started: %d to replace, %d at a time", so_far.total, at_once)
            try:
                done = await roll_pool(
                    self._pool,
                    at_once=at_once,
                    wait_for_turn=wait_for_turn,
                    report=report,
                    start_timeout=self._start_timeout,
                )
            finally:
                await lock.release()
            if done.problem:
                logger.error("roll stopped: %d of %d replaced: %s", done.replaced, done.total, done.problem)
            else:
                logger.info("roll finished: %d of %d replaced", done.replaced, done.total)
            return done


class _Withdrawn(Exception):
    """The exception that ends a roll because the requested roll does not include this supervisor any more."""
