"""A fleet on one host: one supervisor, N worker processes. It keeps them going until it is told to stop.

If the supervisor dies, its children see their lifeline end, and drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from coordinator.clock import Clock, SystemClock
from coordinator.errors import CoordinatorError, Unconfirmed, Unreachable
from coordinator.store.keys import Namespace
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.server_checks import enter
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.liveness.host import Mark, own_mark, provably_gone
from workers.process.options import WorkerOptions
from workers.supervisor.child_process import Child
from workers.supervisor.crew import PATIENCE, Crew
from workers.supervisor.crew_roll import Rolled
from workers.supervisor.fleet_rolls import RollCall

logger = logging.getLogger(__name__)
FIRST_PATIENCE = 1.0  # then it is said that the server is not there
LOOK_SECONDS = 2.0  # how long a look at the server may take that nobody waits for


class Fleet:
    """A crew, and what its supervisor looks after meanwhile. `grace` is the longest of any handler."""

    def __init__(
        self,
        places: Sequence[str],
        options: WorkerOptions,
        clock: Clock | None = None,
        *,
        grace: float = 0.0,
        patience: float = PATIENCE,
    ) -> None:
        self.places, self.options, self.clock = places, options, clock or SystemClock()
        self.crew = Crew(places, options, self.clock, grace=max(grace, options.grace), patience=patience)
        self._extras: set[asyncio.Task[None]] = set()
        self.begun = asyncio.Event()  # from here on it can be rolled
        self._roll_call: RollCall | None = None
        self._rolls: set[asyncio.Task[Rolled]] = set()

    @property
    def children(self) -> dict[int, Child]:
        return self.crew.children

    async def run(self) -> int:
        """Until it is stopped; the worst exit code of its last children."""
        settings = self.options.settings
        self._wire = AsyncWire(settings.address, settings.timeout)
        try:
            namespace = await self._enter()
            if namespace is not None:
                self._namespace: Namespace = namespace
                self.crew.open(self._wire, namespace)
                await self._keep_going()
        finally:
            await self._wire.close()
        return max(self.crew.codes, default=0)

    def stop(self) -> None:
        """Drain. Each further call is passed on: the second one skips the grace."""
        self.crew.stop()

    @property
    def stopping(self) -> bool:
        return self.crew.stopping.is_set()

    async def roll(self, at_once: int = 1) -> Rolled:
        """Replaces all processes, one after the other: each new one is ready before the old one drains."""
        if self._roll_call is None:
            logger.warning("can't roll: the fleet has not begun yet")
            return Rolled(0, self.options.processes, "the fleet has not begun yet")
        return await self._roll_call.roll(at_once)

    def roll_soon(self) -> None:
        """Rolls, and nobody waits for it. What is asked for during a roll is one more, however often."""
        if len(self._rolls) < 2:
            rolling = asyncio.create_task(self.roll())
            self._rolls.add(rolling)
            rolling.add_done_callback(self._rolls.discard)

    async def _enter(self) -> Namespace | None:
        """The namespace; a server that is not there yet is waited for. None where the fleet was stopped meanwhile."""
        patience = self.options.settings.timeout
        try:
            return await self._found(FIRST_PATIENCE)
        except (Unreachable, Unconfirmed) as error:
            logger.warning("%s; trying for %.0f s", error, patience)
        try:
            return await self._found(patience)
        except (Unreachable, Unconfirmed):
            if self.crew.stopping.is_set():
                return None
            raise

    async def _found(self, patience: float) -> Namespace:
        until = self.clock.monotonic() + patience

        def give_up() -> bool:
            return self.crew.stopping.is_set() or self.clock.monotonic() > until

        return await drive_async(self._wire, enter(self.options.settings), give_up=give_up)

    async def _keep_going(self) -> None:
        """All places, until the last child has ended. A mistake of ours in one of them drains the others before it is raised."""
        await self._give_up_the_gone()
        self._roll_call = RollCall(self.crew, self._wire, self._namespace.keys(0))
        self.begun.set()
        looks = [self._warn_without_coordinator(), self._look_after_suspects(), self._roll_call.follow()]
        looking = [asyncio.create_task(look) for look in looks]
        places = [asyncio.create_task(self.crew.keep(place)) for place in range(self.options.processes)]
        await asyncio.wait([*places, *looking], return_when=asyncio.FIRST_EXCEPTION)
        if not self.crew.stopping.is_set():
            self.stop()
        await asyncio.wait([*places, *looking, *self._extras, *self._rolls])
        await self.crew.all_over()
        for task in [*places, *looking]:
            task.result()

    async def _give_up_the_gone(self) -> None:
        """What processes of this host left behind that are provably gone, as where a whole fleet was killed: it goes back now,
        and not when their leases have run out."""
        here = own_mark()
        try:
            for keys in self._namespace.everywhere():
                known = await drive_async(self._wire, fleet_plans.marks(keys), timeout=LOOK_SECONDS)
                marks = ((worker, Mark.read(text)) for worker, text in known)
                gone = [worker for worker, mark in marks if mark is not None and provably_gone(mark, here)]
                await asyncio.gather(*(self.crew.abandon(keys.partition, worker) for worker in gone))
        except CoordinatorError as error:
            logger.warning("can't see what was left behind on this host, its leases will run out: %s", error)

    # -- looks that nobody waits for

    async def _warn_without_coordinator(self) -> None:
        await self.crew.rest(5.0)  # both are often started together
        if self.crew.stopping.is_set():
            return
        with contextlib.suppress(CoordinatorError):
            plan = coordinator_plans.coordinators(self._namespace.keys(0))
            if not await drive_async(self._wire, plan, timeout=LOOK_SECONDS):
                logger.warning(
                    "no coordinator is there: delayed runs, and those of lost hosts, wait for a 'coordinator start'"
                )

    async def _look_after_suspects(self) -> None:
        """A run whose next strike would be its last waits for a process that holds nothing. Where none is empty for a lease, an
        extra one of one slot is started for it, and ends with it."""
        waiting = 0
        while not self.crew.stopping.is_set():
            await self.crew.rest(self.options.lease / 2)
            waiting = waiting + 1 if await self._suspects_wait() else 0
            # no more of them than of the others: one that got well may stay for hours
            if waiting > 2 and len(self._extras) < self.options.processes and not self.crew.stopping.is_set():
                waiting = 0
                logger.info("a suspect waits and no process is empty: one more is started for it")
                extra = asyncio.create_task(self.crew.one_run())
                self._extras.add(extra)
                extra.add_done_callback(self._extras.discard)

    async def _suspects_wait(self) -> bool:
        try:
            looks = (
                drive_async(self._wire, coordinator_plans.suspects(k), LOOK_SECONDS)
                for k in self._namespace.everywhere()
            )
            return any(await asyncio.gather(*looks))
        except CoordinatorError:
            return False
