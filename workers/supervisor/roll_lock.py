"""The lock that makes the supervisors of a fleet roll one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from coordinator.errors import CoordinatorError, Unreachable
from coordinator.store.keys import Keys
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.supervisor.child_pool import ChildPool

logger = logging.getLogger(__name__)
LOCK_SECONDS = 10.0  # the lock of a supervisor that died expires after this time


class RollLock:
    """The lock of a fleet's rolls, which is renewed while this supervisor holds it.

    Args:
        pool: The worker processes of the supervisor.
        wire: The connection to the server.
        keys: The keys of partition 0.
        name: The name of the lock.
        token: The name of the supervisor, which holds the lock.
    """

    def __init__(self, pool: ChildPool, wire: AsyncWire, keys: Keys, name: str, token: str) -> None:
        self._pool, self._wire, self._keys, self._name, self._token = pool, wire, keys, name, token
        self._renewing: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        """Wait for the lock. If the lock was lost, as in an outage, wait for it again.

        Raises:
            Unreachable: If the pool was stopped while the supervisor waited.
        """
        waiting = False
        while not await self._request(give_up=self._pool.stopping.is_set):
            if self._pool.stopping.is_set():
                raise Unreachable("the fleet was stopped")
            if not waiting:
                logger.info("roll: waiting, because another supervisor of the fleet is rolling")
            waiting = True
            await self._pool.sleep_unless_stopped(0.2)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())

    async def _request(self, **more: object) -> bool:
        plan = coordinator_plans.lock(self._keys, self._name, self._token, LOCK_SECONDS)
        return await drive_async(self._wire, plan, **more)  # type: ignore[arg-type]  # the options of drive_async

    async def _renew(self) -> None:
        while True:
            await self._pool.clock.asleep(LOCK_SECONDS / 4)
            with contextlib.suppress(CoordinatorError):
                await self._request(timeout=LOCK_SECONDS / 4)

    async def release(self) -> None:
        """Release the lock. If the server does not answer, the lock expires."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        with contextlib.suppress(CoordinatorError):
            await drive_async(self._wire, fleet_plans.unlock(self._keys, self._name, self._token), timeout=1.0)
