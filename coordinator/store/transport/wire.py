"""The way to the servers: carries plans there, repeats what is in trouble, and gathers what travels together.

A request is repeated here and not by redis-py, with the same identity, because every script may be sent twice. What goes to one
node goes together, in lanes: a node that does not answer holds up nobody else, and neither does a call that waits for replicas.
The async wire gathers what one turn of the event loop sends, and carries it in few trips. A trip belongs to the wire: who waits
for an answer may be cancelled, the trip goes on; a trip that takes too long drops its connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import tenacity

from coordinator.clock import SystemClock
from coordinator.errors import Unreachable
from coordinator.model.address import HERE, Address, Node
from coordinator.store.script import Request
from coordinator.store.transport.answers import Answers, all_good, retrying
from coordinator.store.transport.bells import AsyncBell, Bell
from coordinator.store.transport.connections import (
    async_pool,
    detach,
    exchange,
    exchange_async,
    hang_up,
    search,
    search_async,
    sync_pool,
)
from coordinator.store.transport.lane import Lane, Trip
from coordinator.store.transport.topology import Lookout, topology
from coordinator.store.transport.trip import next_trip
from coordinator.store.transport.trouble import Moved, Trouble, mapped

__all__ = ["AsyncBell", "AsyncWire", "Bell", "Plan", "Wire", "detach", "drive", "drive_async"]

T = TypeVar("T")
Plan = Generator[Request | list[Request], Any, T]
TRIP_SECONDS = 5.0
TRIPS_AT_ONCE = 2  # for each lane
LANES_AT_ONCE = 32  # of all threads of a process that share a wire
MOST_HOPS = 5
_clock = SystemClock()


class _Wire:
    """What both wires share: where requests go, and what is learned of nodes by what they answer."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.address, self.timeout = address, timeout
        self._topology = topology(address)
        self._lookout = Lookout(self._topology)
        self._home = Lane(HERE, 0) if address.kind == "one" else None  # asked for by every request: made once

    def _lane(self, request: Request) -> Lane | None:
        replicas = request.replicas
        if self._home is not None and not replicas:
            return self._home
        node = self._topology.where(request.at)
        return None if node is None else Lane(node, replicas)

    def _learn(self, lane: Lane, answers: Sequence[Any]) -> None:
        for answer in answers:
            if isinstance(answer, Moved):
                self._topology.moved(answer.slot, answer.node)
            elif isinstance(answer, Trouble) and answer.elsewhere:
                self._topology.doubt(lane.node)
                return


class Wire(_Wire):
    """The way to the servers for threads. Notices a fork: connections are made anew in the child."""

    def __init__(self, address: Address, timeout: float = 30.0) -> None:
        super().__init__(address, timeout)
        self._nowhere: Exception = Trouble(f"no node of {address} serves this partition", sent=False)
        self._begin()

    def _begin(self) -> None:
        """What belongs to one process."""
        self._pid = os.getpid()
        self._searching = threading.Lock()
        self._pools: dict[Node, Any] = {}
        self._carriers: ThreadPoolExecutor | None = None

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> list[Any]:
        """The answers, each a reply or an error. What is in trouble is sent again until the time is over."""
        if self._pid != os.getpid():
            self._begin()
        answers = self._trips(requests)
        if all_good(answers):
            return answers  # as nearly always: there is nothing to keep track of
        gathered = Answers(requests)
        gathered.take(answers)
        if gathered.open:
            patience = self.timeout if timeout is None else timeout
            retrying(tenacity.Retrying, tenacity.stop_after_delay(patience))(
                lambda: gathered.take(self._trips(gathered.waiting, again=True))
            )
        return gathered.result()

    def _trips(self, requests: Sequence[Request], *, again: bool = False) -> list[Any]:
        """One try of each, in as many trips as it takes. Who moved is followed."""
        if len(requests) == 1 and self._home is not None and not requests[0].replicas:
            return self._trip(self._home, requests)  # one call to one server: there is nothing to sort out
        answers: list[Any] = [None] * len(requests)
        left = list(range(len(requests)))
        if self._lookout.look(_clock.monotonic()):
            self._threads().submit(self._search, in_trouble=True)  # nobody waits for it
        for _ in range(MOST_HOPS):
            self._search(in_trouble=again or any(self._lane(requests[i]) is None for i in left))
            lanes = self._lanes(requests, left, answers)
            carry = partial(self._along, requests, answers)
            # each node at the same time: one that does not answer is not to keep what others are sent from them
            if len(lanes) == 1:
                carry(*next(iter(lanes.items())))
            elif lanes:
                list(self._threads().map(carry, lanes.keys(), lanes.values()))
            left = [i for i in left if isinstance(answers[i], Moved)]
            if not left:
                break
            again = True
        return answers

    def _along(self, requests: Sequence[Request], answers: list[Any], lane: Lane, indices: list[int]) -> None:
        """The trips to one node, one after the other."""
        while indices:
            aboard = indices[: next_trip([requests[i] for i in indices])]
            indices = indices[len(aboard) :]
            for i, answer in zip(aboard, self._trip(lane, [requests[i] for i in aboard]), strict=True):
                answers[i] = answer

    def _threads(self) -> ThreadPoolExecutor:
        if self._carriers is None:
            self._carriers = ThreadPoolExecutor(LANES_AT_ONCE, thread_name_prefix="wire")
        return self._carriers

    def _lanes(self, requests: Sequence[Request], indices: Sequence[int], answers: list[Any]) -> dict[Lane, list[int]]:
        lanes: dict[Lane, list[int]] = {}
        for i in indices:
            lane = self._lane(requests[i])
            if lane is None:
                answers[i] = self._nowhere
            else:
                lanes.setdefault(lane, []).append(i)
        return lanes

    def _search(self, *, in_trouble: bool) -> None:
        """Asks where partitions are, where that is in doubt. What is known stays in use where nobody answers, and by those who had
        no trouble themselves: a node that hangs is not to hold them up."""
        if not self._topology.stale or not in_trouble:
            return
        with self._searching:
            if self._topology.stale:
                try:
                    search(self.address, self._topology)
                except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer where nothing is known
                    self._nowhere = mapped(error, self.address, sent=False)

    def _pool(self, node: Node) -> Any:
        pool = self._pools.get(node)
        if pool is None:
            made = sync_pool(self.address, node, min(TRIP_SECONDS, self.timeout))
            pool = self._pools.setdefault(node, made)
        return pool

    def _trip(self, lane: Lane, requests: Sequence[Request]) -> list[Any]:
        """There and back, a reply or an error for each request."""
        trip = Trip(self.address, lane, requests, min(TRIP_SECONDS, self.timeout))
        sent = False
        try:
            pool = self._pool(lane.node)
            connection = pool.get_connection()
            try:
                sent = True
                answers = self._carry(connection, trip)
            except BaseException:
                connection.disconnect()
                raise
            finally:
                pool.release(connection)
        except Exception as error:  # noqa: BLE001  # whatever went wrong is the answer
            answers = [trip.mapped(error, sent=sent)] * len(requests)
        self._learn(lane, answers)
        return answers

    def _carry(self, connection: Any, trip: Trip) -> list[Any]:
        steps = trip.exchange()
        try:
            commands = next(steps)
            while True:
                commands = steps.send(exchange(connection, *commands))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # a generator's return value

    def close(self) -> None:
        if self._pid == os.getpid():
            carriers, self._carriers = self._carriers, None
            if carriers is not None:
                carriers.shutdown(wait=False)
            for pool in self._pools.values():
                pool.disconnect()


class _Passenger(NamedTuple):
    """A request on its way, who waits for its answer, and how often it was sent on."""

    request: Request
    future: asyncio.Future[Any]
    hops: int = 0

    def answer(self, answer: Any) -> None:
        if not self.future.done():
            self.future.set_result(answer)


@dataclass(slots=True)
class _Platform:
    """Those who wait for a lane, and its trips under way."""

    waiting: list[_Passenger] = field(default_factory=list)
    under_way: int = 0


class AsyncWire(_Wire):
    """The way to the servers for one event loop."""

    def __init__(self, address: Address, timeout: float = 30.0, trip_seconds: float = TRIP_SECONDS) -> None:
        super().__init__(address, timeout)
        self._trip_seconds = trip_seconds
        self._pools: dict[Node, Any] = {}
        self._arriving: list[_Passenger] = []  # this turn of the loop
        self._lost: list[_Passenger] = []  # until it is known where they go
        self._platforms: dict[Lane, _Platform] = {}
        self._under_way: dict[asyncio.Task[None], Sequence[_Passenger]] = {}
        self._searching: asyncio.Task[None] | None = None
        self._scheduled = self._closed = False
        self.trips = 0

    # -- asking

    async def ask(
        self, requests: Sequence[Request], timeout: float | None = None, give_up: Callable[[], bool] | None = None
    ) -> list[Any]:
        """The answers, each a reply or an error. What is in trouble is sent again until the time is over, or `give_up` says so."""
        answers = [await future for future in [self.submit(request) for request in requests]]
        if all_good(answers):
            return answers  # as nearly always: there is nothing to keep track of
        gathered = Answers(requests)
        gathered.take(answers)
        if gathered.open:

            async def again() -> bool:
                waiting = [self.submit(request) for request in gathered.waiting]
                return gathered.take([await future for future in waiting])

            patience = self.timeout if timeout is None else timeout
            until = tenacity.stop_after_delay(patience) if give_up is None else lambda state: give_up()
            await retrying(tenacity.AsyncRetrying, until)(again)
        return gathered.result()

    def look_again(self) -> None:
        """Asks, with the next trip and beside it, whether partitions are still where they were: a master that was cut off and
        replaced answers as before, and who does not wait for replicas would stay with it."""
        self._topology.look_again()

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """One try of a request; the future brings a reply or an error as its value, never raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._arriving.append(_Passenger(request, future))
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._board)
        return future

    # -- where to

    def _board(self) -> None:
        """To the platforms with those who have come; who finds none waits for the search."""
        self._scheduled = False
        if self._closed:
            self._turn_away()
            return
        arriving, self._arriving = self._arriving, []
        touched = dict[Lane, None]()
        for passenger in arriving:
            lane = self._lane(passenger.request)
            if lane is None:
                self._lost.append(passenger)
                continue
            platform = self._platforms.get(lane)
            if platform is None:
                platform = self._platforms[lane] = _Platform()
            platform.waiting.append(passenger)
            touched[lane] = None
        for lane in touched:
            self._depart(lane)
        if self._home is None:
            self._lookout.look(asyncio.get_running_loop().time())
        if (self._topology.stale or self._lost) and self._searching is None:
            self._searching = asyncio.get_running_loop().create_task(self._search())

    async def _search(self) -> None:
        """Asks where partitions are; who was waiting for it boards, or is told that nobody knows."""
        nowhere: Exception = Trouble(f"no node of {self.address} serves this partition", sent=False)
        try:
            await search_async(self.address, self._topology)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer for those who wait
            nowhere = mapped(error, self.address, sent=False)
        finally:
            self._searching = None
            lost, self._lost = self._lost, []
            for passenger in lost:
                if self._lane(passenger.request) is None:
                    passenger.answer(nowhere)
                else:
                    self._arriving.append(passenger)
            if self._arriving and not self._scheduled:
                self._board()

    # -- trips

    def _depart(self, lane: Lane) -> None:
        platform = self._platforms[lane]
        while platform.waiting and platform.under_way < TRIPS_AT_ONCE:
            count = next_trip([passenger.request for passenger in platform.waiting])
            aboard, platform.waiting = platform.waiting[:count], platform.waiting[count:]
            platform.under_way += 1
            task = asyncio.get_running_loop().create_task(self._trip(lane, aboard))
            self._under_way[task] = aboard
            task.add_done_callback(self._under_way.pop)

    async def _trip(self, lane: Lane, aboard: Sequence[_Passenger]) -> None:
        self.trips += 1
        requests = [passenger.request for passenger in aboard]
        answers: list[Any] = []
        try:
            answers = await self._travel(lane, requests)
        except BaseException as error:
            answers = [Trouble(f"the trip was ended: {error!r}", sent=True)] * len(requests)
            raise
        finally:
            for passenger, answer in zip(aboard, answers, strict=True):
                if isinstance(answer, Moved) and passenger.hops < MOST_HOPS:
                    self._arriving.append(passenger._replace(hops=passenger.hops + 1))
                else:
                    passenger.answer(answer)
            platform = self._platforms[lane]
            platform.under_way -= 1
            if any(isinstance(answer, Trouble) and answer.elsewhere for answer in answers):
                # who waits for that node waits for the search first: it may have a successor by now
                self._lost += platform.waiting
                platform.waiting = []
            if (self._arriving or self._lost or self._closed) and not self._scheduled:
                self._board()
            self._depart(lane)

    async def _travel(self, lane: Lane, requests: Sequence[Request]) -> list[Any]:
        trip = Trip(self.address, lane, requests, self._trip_seconds)
        sent = False
        try:
            pool = self._pool(lane.node)
            async with asyncio.timeout(self._trip_seconds):
                connection = await pool.get_connection()
            try:
                sent = True
                async with asyncio.timeout(self._trip_seconds):
                    answers = await self._carry(connection, trip)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            finally:
                await pool.release(connection)
        except Exception as error:  # noqa: BLE001  # whatever went wrong is the answer: else the trip's task would swallow it
            answers = [trip.mapped(error, sent=sent)] * len(requests)
        self._learn(lane, answers)
        return answers

    def _pool(self, node: Node) -> Any:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = async_pool(self.address, node)
        return pool

    async def _carry(self, connection: Any, trip: Trip) -> list[Any]:
        steps = trip.exchange()
        try:
            commands = next(steps)
            while True:
                commands = steps.send(await exchange_async(connection, *commands))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # a generator's return value

    async def close(self) -> None:
        """Trips under way may end. Nothing is left behind, also where who closes is cancelled meanwhile."""
        self._closed = True
        self._turn_away()
        try:
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=self._trip_seconds)
        finally:
            await self._give_up(dict(self._under_way))

    def _turn_away(self) -> None:
        """A trip that began now would make a connection that nobody closes."""
        waiting = [*self._arriving, *self._lost, *(one for p in self._platforms.values() for one in p.waiting)]
        self._arriving, self._lost = [], []
        for platform in self._platforms.values():
            platform.waiting = []
        for passenger in waiting:
            passenger.answer(Unreachable(f"the way to {self.address} was closed"))

    async def _give_up(self, trips: dict[asyncio.Task[None], Sequence[_Passenger]]) -> None:
        tasks = [*trips, *([] if self._searching is None else [self._searching])]
        for task in tasks:
            task.cancel()
        for passenger in (one for aboard in trips.values() for one in aboard):  # not by the trip: it may not have begun
            passenger.answer(Trouble(f"the way to {self.address} was closed", sent=True))
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await hang_up(self._pools.values())


# ---- the drivers -----------------------------------------------------------------------------------------------------


def _outcome(yielded: Request | list[Request], answers: list[Any]) -> tuple[Any, Exception | None]:
    """What a plan is fed: a list for a list, else the one answer or its error."""
    if isinstance(yielded, list):
        return answers, None
    answer = answers[0]
    return (None, answer) if isinstance(answer, Exception) else (answer, None)


def drive(wire: Wire, plan: Plan[T], timeout: float | None = None) -> T:
    """Carries a plan to its end."""
    try:
        yielded = next(plan)
        while True:
            answers = wire.ask(yielded if isinstance(yielded, list) else [yielded], timeout)
            value, error = _outcome(yielded, answers)
            yielded = plan.send(value) if error is None else plan.throw(error)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's return value


async def drive_async(
    wire: AsyncWire, plan: Plan[T], timeout: float | None = None, give_up: Callable[[], bool] | None = None
) -> T:
    """Carries a plan to its end."""
    try:
        yielded = next(plan)
        while True:
            answers = await wire.ask(yielded if isinstance(yielded, list) else [yielded], timeout, give_up)
            value, error = _outcome(yielded, answers)
            yielded = plan.send(value) if error is None else plan.throw(error)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's return value
