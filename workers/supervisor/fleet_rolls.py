"""A supervisor among those of its fleet: it says that it is there, and rolls its crew when it is asked to and it is its turn.

What was asked for is a fact in the store, and the inbox only says to look now. A lock over all hosts of the fleet makes them roll
one after the other; one who dies with it holds it for a few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket

from coordinator.errors import CoordinatorError, Unreachable
from coordinator.store.keys import Keys
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans.fleets import Order, Part
from coordinator.store.transport.wire import AsyncBell, AsyncWire, drive_async
from workers.supervisor.crew import Crew
from workers.supervisor.crew_roll import BEGIN_SECONDS, Rolled, roll

logger = logging.getLogger(__name__)
LOOK_EVERY = 2.0
LOCK_SECONDS = 10.0


class RollCall:
    """One supervisor's part in the rolls of its fleet. `begin_seconds` is what a new process may take until it is ready."""

    def __init__(self, crew: Crew, wire: AsyncWire, keys: Keys, *, begin_seconds: float = BEGIN_SECONDS) -> None:
        self._crew, self._wire, self._keys, self._begin_seconds = crew, wire, keys, begin_seconds
        self.supervisor = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
        self._fleet = crew.options.fleet
        self._one = asyncio.Lock()
        self._rolls: set[asyncio.Task[None]] = set()
        self._order = ""  # the roll that is carried out, or was

    async def follow(self) -> None:
        """Until the crew is stopped: says that it is there, and looks whether a roll is asked for."""
        bell, failing = AsyncBell(self._crew.options.settings.address), False
        try:
            while not self._crew.stopping.is_set():
                try:
                    await self._look()
                    failing = False
                    await self._hint(bell)
                except CoordinatorError as error:
                    if not failing:
                        logger.warning("can't see whether a roll is asked for: %s", error)
                    failing = True
                    await self._crew.rest(1.0)
        finally:
            await bell.close()
        while self._rolls:
            await asyncio.wait(self._rolls)
        with contextlib.suppress(CoordinatorError):
            plan = fleet_plans.supervise(self._keys, self._fleet, self.supervisor, leaves=True)
            await drive_async(self._wire, plan, timeout=1.0)

    async def roll(self, at_once: int = 1) -> Rolled:
        """Replaces all processes of this supervisor, when no other of the fleet does. One that is asked for during another follows
        it: the code may have changed meanwhile."""
        return await self._roll(at_once, None)

    # -- what is asked for

    async def _look(self) -> None:
        order = await drive_async(
            self._wire, fleet_plans.supervise(self._keys, self._fleet, self.supervisor), LOOK_EVERY
        )
        if order is None:
            return
        if order.part.state == "waiting" and order.roll != self._order:
            self._order = order.roll
            self._crew.say_outdated(True, self._crew.clock.monotonic())  # also while others have their turn
            task = asyncio.create_task(self._carry_out(order))
            self._rolls.add(task)
            task.add_done_callback(self._rolls.discard)

    async def _hint(self, bell: AsyncBell) -> None:
        waiting = asyncio.create_task(bell.wait([self._keys.inbox(self.supervisor)], LOOK_EVERY))
        stopping = asyncio.create_task(self._crew.stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()
            stopping.cancel()
            await asyncio.gather(waiting, stopping, return_exceptions=True)

    async def _carry_out(self, order: Order) -> None:
        try:
            done = await self._roll(order.at_once, order.roll)
        except _NotAnyMore:
            logger.info("the roll was stopped elsewhere: nothing was replaced here")
            self._crew.say_outdated(False, self._crew.clock.monotonic())
            return
        except Exception:
            logger.exception("the roll broke")
            done = Rolled(0, self._crew.options.processes, "its supervisor made a mistake, which is in its log")
        part = Part("failed" if done.trouble else "done", done.replaced, done.total, done.trouble)
        # until it is told: who asked waits for it. Where the fleet is stopped it is said with the farewell, and stops nobody's roll
        while not self._crew.stopping.is_set() and await self._report(order.roll, part) is None:
            await self._crew.rest(1.0)

    async def _report(self, roll: str, part: Part) -> bool | None:
        """Whether the roll counts on this supervisor; None where nobody knows."""
        plan = fleet_plans.roll_part(self._keys, self._fleet, roll, self.supervisor, part)
        try:
            return await drive_async(self._wire, plan, give_up=self._crew.stopping.is_set)
        except CoordinatorError as error:
            logger.warning("could not tell how the roll goes: %s", error)
            return None

    # -- one roll

    async def _roll(self, at_once: int, asked: str | None) -> Rolled:
        async with self._one:
            so_far = Rolled(0, self._crew.options.processes)
            held = _FleetLock(self._crew, self._wire, self._keys, f"roll:{self._fleet}", self.supervisor)

            async def allowed() -> None:
                await held.take()
                if (
                    asked is not None
                    and await self._report(asked, Part("going", so_far.replaced, so_far.total)) is False
                ):
                    raise _NotAnyMore

            async def tell(rolled: Rolled) -> None:
                nonlocal so_far
                so_far = rolled
                if asked is not None:
                    await self._report(asked, Part("going", rolled.replaced, rolled.total))

            logger.info("rolling: %d to be replaced, %d at once", so_far.total, at_once)
            try:
                done = await roll(
                    self._crew, at_once=at_once, allowed=allowed, tell=tell, begin_seconds=self._begin_seconds
                )
            finally:
                await held.give_back()
            if done.trouble:
                logger.error("the roll stopped, %d of %d were replaced: %s", done.replaced, done.total, done.trouble)
            else:
                logger.info("rolled: %d of %d replaced", done.replaced, done.total)
            return done


class _NotAnyMore(Exception):
    """The roll does not count on this supervisor any more."""


class _FleetLock:
    """The lock of a fleet's rolls, kept alive while it is held."""

    def __init__(self, crew: Crew, wire: AsyncWire, keys: Keys, name: str, token: str) -> None:
        self._crew, self._wire, self._keys, self._name, self._token = crew, wire, keys, name, token
        self._keeping: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Waits for it. Where it was lost meanwhile, as in an outage, it is waited for again."""
        waits = False
        while not await self._ask(give_up=self._crew.stopping.is_set):
            if self._crew.stopping.is_set():
                raise Unreachable("the fleet was stopped")
            if not waits:
                logger.info("another supervisor of the fleet rolls: this one waits for its turn")
            waits = True
            await self._crew.rest(0.2)
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def _ask(self, **more: object) -> bool:
        plan = coordinator_plans.lock(self._keys, self._name, self._token, LOCK_SECONDS)
        return await drive_async(self._wire, plan, **more)  # type: ignore[arg-type]

    async def _keep(self) -> None:
        while True:
            await self._crew.clock.asleep(LOCK_SECONDS / 4)
            with contextlib.suppress(CoordinatorError):
                await self._ask(timeout=LOCK_SECONDS / 4)

    async def give_back(self) -> None:
        if self._keeping is None:
            return
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        with contextlib.suppress(CoordinatorError):
            await drive_async(self._wire, fleet_plans.unlock(self._keys, self._name, self._token), timeout=1.0)
