"""The heartbeat thread of a worker process.

The thread has its own event loop and its own connections. A busy event loop or heavy traffic of the handlers therefore cannot
delay a heartbeat. Each partition has its own heartbeats: a partition that cannot be reached affects only its own runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.clock import Clock
from coordinator.config import Address
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.liveness.host import resident_bytes
from workers.liveness.lease import Lease
from workers.liveness.loop_watchdog import LoopWatchdog

logger = logging.getLogger(__name__)
BEATS_PER_LEASE = 5
MEBIBYTE = 1 << 20
COMPARE_EVERY = 3  # every third heartbeat compares the held runs with the owned runs


@dataclass(frozen=True, slots=True)
class BeatResult:
    """The server's answer to one heartbeat.

    Attributes:
        lease: The lease that the heartbeat was sent for.
        beat: The answer, or None if the server no longer knows the worker.
        sent_at: The monotonic time at which the heartbeat was sent.
        held: The runs (id and token) that the worker held when the heartbeat was sent. None if this heartbeat did not compare
            them with the runs that the worker owns on the server.
        floor: The `floor` of the lease when the heartbeat was sent.
    """

    lease: Lease
    beat: worker_plans.HeartbeatReply | None
    sent_at: float
    held: frozenset[tuple[str, str]] | None
    floor: int


class HeldRuns(Protocol):
    """The runs of a worker, as its heartbeat reports them to the server. The heartbeat's thread calls the methods."""

    def held(self, lease: Lease) -> Sequence[tuple[str, str]]:
        """Return the runs (id and token) that the worker holds under a lease."""

    def stuck(self, lease: Lease) -> Sequence[str]:
        """Return the runs of the lease's partition whose outcome the worker has decided, but whose handlers do not stop."""

    def limited(self, lease: Lease) -> Mapping[str, str]:
        """Return the runs whose calls wait for a rate.

        The value of a run is `name:since`: the name of the rate, and the time in ms at which the wait began.
        """
        ...

    def loading(self, lease: Lease) -> Mapping[str, int]:
        """Return the runs whose checkpoints the worker is loading, with the number of failed loads."""


class Heartbeat:
    """Renew leases from a thread, and report each result on the worker's event loop.

    Args:
        address: The server.
        clock: The time source.
        runs: The runs of the worker.
        watchdog: Watches the worker's event loop. While the loop has been blocked for too long, no lease is renewed.
    """

    def __init__(
        self,
        address: Address,
        clock: Clock,
        runs: HeldRuns,
        watchdog: LoopWatchdog,
    ) -> None:
        self._address, self._clock, self._runs, self._watchdog = address, clock, runs, watchdog
        self._worker_loop = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._pokes: dict[Lease, asyncio.Event] = {}
        self._moved: dict[Lease, float] = {}
        # Is called in the heartbeat's thread, with the seconds that each answer took.
        self.on_round_trip: Callable[[float], None] | None = None
        # Is called on the worker's event loop, with the error that ended the thread.
        self.on_failed: Callable[[BaseException], None] = lambda error: None
        self._thread = threading.Thread(target=self._run_thread, name="heartbeat", daemon=True)

    def start(self, report: Callable[[BeatResult], None]) -> None:
        """Start the thread, and wait until its event loop runs or has failed.

        Args:
            report: A function that is called with each result, on the worker's event loop.
        """
        self._report = report
        self._thread.start()
        self._ready.wait()

    def watch(self, lease: Lease) -> None:
        """Start to send heartbeats for a lease."""
        self._call(self._watch, lease)

    def poke(self, lease: Lease) -> None:
        """Send a heartbeat for a lease now, with a comparison of held and owned runs."""
        self._call(self._poke, lease)

    def moved_at(self) -> float:
        """Return the monotonic time at which the last heartbeat was sent, in the partition where this time is earliest."""
        return min(list(self._moved.values()), default=self._clock.monotonic())

    def stop(self) -> None:
        """Stop the thread, and wait for its end for up to 10 seconds."""
        if self._loop is not None:
            self._call(self._stopped.set)
        self._thread.join(timeout=10)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the heartbeat's thread. If the thread has failed, do nothing: the worker drains then."""
        if self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the event loop of the thread is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    # -- in the heartbeat's thread

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  # for example, a handler has closed the files of this event loop
            with contextlib.suppress(RuntimeError):  # the worker's event loop is closed
                self._worker_loop.call_soon_threadsafe(self.on_failed, error)
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tasks.add(asyncio.create_task(self._watchdog.watch()))
        self._ready.set()
        await self._stopped.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _watch(self, lease: Lease) -> None:
        self._pokes[lease] = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._beat_until_gone(lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _poke(self, lease: Lease) -> None:
        if lease in self._pokes:
            self._pokes[lease].set()

    async def _beat_until_gone(self, lease: Lease) -> None:
        interval = lease.length / BEATS_PER_LEASE
        wire = AsyncWire(self._address, timeout=interval, trip_seconds=interval)
        count, failing = 0, False
        try:
            while not lease.gone:
                if self._watchdog.too_long:
                    await self._clock.asleep(0.2 * interval)  # a poke is kept for the next heartbeat
                    continue
                count += 1
                compare = count % COMPARE_EVERY == 0 or lease.in_doubt or self._pokes[lease].is_set()
                self._pokes[lease].clear()
                begun = self._moved[lease] = self._clock.monotonic()
                try:
                    await self._beat(wire, lease, compare=compare)
                    failing = False
                except Exception as error:  # noqa: BLE001  # whatever the error of this heartbeat is, the next one must be sent
                    if not failing:
                        reason = str(error) or "the server did not answer in time"
                        logger.warning("heartbeat failed: %s", reason, extra={"worker": lease.worker})
                    failing = True
                # After a failure the next heartbeat is sent early, because the lease may expire without it.
                rest = 0.2 * interval if failing else interval - (self._clock.monotonic() - begun)
                await self._rest(lease, rest)
        finally:
            self._pokes.pop(lease, None)
            self._moved.pop(lease, None)
            await wire.close()

    async def _beat(self, wire: AsyncWire, lease: Lease, *, compare: bool) -> None:
        # The floor is read before the held runs: a run from a claim up to the floor is then either held or has ended.
        floor, sent_at = lease.floor, self._clock.monotonic()
        held = self._runs.held(lease) if compare else None
        if compare:
            wire.recheck_topology()
        plan = worker_plans.heartbeat(
            lease.keys, lease.worker, lease_ms=round(lease.length * 1000), floor=floor, held=held,
            memory=_rounded(resident_bytes()), stuck=self._runs.stuck(lease), loading=self._runs.loading(lease),
            limited=self._runs.limited(lease),
        )  # fmt: skip
        async with asyncio.timeout(lease.length / BEATS_PER_LEASE):
            beat = await drive_async(wire, plan, give_up=lambda: True)
        if self.on_round_trip is not None:
            self.on_round_trip(self._clock.monotonic() - sent_at)
        compared = None if held is None else frozenset(held)
        result = BeatResult(lease, beat, sent_at, compared, floor)
        self._worker_loop.call_soon_threadsafe(self._report, result)

    async def _rest(self, lease: Lease, seconds: float) -> None:
        """Wait for a number of seconds, or until `poke` is called for the lease."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._pokes[lease].wait()
        except TimeoutError:
            return


def _rounded(memory: int) -> int:
    """Return the memory in whole MiB, so that most heartbeats of an idle process do not have to write a new number."""
    return (memory + MEBIBYTE // 2) // MEBIBYTE * MEBIBYTE
