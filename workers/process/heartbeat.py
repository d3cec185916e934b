"""Keeps the leases alive: a thread with an event loop and connections of its own, so that neither a busy loop nor user traffic
delays it. Each partition beats by itself; one that can't be reached affects only its own runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.clock import Clock
from coordinator.config import Address
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.process.host import resident_bytes
from workers.process.lease import Lease
from workers.process.loop_watchdog import Blocked

logger = logging.getLogger(__name__)
BEATS_PER_LEASE = 5
COMPARE_EVERY = 3


@dataclass(frozen=True, slots=True)
class Told:
    """What came back of a beat: None for `beat` says that the worker is gone. `held` is what was compared, if it was."""

    lease: Lease
    beat: worker_plans.Beat | None
    sent_at: float
    held: frozenset[tuple[str, str]] | None
    floor: int


class Heartbeat:
    """Beats for every lease it is given, and tells the worker on the worker's own loop."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        held: Callable[[Lease], Sequence[tuple[str, str]]],
        tell: Callable[[Told], None],
        blocked: Blocked,
    ) -> None:
        self._address, self._clock, self._held, self._tell, self._blocked = address, clock, held, tell, blocked
        self._worker_loop = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._pokes: dict[Lease, asyncio.Event] = {}
        self._moved: dict[Lease, float] = {}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def watch(self, lease: Lease) -> None:
        """Begins to beat for a lease."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._watch, lease)

    def poke(self, lease: Lease) -> None:
        """Beats for a lease now, and compares."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._poke, lease)

    def moved_at(self) -> float:
        """When the beats last moved, those of the slowest partition, answered or not."""
        return min(list(self._moved.values()), default=self._clock.monotonic())

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(timeout=10)

    # -- in the thread

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tasks.add(asyncio.create_task(self._blocked.watch()))
        self._ready.set()
        await self._stopped.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _watch(self, lease: Lease) -> None:
        self._pokes[lease] = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._beat_on(lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _poke(self, lease: Lease) -> None:
        if lease in self._pokes:
            self._pokes[lease].set()

    async def _beat_on(self, lease: Lease) -> None:
        interval = lease.length / BEATS_PER_LEASE
        wire = AsyncWire(self._address, timeout=interval, trip_seconds=interval)
        count, failing = 0, False
        try:
            while not lease.gone:
                if self._blocked.too_long:
                    await self._clock.asleep(0.2 * interval)  # a poke stays for the beat that comes next
                    continue
                count += 1
                compare = count % COMPARE_EVERY == 0 or lease.in_doubt or self._pokes[lease].is_set()
                self._pokes[lease].clear()
                begun = self._moved[lease] = self._clock.monotonic()
                try:
                    await self._beat(wire, lease, compare=compare)
                    failing = False
                except Exception as error:  # noqa: BLE001  # a beat may fail in any way: the next one must come
                    if not failing:
                        logger.warning(
                            "no heartbeat: %s", str(error) or "no answer in time", extra={"worker": lease.worker}
                        )
                    failing = True
                # after a beat that failed the next goes at once, within reason: a lease may hang on it
                rest = 0.2 * interval if failing else interval - (self._clock.monotonic() - begun)
                await self._rest(lease, rest)
        finally:
            self._pokes.pop(lease, None)
            self._moved.pop(lease, None)
            await wire.close()

    async def _beat(self, wire: AsyncWire, lease: Lease, *, compare: bool) -> None:
        floor, sent_at = lease.floor, self._clock.monotonic()
        held = (
            self._held(lease) if compare else None
        )  # after the floor: what came by claims up to it is in here, or has ended
        if compare:
            wire.look_again()
        plan = worker_plans.heartbeat(
            lease.keys, lease.worker, lease_ms=round(lease.length * 1000), floor=floor, held=held,
            memory=resident_bytes(),
        )  # fmt: skip
        async with asyncio.timeout(lease.length / BEATS_PER_LEASE):
            beat = await drive_async(wire, plan, give_up=lambda: True)
        compared = None if held is None else frozenset(held)
        told = Told(lease, beat, sent_at, compared, floor)
        self._worker_loop.call_soon_threadsafe(self._tell, told)

    async def _rest(self, lease: Lease, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._pokes[lease].wait()
        except TimeoutError:
            return
