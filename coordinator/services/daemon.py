"""A coordinator: keeps the services of all partitions going until it is stopped. Several may run; none is special."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from importlib.metadata import version
from uuid import uuid4

from coordinator.clock import Clock, SystemClock
from coordinator.config import Settings
from coordinator.errors import Unconfirmed, Unreachable
from coordinator.services.bell_ringer import Ringing
from coordinator.services.due import Due
from coordinator.services.health import Health, answering
from coordinator.services.namespace_check import Founding
from coordinator.services.recovery import Recovery
from coordinator.services.retention import KEEP, Retention
from coordinator.services.scheduler import Scheduler
from coordinator.services.service_loop import Outage, Partition, Ticking, listen
from coordinator.store import server_checks as checks
from coordinator.store.keys import Namespace
from coordinator.store.transport.wire import AsyncBell, AsyncWire, drive_async

log = logging.getLogger(__name__)

FIRST_PATIENCE = 1.0  # then it is said that the server is not there
STANDSTILL = 60.0  # no tick takes so long, nor rests so long, also while the server is away
LAST_TICK = 5.0  # how long a tick that is under way may still take when the coordinator stops


class Coordinator:
    """Runs the services. `run` returns after `stop`, when the ticks under way have ended."""

    def __init__(self, settings: Settings, clock: Clock | None = None, keep: int = KEEP) -> None:
        self.id = f"c-{uuid4().hex[:12]}"
        self._settings, self._clock, self._keep = settings, clock or SystemClock(), keep
        self._stopping = False
        self._end_of_round = asyncio.Event()
        self._tickings: list[Ticking] = []

    def health(self) -> Health:
        """Live while its services tick, with or without answers; ready when each has been answered, until it is stopped."""
        now = self._clock.monotonic()
        still = {t.service.name: now - t.moved_at for t in self._tickings if now - t.moved_at > STANDSTILL}
        not_live = tuple(f"{name} has not moved for {seconds:.0f} s" for name, seconds in still.items())
        if self._stopping:
            return Health(not_live, ("the coordinator is stopping",))
        if not self._tickings:
            return Health(not_live, ("the coordinator has not been answered by the server yet",))
        silent = dict.fromkeys(t.service.name for t in self._tickings if not t.answered)
        return Health(not_live, tuple(f"{name} has not been answered by the server yet" for name in silent))

    def stop(self) -> None:
        self._stopping = True
        self._end_of_round.set()

    async def run(self) -> None:
        wire = AsyncWire(self._settings.address, self._settings.timeout)
        bell = AsyncBell(self._settings.address)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(wire.close)
            stack.push_async_callback(bell.close)
            while not self._stopping and (namespace := await self._enter(wire)) is not None:
                self._introduce(namespace)
                await self._keep_going(namespace, wire, bell)
            log.info("coordinator %s has stopped", self.id)

    async def _enter(self, wire: AsyncWire) -> Namespace | None:
        """The namespace; a server that is not there yet is waited for. None where the coordinator was stopped meanwhile."""
        try:
            return await self._found(wire, FIRST_PATIENCE)
        except (Unreachable, Unconfirmed) as error:
            log.warning("%s; trying for %.0f s", error, self._settings.timeout)
        try:
            return await self._found(wire, self._settings.timeout)
        except (Unreachable, Unconfirmed):
            if self._stopping:
                return None
            raise

    async def _found(self, wire: AsyncWire, patience: float) -> Namespace:
        """The namespace, on a server that can be trusted with it."""
        until = self._clock.monotonic() + patience

        def give_up() -> bool:
            return self._stopping or self._clock.monotonic() > until

        return await drive_async(wire, checks.enter(self._settings), give_up=give_up)

    def _introduce(self, namespace: Namespace) -> None:
        partitions = "1 partition" if namespace.partitions == 1 else f"{namespace.partitions} partitions"
        log.info(
            "coordinator %s of run-coordinator %s on %s: namespace %s, %s, durability %s",
            self.id, version("run-coordinator"), self._settings.address, namespace.name, partitions,
            namespace.durability, extra={"pid": os.getpid()},
        )  # fmt: skip

    async def _keep_going(self, namespace: Namespace, wire: AsyncWire, bell: AsyncBell) -> None:
        """Until the coordinator is stopped, or the namespace is founded anew."""
        outage, listeners = Outage(self._clock), []
        tickings = self._tickings = []
        founding = Founding(Partition(wire, namespace.keys(0)), namespace.birth, self._founded_anew)
        tickings.append(Ticking(founding, self._clock, outage))
        for keys in namespace.everywhere():
            partition = Partition(wire, keys)
            due = Ticking(Due(partition), self._clock, outage)
            others = (
                Recovery(partition, self.id, self._clock), Scheduler(partition), Ringing(partition),
                Retention(partition, self._keep),
            )  # fmt: skip
            tickings += [due, *(Ticking(service, self._clock, outage) for service in others)]
            listeners.append(asyncio.create_task(listen(bell, keys.coordinator_bell(), due.ring, self._clock)))
        ticks = [asyncio.create_task(ticking.run()) for ticking in tickings]
        try:
            await self._end_of_round.wait()
            for ticking in tickings:
                ticking.stop()
            await asyncio.wait(ticks, timeout=LAST_TICK)
        finally:
            await _ended([*ticks, *listeners])
            if not self._stopping:
                self._end_of_round.clear()

    def _founded_anew(self) -> None:
        log.warning("namespace %s was founded anew: what it held before is gone", self._settings.namespace)
        self._end_of_round.set()


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels until all have ended: on 3.11 one cancel may be lost inside a timeout that ends at the same moment."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)


async def serve(settings: Settings, clock: Clock | None = None, *, health: str | None = None, keep: int = KEEP) -> None:
    """Runs a coordinator until TERM or INT; a second one ends it without waiting for the ticks under way."""
    coordinator = Coordinator(settings, clock, keep)
    async with answering(health, coordinator.health):
        await _until_signalled(coordinator)


async def _until_signalled(coordinator: Coordinator) -> None:
    running = asyncio.ensure_future(coordinator.run())
    asked = False

    def signalled(name: str) -> None:
        nonlocal asked
        if asked:
            running.cancel()
            return
        asked = True
        log.info("%s: stopping", name)
        coordinator.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number.name)
    with contextlib.suppress(asyncio.CancelledError):
        await running
