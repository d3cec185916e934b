"""Claims runs of one partition: while there are free slots it asks, and where nothing waits it listens for a bell.

Where the process is idle, its next claim waits at the server behind the bell: one trip less until the first run. It asks for one
run only. To a server that did not notice that a machine was lost, such a claim is as good as any, and takes a run along into the
time until the lease is over. It is a strike, so no suspect is taken like that: a claim that does not wait looks for one after each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.clock import Clock
from coordinator.config import Address
from coordinator.errors import CoordinatorError
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncBell, AsyncWire, drive_async
from workers.liveness.lease import Lease
from workers.process.slots import SlotTable

logger = logging.getLogger(__name__)
ROUND = 5.0
CLAIM_SECONDS = 5.0
MOST = 200
LEFT_SECONDS = 0.1  # how soon an outdated worker asks again where it left something to newer ones


class Claimer:
    """One partition's claims, one in flight at a time."""

    def __init__(
        self,
        address: Address,
        wire: AsyncWire,
        slots: SlotTable,
        clock: Clock,
        lease: Callable[[], Lease],
        routes: Callable[[], Sequence[str]],
        outdated: Callable[[], bool],
        take: Callable[[Lease, list[worker_plans.Claimed]], None],
        lost: Callable[[Lease], None],
        renew: Callable[[Lease], None],
        only: bool,
    ) -> None:
        """`only`: there is no other partition, with which places would have to be shared."""
        self._bell = AsyncBell(address)
        self._wire, self._slots, self._clock = wire, slots, clock
        self._lease, self._routes, self._outdated = lease, routes, outdated
        self._take, self._lost, self._renew = take, lost, renew
        self._may_wait_there = only and address.scheme != "memory"
        self.first_answer = asyncio.Event()
        self.asking: asyncio.Task[tuple[str, list[worker_plans.Claimed]]] | None = None
        self.draining = False
        self._waits = False  # the claim that is under way does so at the server
        self._ringing: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Until it is cancelled. A claim that is under way then goes on: `asking` is to be waited for."""
        failing = waiting = False
        while not self.draining:
            try:
                taken = await self._claim(probing=failing, waiting=waiting)
                if failing:
                    # what the claim before took, unanswered, goes back now: a suspect among it is to share no crash with what comes
                    self._renew(self._lease())
                failing = False
                waited, waiting = waiting, not waiting and taken == 0 and self._can_wait_there()
                if taken == 0 and not waited and not waiting:
                    await self._listen()
            except _Recalled:
                failing, waiting = True, False  # it may have been carried out at the last moment
            except CoordinatorError as error:
                if not failing:
                    logger.warning("can't claim: %s", error)
                failing, waiting = True, False
                await self._clock.asleep(0.5)
            except Exception:
                # one answer that can't be read must not end the others' claims; what came with it goes back by reconcile
                logger.exception("a claim broke")
                waiting = False
                await self._clock.asleep(0.5)

    def _can_wait_there(self) -> bool:
        """Whether the next claim may wait at the server: nothing is held, or it could not ask again when the process is empty; and
        nobody else has to confirm it."""
        idle = not self._slots.held and self._ringing is None and bool(self._routes())
        return self._may_wait_there and idle and not self._outdated() and not self._lease().keys.at.replicas

    async def _claim(self, *, probing: bool, waiting: bool) -> int:
        """How many runs it took; -1 where it should ask again at once. After a failure it first asks for nothing: the places that a
        claim reserves are of use in other partitions while this one can't be reached."""
        await self._lease().wait_until_confirmed()
        count, alone = (0, False) if probing else await self._slots.reserve(1 if waiting else MOST)
        lease = self._lease()
        self.asking = asyncio.get_running_loop().create_task(self._ask(lease, count, alone, waiting=waiting))
        try:
            answer, runs = await asyncio.shield(self.asking)
        except asyncio.CancelledError:
            if not self.asking.cancelled() or _is_cancelled():
                raise
            raise _Recalled from None
        self.first_answer.set()
        if answer == "gone":
            self._lost(lease)
            await self._clock.asleep(0.05)  # until it has joined anew
        elif answer == "expired":
            self._renew(lease)
            await self._clock.asleep(0.1)
        elif answer == "left":  # not by a bell: the token is for those to whom it was left
            await self._clock.asleep(LEFT_SECONDS)
        return len(runs) if answer in ("ok", "suspect") and not probing else -1

    def recall(self) -> None:
        """A claim that waits at the server is given up: what it says of this worker is no longer true. One that has not begun is
        not: cancelled then it would keep its places; and it says what is true when it begins."""
        if self._waits and self.asking is not None:
            self.asking.cancel()

    async def _ask(
        self, lease: Lease, count: int, alone: bool, *, waiting: bool
    ) -> tuple[str, list[worker_plans.Claimed]]:
        """One numbered claim. Unanswered in its time it is given up: by the floor it takes nothing when it arrives later."""
        lease.number += 1
        number, routes, outdated = lease.number, self._routes(), self._outdated()
        waiting = waiting and bool(routes) and not outdated  # as when it was decided
        plan = worker_plans.claim(
            lease.keys, lease.worker, number=number, want=count if routes else 0, routes=routes, alone=alone and not waiting,
            outdated=outdated,
        )  # fmt: skip
        try:
            if waiting:
                self._waits = True
                answer, runs = await self._bell.ask(self._bells(lease, routes), ROUND, plan)
            else:
                answer, runs = await drive_async(self._wire, plan, timeout=CLAIM_SECONDS)
            self._take(lease, runs)
            return answer, runs
        finally:
            self._waits = False
            lease.floor = number
            if count:  # what was taken fills places; the rest is free again
                self._slots.give_back(count, alone=alone)

    async def _listen(self) -> None:
        """Until a bell rings, a round is over, or the process is empty: then it may take what only an empty one may."""
        if self._ringing is None:
            bells = self._bells(self._lease(), self._routes())
            wait = self._bell.wait(bells, ROUND) if bells else self._clock.asleep(1.0)
            self._ringing = asyncio.get_running_loop().create_task(wait)
        # it is not given up when the process is empty: a token that is on its way to it would be lost
        waiting: set[asyncio.Task[Any]] = {self._ringing}
        emptied = asyncio.get_running_loop().create_task(self._slots.empty.wait())
        if self._slots.held:
            waiting.add(emptied)
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            emptied.cancel()
        if self._ringing.done():
            rung, self._ringing = self._ringing, None
            rung.result()

    def _bells(self, lease: Lease, routes: Sequence[str]) -> list[str]:
        bells = [lease.keys.bell(route) for route in routes]
        if not self._slots.held:  # else it would take a token that an empty process waits for
            bells += [lease.keys.suspect_bell(route) for route in routes]
        return bells

    async def close(self) -> None:
        if self._ringing is not None:
            self._ringing.cancel()
        try:
            await asyncio.gather(*([] if self._ringing is None else [self._ringing]), return_exceptions=True)
        finally:
            await self._bell.close()


class _Recalled(Exception):  # nothing went wrong
    """The claim was given up by its own worker."""


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Inbox:
    """Hears what a worker is asked for, at once: to cancel a run, to drain. Heartbeats tell the same, later."""

    def __init__(
        self, address: Address, clock: Clock, lease: Callable[[], Lease], heard: Callable[[str], None]
    ) -> None:
        self._bell, self._clock, self._lease, self._heard = AsyncBell(address), clock, lease, heard

    async def run(self) -> None:
        while True:
            try:
                lease = self._lease()
                found = await self._bell.wait([lease.keys.inbox(lease.worker)], ROUND)
                if found is not None:
                    self._heard(found[1].decode(errors="replace"))
            except CoordinatorError:
                await self._clock.asleep(0.5)

    async def close(self) -> None:
        await self._bell.close()
