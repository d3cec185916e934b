"""How the waits of attempts reach the server."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.model.features import WAITS
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.attempts import Condition, Received
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.attempt import Attempt

logger = logging.getLogger(__name__)

TRUSTED_SECONDS = 10.0  # how long the answer that every process knows waiting runs is trusted


@dataclass(slots=True)
class ServerWaiter:
    """Look for signals, and check whether runs may be suspended.

    Attributes:
        wire: The connection to the server.
        clock: The time source.
    """

    wire: AsyncWire
    clock: Clock
    _trusted: dict[int, float] = field(default_factory=dict)  # by partition: until when its processes need not be asked
    _warned: set[str] = field(default_factory=set)

    async def look(self, attempt: Attempt, condition: Condition, timeout_ms: int | None) -> Received:
        """Ask for the next signal of a run. Wait while the server cannot be reached."""
        plan = attempt_plans.receive(attempt.lease.keys, attempt.id, attempt.token, condition, timeout_ms=timeout_ms)
        return await drive_async(self.wire, plan, give_up=lambda: attempt.stopping is not None)

    async def may_suspend(self, attempt: Attempt) -> bool:
        """Return False if a live process is too old to know waiting runs, or if that cannot be found out now.

        The handler then goes on lingering, and the attempt asks again. Each old process is logged once.
        """
        keys, now = attempt.lease.keys, self.clock.monotonic()
        if now < self._trusted.get(keys.partition, 0.0):
            return True
        try:
            old = await drive_async(self.wire, worker_plans.find_process_without(keys, WAITS), give_up=lambda: True)
        except CoordinatorError:
            return False
        if old is None:
            self._trusted[keys.partition] = now + TRUSTED_SECONDS
            return True
        if old not in self._warned:
            self._warned.add(old)
            logger.warning(
                "run %s waits and keeps its slot, because %s was started with an older version that does not know waiting runs: "
                "restart that process with the new version", attempt.id, old,
            )  # fmt: skip
        return False
