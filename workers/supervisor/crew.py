"""The worker processes of one supervisor: a place for each, kept filled. A child that dies is given up in the store and replaced.

The supervisor abandons every id that a child told it, so that a crash costs milliseconds and not a lease. In a roll a place has two
processes for a while: the one that works, and its successor, which takes the place when the other has drained, or died.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import signal
from collections.abc import Sequence
from dataclasses import replace

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.store.keys import Namespace
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.process.options import WorkerOptions
from workers.supervisor.child_process import Child, spawn

logger = logging.getLogger(__name__)
LONGEST_BACK_OFF = 30.0
SOON = 10.0  # a child that ends sooner than this has not really worked
PATIENCE = 45.0  # what a child may take to end after its grace; one whose event loop is blocked would take for ever


class Crew:
    """The children, from their start until nothing is left of them. `grace` is the longest of any handler."""

    def __init__(
        self, places: Sequence[str], options: WorkerOptions, clock: Clock, *, grace: float, patience: float
    ) -> None:
        self.places, self.options, self.clock = places, options, clock
        self.children: dict[int, Child] = {}  # all of them, by a number that is never used again
        self.stopping, self.codes = asyncio.Event(), list[int]()
        self.at: dict[int, Child] = {}  # who works at each place
        self._successors: dict[int, Child] = {}
        self._grace, self._patience, self._hurried = grace, patience, False
        self._numbers = itertools.count()
        self._lives: set[asyncio.Task[None]] = set()

    def open(self, wire: AsyncWire, namespace: Namespace) -> None:
        """Where its children are given up."""
        self._wire, self._namespace = wire, namespace

    def stop(self) -> None:
        """Drain. Asked again: without the grace."""
        self._hurried = self.stopping.is_set()
        self.stopping.set()
        for child in self.children.values():
            self._stop(child)

    def _stop(self, child: Child) -> None:
        if self._hurried:
            child.hurry()
        else:
            child.drain()

    async def rest(self, seconds: float) -> None:
        """So long, or until the crew is stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    # -- a place and its children

    async def keep(self, place: int) -> None:
        """One place: a child, and another where it ended."""
        quick_ends = 0
        while not self.stopping.is_set():
            child = self._successors.pop(place, None) or await self.begin(self.options)
            if child is not None:
                self.at[place] = child
                await child.seen_out()
                self.at.pop(place)
            if self.stopping.is_set():
                return
            if place in self._successors:
                continue
            quick_ends = quick_ends + 1 if child is None or self._in_vain(child) else 0
            if child is not None:
                level = logging.INFO if child.farewell == "left" else logging.WARNING
                logger.log(level, "worker process %d ended %s and is replaced", child.process.pid, child.end)
            if quick_ends > 2:
                await self._back_off(place, quick_ends)

    async def all_over(self) -> None:
        """Returns when nothing is left of any child."""
        while self._lives:
            await asyncio.wait(self._lives)

    # -- a roll

    async def succeed(self, place: int) -> Child | None:
        """A successor for a place: it takes it when the child that works there has ended. None where it could not be started."""
        child = await self.begin(self.options)
        if child is not None:
            self._successors[place] = child
        return child

    async def dismiss(self, place: int, child: Child) -> None:
        """Ends a successor that is no good. Where the place has become its own meanwhile it stays: there is nobody else."""
        if self._successors.get(place) is not child:
            return
        del self._successors[place]
        child.hurry()
        await child.seen_out()

    async def hand_over(self, place: int, child: Child) -> None:
        """Drains who works at the place until it is its successor's."""
        while child.alive and self.at.get(place) is not child and not self.stopping.is_set():
            if (old := self.at.get(place)) is None:
                await self.clock.asleep(0.02)  # it has just ended
                continue
            old.drain()
            await old.seen_out()

    def say_outdated(self, outdated: bool, before: float) -> None:
        """Tells the children that were started before a roll whether there is newer code than theirs."""
        for child in self.children.values():
            if child.started < before:
                child.say_outdated(outdated)

    def drain_extras(self, before: float) -> None:
        """They have no successor: what they hold waits for a process that holds nothing, or for another of their kind."""
        for child in self.children.values():
            if child.extra and child.started < before:
                child.drain()

    # -- children

    async def one_run(self) -> None:
        """An extra process of one slot, which ends with its run."""
        child = await self.begin(replace(self.options, concurrency=1, runs=1))
        if child is not None:
            child.extra = True
            await child.seen_out()
            logger.info("the extra process %d ended %s", child.process.pid, child.end)

    def _in_vain(self, child: Child) -> bool:
        """Whether it ended soon and no run is to blame: where one is, its strikes come to an end, and so do the crashes."""
        if child.farewell == "left":
            return False
        return not child.ready or (not child.taken and self.clock.monotonic() - child.started < SOON)

    async def _back_off(self, place: int, quick_ends: int) -> None:
        """Children that end again and again as soon as they start are said loudly and do not spin. A successor does not wait."""
        wait = min(0.5 * 2 ** (quick_ends - 2), LONGEST_BACK_OFF) * (0.75 + 0.5 * random.random())
        logger.error(
            "worker processes end as soon as they start (%d times in a row): next try in %.1f s", quick_ends, wait
        )
        until = self.clock.monotonic() + wait
        while self.clock.monotonic() < until and place not in self._successors and not self.stopping.is_set():
            await self.rest(min(0.2, wait))

    # -- a child from its start to its end

    async def begin(self, options: WorkerOptions) -> Child | None:
        """A new process, which is seen out from here on. None where it could not be started."""
        try:
            child = await spawn(self.places, options, self.clock.monotonic())
        except OSError as error:  # no memory, no more files or processes: it may pass
            logger.error("a worker process could not be started: %s", error)
            return None
        number = next(self._numbers)
        self.children[number] = child
        if self.stopping.is_set():
            self._stop(child)
        child.life = asyncio.create_task(self._see_out(number, child))
        self._lives.add(child.life)
        child.life.add_done_callback(self._lives.discard)
        return child

    async def _see_out(self, number: int, child: Child) -> None:
        """Until nothing is left of a child in the store."""
        try:
            await self._until_ended(child)
        finally:
            del self.children[number]
            child.close()
        last = self.stopping.is_set()  # else it would have been replaced, and its end says nothing of the fleet's
        child.taken = await self._given_up(child)
        if last:
            self.codes.append(child.code)

    async def _until_ended(self, child: Child) -> None:
        """Hears what the child tells until its process has ended, by itself or killed when its time is over."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            if not child.hear():
                loop.remove_reader(child.tells)

        loop.add_reader(child.tells, hear)
        ended = asyncio.create_task(child.process.wait())
        overdue = asyncio.create_task(child.overdue(self._grace, self._patience, self.clock))
        try:
            await asyncio.wait({ended, overdue}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                logger.error("worker process %d does not end: it is killed", child.process.pid)
                child.signal(signal.SIGKILL)
            await ended
        finally:
            overdue.cancel()
            loop.remove_reader(child.tells)
        child.hear()  # what it told last
        if overdue.done() and not child.farewell:
            child.farewell, child.blame = "killed", "nobody"

    async def _given_up(self, child: Child) -> int:
        """Everything that a dead child may hold goes back at once. One that left in order holds nothing; where it drained and could
        not give all back, or was killed by us, no run is to blame. The exit code tells nothing: a handler may have chosen it."""
        if child.farewell == "left":
            return 0
        taken = await asyncio.gather(*(self.abandon(*known, child.blame) for known in child.ids))
        if child.farewell == "unfinished" and not any(one is None or one for one in taken):
            child.farewell = "left"  # it had only not heard that nothing of it was left
        return sum(one or 0 for one in taken)

    async def abandon(self, partition: int, worker: str, blame: str = "") -> int | None:
        """How many runs of a worker that is gone went back; None where nobody knows."""
        plan = coordinator_plans.abandon(self._namespace.keys(partition), worker, blame=blame, jitter=random.random())
        try:
            done = await drive_async(self._wire, plan, timeout=self.options.lease)
        except CoordinatorError as error:
            logger.error("worker %s could not be given up, its lease will run out: %s", worker, error)
            return None
        if done.taken:
            logger.warning(
                "gave up worker %s: back in the queue %d, delayed %d, dead %d", worker, done.queued, done.delayed, done.dead
            )  # fmt: skip
        return done.taken
