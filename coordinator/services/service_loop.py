"""The loop that runs a service: it calls `tick()` repeatedly, until the coordinator is stopped.

A service has `tick() -> report` for one partition. Tests call `tick()` directly. The report says how long the loop sleeps. A tick
that raises does not end the loop. An outage of the server is logged when it begins and when it ends, not at each tick. A partition
that can't be reached delays no other partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError, Unconfirmed, Unreachable
from coordinator.store.keys import Keys
from coordinator.store.transport.wire import AsyncBell, AsyncWire, Plan, drive_async

log = logging.getLogger(__name__)
T = TypeVar("T")

LONGEST_REST = 1.0  # seconds; if the push of a bell is lost, the service notices the work at most this much later
TICK_TIMEOUT = 2.0  # seconds; a tick without an answer is abandoned, so that the next one sees the present state
BELL_SECONDS = 30.0  # the longest wait for a bell; the work check finds the same work within a second


@dataclass(frozen=True, slots=True)
class Partition:
    """The access of a service to its partition.

    Attributes:
        wire: The connections to the server.
        keys: The keys of the partition.
        now: Returns the time in ms as text, in a namespace with a test clock; otherwise an empty text.
    """

    wire: AsyncWire
    keys: Keys
    now: Callable[[], str] = str  # an empty string: the server's time counts

    async def ask(self, plan: Plan[T]) -> T:
        """Carry out a plan and return its result.

        Raises:
            Unreachable: The server has not answered within TICK_TIMEOUT seconds.
            Unconfirmed: The server has not answered in time, and the plan may have changed something.
        """
        return await drive_async(self.wire, plan, timeout=TICK_TIMEOUT)


class TickReport(Protocol):
    """The result of a tick."""

    @property
    def rest(self) -> float:
        """Seconds until the next tick, unless a bell rings before."""
        ...


class Service(Protocol):
    """A periodic job in one partition."""

    @property
    def name(self) -> str:
        """The name for logs and health checks."""
        ...

    async def tick(self) -> TickReport:
        """Do the work that is due now, and return the report."""
        ...


class Outage:
    """The state of the connection that all services share: it logs when an outage begins, and when it ends for all of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._affected: set[object] = set()
        self._since = 0.0

    def begin(self, service: object, error: Exception) -> None:
        """Record that a service got no answer from the server, and log the error if it is the first service."""
        if not self._affected:
            self._since = self._clock.monotonic()
            log.warning("%s; trying again", error)
        self._affected.add(service)

    def end(self, service: object) -> None:
        """Record that a service got an answer, and log the end of the outage if it was the last service without one."""
        if service not in self._affected:
            return
        self._affected.discard(service)
        if not self._affected:
            log.info("the server answers again after %.1f s", self._clock.monotonic() - self._since)


class ServiceLoop:
    """A loop that calls the `tick` of one service until it is stopped.

    Attributes:
        service: The service.
        last_tick_at: The monotonic time at which the last tick began.
        answered: True if the server has answered a tick.
    """

    def __init__(self, service: Service, clock: Clock, outage: Outage) -> None:
        self.service, self._clock, self._outage = service, clock, outage
        self._wake = asyncio.Event()
        self._stopping = False
        self._failures = 0
        self.last_tick_at = clock.monotonic()  # when the last tick began
        self.answered = False  # whether a tick has ever been answered
        self._idle = False

    def ring(self) -> None:
        """Make the loop tick immediately, or once more after the current tick."""
        self._wake.set()

    def stop(self) -> None:
        """Stop the loop after the current tick."""
        self._stopping = True
        self._wake.set()

    def set_idle(self, idle: bool) -> None:
        """Set whether the service is idle: the loop of an idle service does not tick. work_check.py calls this."""
        if idle:
            self.last_tick_at = self._clock.monotonic()  # the work check has checked the keys instead of a tick
        elif self._idle:
            self._wake.set()
        self._idle = idle

    async def run(self) -> None:
        """Call the service's `tick` repeatedly, until `stop` is called."""
        while not self._stopping:
            self._wake.clear()
            rest = await self._tick()
            await self._rest(rest)
            # A shorter rest means that the service knows of work that is due before the next work check.
            if self._idle and rest >= LONGEST_REST:
                await self._wake.wait()

    async def _tick(self) -> float:
        self.last_tick_at = self._clock.monotonic()
        try:
            report = await self.service.tick()
        except (Unreachable, Unconfirmed) as error:
            self._outage.begin(self, error)
            return LONGEST_REST / 2
        except Exception as error:  # noqa: BLE001  # whatever it is, the other runs of the partition still need this service
            self._log_failure(error)
            return LONGEST_REST
        self._outage.end(self)
        self._failures = 0
        self.answered = True
        return report.rest

    def _log_failure(self, error: Exception) -> None:
        """Log the 1st, 2nd, 4th, 8th … failure in a row, with a traceback if the error is not one of the library."""
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            unexpected = None if isinstance(error, CoordinatorError) else error
            log.error("%s failed (%d in a row): %s", self.service.name, self._failures, error, exc_info=unexpected)

    async def _rest(self, seconds: float) -> None:
        woken = asyncio.ensure_future(self._wake.wait())
        timer = asyncio.ensure_future(self._clock.asleep(max(0.0, seconds)))
        try:
            await asyncio.wait({woken, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            timer.cancel()


async def listen_to_bell(bell: AsyncBell, key: str, ring: Callable[[], None], clock: Clock) -> None:
    """Call `ring` for each token on a bell, until cancelled.

    This coroutine runs in a task of its own, so that the service's loop continues if the bell's connection dies without an error.

    Args:
        bell: The bell.
        key: The list of the bell.
        ring: Called for each token.
        clock: The clock for the pause after an error.
    """
    while True:
        try:
            if await bell.wait([key], BELL_SECONDS) is not None:
                ring()
        except CoordinatorError:  # the ticks get the same error, and log it
            await clock.asleep(LONGEST_REST)
