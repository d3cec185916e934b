"""What ticks, and the one loop that keeps it going.

A service has `tick() -> report` for one partition; tests call it directly. The report says how long to rest. A tick
that raises never ends the loop, an outage is said once and not once a tick, and a partition that can't be reached
holds up nobody else.
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

LONGEST_REST = 1.0  # nobody learns later than this what a lost bell would have said
PATIENCE = 2.0  # a tick that gets no answer is given up and begun anew, so that it sees the world as it is then
BELL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as a service sees it. `now` gives the time where the namespace has the test clock."""

    wire: AsyncWire
    keys: Keys
    now: Callable[[], str] = str  # says nothing: the server's time counts

    async def ask(self, plan: Plan[T]) -> T:
        return await drive_async(self.wire, plan, timeout=PATIENCE)


class Report(Protocol):
    """What a tick did."""

    @property
    def rest(self) -> float:
        """Seconds until the next tick, unless something rings before."""
        ...


class Service(Protocol):
    """Something that ticks, in one partition."""

    @property
    def name(self) -> str: ...

    async def tick(self) -> Report: ...


class Outage:
    """Whether the server can be reached, as all services together see it: said when it begins and when it ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._affected: set[object] = set()
        self._since = 0.0

    def begins(self, who: object, error: Exception) -> None:
        if not self._affected:
            self._since = self._clock.monotonic()
            log.warning("%s; trying again", error)
        self._affected.add(who)

    def ends(self, who: object) -> None:
        if who not in self._affected:
            return
        self._affected.discard(who)
        if not self._affected:
            log.info("the server answers again after %.1f s", self._clock.monotonic() - self._since)


class Ticking:
    """Keeps one service going until it is stopped."""

    def __init__(self, service: Service, clock: Clock, outage: Outage) -> None:
        self.service, self._clock, self._outage = service, clock, outage
        self._wake = asyncio.Event()
        self._stopping = False
        self._failures = 0
        self.moved_at = clock.monotonic()  # when its last tick began
        self.answered = False  # a tick has been answered

    def ring(self) -> None:
        """Tick now, or once more after the tick that is under way."""
        self._wake.set()

    def stop(self) -> None:
        """A tick that is under way comes to its end."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            await self._rest(await self._tick())

    async def _tick(self) -> float:
        self.moved_at = self._clock.monotonic()
        try:
            report = await self.service.tick()
        except (Unreachable, Unconfirmed) as error:
            self._outage.begins(self, error)
            return LONGEST_REST / 2
        except Exception as error:  # noqa: BLE001  # whatever it is, the other runs of the partition still need this service
            self._failed(error)
            return LONGEST_REST
        self._outage.ends(self)
        self._failures = 0
        self.answered = True
        return report.rest

    def _failed(self, error: Exception) -> None:
        """Says the 1st, 2nd, 4th, 8th … failure in a row. Ours are sentences; the rest comes with its traceback."""
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


async def listen(bell: AsyncBell, key: str, ring: Callable[[], None], clock: Clock) -> None:
    """Rings for every token. Beside the loop, not in it: a bell whose connection died in silence holds up no tick."""
    while True:
        try:
            if await bell.wait([key], BELL_SECONDS) is not None:
                ring()
        except CoordinatorError:  # the ticks meet the same trouble, and say it
            await clock.asleep(LONGEST_REST)
