"""What goes beside a fleet in its supervisor's process: answers about its health, and a coordinator.

The coordinator is on the supervisor's own event loop: it ticks once a second, holds nothing, and a process of its own would need
a supervisor too. It is stopped last, when the fleet has handed everything back; where it breaks it is begun anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from coordinator.clock import Clock
from coordinator.config import Settings
from coordinator.errors import CoordinatorError
from coordinator.services.daemon import Coordinator
from coordinator.services.health import Health, answering
from workers.supervisor.fleet import Fleet

logger = logging.getLogger(__name__)
AGAIN_AFTER = 5.0  # a coordinator that broke


@dataclass(frozen=True, slots=True)
class Company:
    """What is asked for: `health` is [HOST:]PORT."""

    health: str | None = None
    coordinator: bool = False


ALONE = Company()


@contextlib.asynccontextmanager
async def accompanied(fleet: Fleet, company: Company) -> AsyncGenerator[None, None]:
    """Before the fleet starts, until it has ended."""
    beside = Beside(fleet.options.settings, fleet.clock) if company.coordinator else None

    def look() -> Health:
        return fleet_health(fleet) + (beside.health() if beside else Health())

    async with answering(company.health, look):
        if beside is None:
            yield
            return
        async with beside.running():
            yield


def fleet_health(fleet: Fleet) -> Health:
    """Live while each process moves that ever did; ready when all are, until the fleet is stopped.

    A lease without a move is too long: the supervisor has had its time to replace such a process."""
    now, limit = fleet.clock.monotonic(), fleet.options.lease
    children = list(fleet.children.values())
    not_live = tuple(
        f"worker process {child.process.pid} has not moved for {now - child.moved_at:.0f} s"
        for child in children
        if child.moved_at is not None and now - child.moved_at > limit
    )
    if fleet.stopping:
        return Health(not_live, ("the fleet is draining",))
    ready, wanted = sum(child.ready for child in children), fleet.options.processes
    waiting = (f"{ready} of {wanted} worker processes have had their first claim answered",) if ready < wanted else ()
    return Health(not_live, waiting)


class Beside:
    """A coordinator that is begun anew where it breaks."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._coordinator = Coordinator(settings, clock)
        self._stopping = asyncio.Event()

    def health(self) -> Health:
        return self._coordinator.health()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        keeping = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            self._stopping.set()
            self._coordinator.stop()
            await keeping

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._coordinator.run()
            except CoordinatorError as error:
                logger.error("the coordinator ended: %s", error)
            except Exception:
                logger.exception("the coordinator broke")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_AFTER):
                    await self._stopping.wait()
                    return
            self._coordinator = Coordinator(self._settings, self._clock)
