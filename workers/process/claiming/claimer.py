"""Claim runs of one partition.

While the process has free slots, a claimer asks the server for runs. If no run is waiting, the claimer listens to bells.

An idle process saves a round trip: it sends the wait for the bell and its next claim together. The server carries out the claim as
soon as the bell rings. Such a waiting claim asks for one run only. If the machine is lost and the server does not notice, the
waiting claim still takes a run, which then has to wait for the end of the lease and gets a strike. A waiting claim therefore never
takes a suspect: after a bell has ended a waiting claim, another claim that does not wait asks for suspects.

That other claim is left out if the waiting claim has left no run, and the handler of the run that it took has ended immediately.
Then the next waiting claim is sent at once, so that it is there when the next run comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from coordinator.clock import Clock
from coordinator.config import Address
from coordinator.errors import CoordinatorError
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncBell, AsyncWire, drive_async
from workers.liveness.lease import Lease
from workers.process.claiming.slots import SlotTable

logger = logging.getLogger(__name__)
ROUND = 12.0  # seconds of the longest wait for a bell; a wait on a master that was cut off and replaced ends after this time
INBOX_ROUND = 30.0  # seconds of the longest wait for a message; heartbeats bring the same requests
SILENT_ROUNDS = 5  # waits without a bell after which a claim does not wait, in case a bell was lost
CLAIM_SECONDS = 5.0  # the longest wait for the answer to a claim
MOST = 200  # the largest number of runs in one claim
TURNS_OF_A_SHORT_HANDLER = 4  # turns of the event loop within which the handler of a very short run ends
LEFT_SECONDS = 0.1  # an outdated worker that left runs to newer workers asks again after this time


class ClaimerHost(Protocol):
    """The methods that a claimer calls on its worker."""

    @property
    def outdated(self) -> bool:
        """Return True if the fleet has newer code than this process."""
        ...

    def lease(self, partition: int) -> Lease:
        """Return the current lease in a partition."""
        ...

    def routes(self) -> Sequence[str]:
        """Return the routes from which the worker may claim at this moment."""
        ...

    def take(self, lease: Lease, runs: Sequence[worker_plans.Claimed]) -> None:
        """Start the runs that a claim returned."""
        ...

    def lose(self, lease: Lease) -> None:
        """Stop the runs of a lease that the server no longer knows, and join again."""
        ...

    def compare(self, lease: Lease) -> None:
        """Send a heartbeat now that compares the runs that this process holds with the runs that it owns on the server."""
        ...


class Claimer:
    """Send the claims of one partition, one at a time.

    Args:
        address: The server.
        wire: The connection to the server.
        slots: The slots of the process.
        clock: The time source.
        partition: The number of the partition.
        host: The worker, whose methods the claimer calls.
        only: True if no other partition needs the free slots. Only then may a claim wait at the server.
    """

    def __init__(
        self,
        address: Address,
        wire: AsyncWire,
        slots: SlotTable,
        clock: Clock,
        partition: int,
        host: ClaimerHost,
        *,
        only: bool,
    ) -> None:
        self._bell = AsyncBell(address)
        self._wire, self._slots, self._clock, self._partition, self._host = wire, slots, clock, partition, host
        self._may_wait_there = only and address.scheme != "memory"
        self.first_answer = asyncio.Event()
        self.asking: asyncio.Task[tuple[str, list[worker_plans.Claimed]]] | None = None
        self.draining = False
        self._waits = False  # the claim that is under way waits at the server
        self._none_left = False  # the newest claim has taken a run, and has left none on the worker's routes
        self._silent_rounds = 0  # waiting claims in a row for which no bell rang
        self._ringing: asyncio.Task[Any] | None = None

    def _lease(self) -> Lease:
        return self._host.lease(self._partition)

    async def run(self) -> None:
        """Claim runs until this task is cancelled.

        A claim that was already sent continues after that. Its task is `asking`, for which the caller has to wait.
        """
        failing = waiting = False
        while not self.draining:
            try:
                taken = await self._claim(probing=failing, waiting=waiting)
                if failing:
                    # The previous claim, which got no answer, may have taken runs. They are released now, before this worker
                    # claims more: a suspect among them must not share a crash with other runs.
                    self._host.compare(self._lease())
                failing = False
                if waiting and self._none_left and await self._have_handlers_ended():
                    waiting = self._can_wait_there(recording=True)
                    continue
                again = not waiting or 0 < self._silent_rounds < SILENT_ROUNDS
                waited, waiting = waiting, again and taken == 0 and self._can_wait_there()
                if taken == 0 and not waited and not waiting:
                    await self._listen()
            except _Recalled:
                failing, waiting = True, False  # the server may have carried out the claim at the last moment
            except CoordinatorError as error:
                if not failing:
                    logger.warning("claim failed: %s", error)
                failing, waiting = True, False
                await self._clock.asleep(0.5)
            except Exception:
                # The process must continue to claim after an answer that cannot be read. The runs in that answer are released
                # after the next comparison of held and owned runs.
                logger.exception("claim failed: its answer could not be processed")
                waiting = False
                await self._clock.asleep(0.5)

    def _can_wait_there(self, *, recording: bool = False) -> bool:
        """Return True if the next claim may wait at the server.

        When a process becomes empty, it must claim again at once, to take suspects. So this is allowed only while the process holds
        no run. It is also allowed only in a namespace in which claims do not wait for replicas.

        Args:
            recording: Allow it also while the process only records outcomes. The caller knows that no suspect waits. If one comes,
                the claim that its bell ends rings again, because the process may not take it yet.
        """
        held = self._slots.running if recording else self._slots.held
        idle = not held and self._ringing is None and bool(self._host.routes())
        return self._may_wait_there and idle and not self._host.outdated and not self._lease().keys.at.replicas

    async def _have_handlers_ended(self) -> bool:
        """Return True if all handlers of the process end within a few turns of the event loop."""
        for _ in range(TURNS_OF_A_SHORT_HANDLER):
            if not self._slots.running:
                return True
            await self._clock.asleep(0)
        return False

    async def _claim(self, *, probing: bool, waiting: bool) -> int:
        """Send one claim, and start the runs that its answer brings.

        Args:
            probing: Ask for no run. After a failure, such a claim shows whether the partition can be reached again, and reserves
                no slots that other partitions can use meanwhile.
            waiting: Let the claim wait at the server.

        Returns:
            The number of runs that were taken, or -1 if the claimer should ask again immediately.
        """
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
            self._host.lose(lease)
            await self._clock.asleep(0.05)  # the worker is joining again
        elif answer == "expired":
            self._host.compare(lease)
            await self._clock.asleep(0.1)
        elif answer == "left":  # do not wait for a bell: its token is for the newer workers
            await self._clock.asleep(LEFT_SECONDS)
        return len(runs) if answer in ("ok", "suspect") and not probing else -1

    def recall(self) -> None:
        """Cancel a claim that waits at the server, because its arguments no longer describe this worker.

        A claim that has not been sent yet is not cancelled, because its arguments are determined when it is sent.
        """
        if self._waits and self.asking is not None:
            self.asking.cancel()

    async def _ask(
        self, lease: Lease, count: int, alone: bool, *, waiting: bool
    ) -> tuple[str, list[worker_plans.Claimed]]:
        """Send one numbered claim, and return the answer word and the runs.

        If no answer arrives in time, the floor of the lease rises, so that the server refuses the claim if it arrives late.
        """
        lease.number += 1
        number, routes, outdated = lease.number, self._host.routes(), self._host.outdated
        waiting = waiting and bool(routes) and not outdated  # both may have changed since the decision to wait
        plan = worker_plans.claim(
            lease.keys, lease.worker, number=number, want=count if routes else 0, routes=routes, alone=alone and not waiting,
            outdated=outdated,
        )  # fmt: skip
        try:
            if waiting:
                self._waits = True
                rung, (answer, runs) = await self._bell.ask(self._bells(lease, routes, suspects=True), ROUND, plan)
                self._silent_rounds = 0 if rung else self._silent_rounds + 1
            else:
                self._silent_rounds = 0
                answer, runs = await drive_async(self._wire, plan, timeout=CLAIM_SECONDS)
            self._none_left = bool(runs) and runs[0].none_left
            self._host.take(lease, runs)
            return answer, runs
        finally:
            self._waits = False
            lease.floor = number
            if count:  # the claimed runs have taken their slots by now; the other slots are free again
                self._slots.give_back(count, alone=alone)

    async def _listen(self) -> None:
        """Wait until a bell rings, the longest wait is over, or the process becomes empty.

        The wait ends when the process becomes empty, because only an empty process may take suspects.
        """
        if self._ringing is None:
            # Only an empty process may take suspects. Another process would take a token for which an empty one waits.
            bells = self._bells(self._lease(), self._host.routes(), suspects=not self._slots.held)
            wait = self._bell.wait(bells, ROUND) if bells else self._clock.asleep(1.0)
            self._ringing = asyncio.get_running_loop().create_task(wait)
        # The wait is not cancelled when the process becomes empty: a token of the bell that is on its way would be lost.
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

    def _bells(self, lease: Lease, routes: Sequence[str], *, suspects: bool) -> list[str]:
        bells = [lease.keys.bell(route) for route in routes]
        if suspects:
            bells += [lease.keys.suspect_bell(route) for route in routes]
        return bells

    async def close(self) -> None:
        """Stop listening, and close the connection."""
        if self._ringing is not None:
            self._ringing.cancel()
        try:
            await asyncio.gather(*([] if self._ringing is None else [self._ringing]), return_exceptions=True)
        finally:
            await self._bell.close()


class _Recalled(Exception):
    """The exception that ends a claim after the worker itself has cancelled it. It is not an error."""


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Inbox:
    """Receive messages to this worker immediately: requests to cancel a run or to drain, and hints about signals and limits.

    The answers to heartbeats contain the same requests, but arrive later. A lost hint only causes a delay.

    Args:
        address: The server.
        clock: The time source.
        lease: A function that returns the current lease.
        receive: A function that is called with each message.
    """

    def __init__(
        self, address: Address, clock: Clock, lease: Callable[[], Lease], receive: Callable[[str], None]
    ) -> None:
        self._bell, self._clock, self._lease, self._receive = AsyncBell(address), clock, lease, receive

    async def run(self) -> None:
        """Receive messages until this task is cancelled."""
        while True:
            try:
                lease = self._lease()
                found = await self._bell.wait([lease.keys.inbox(lease.worker)], INBOX_ROUND)
                if found is not None:
                    self._receive(found[1].decode(errors="replace"))
            except CoordinatorError:
                await self._clock.asleep(0.5)

    async def close(self) -> None:
        """Close the connection of the inbox."""
        await self._bell.close()
