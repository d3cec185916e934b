"""The wire for one event loop: it sends requests to their nodes, and repeats them after transient errors.

The wire gathers the requests of one turn of the event loop and sends them in few trips. A trip is a task of its own: if the caller
that waits for an answer is cancelled, the trip continues. If no byte moves for too long, the trip drops its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tenacity

from coordinator.errors import Unreachable
from coordinator.model.address import Address, Node
from coordinator.store.script import Request
from coordinator.store.transport.answers import Answers, all_good, make_retrying
from coordinator.store.transport.connections.async_pool import (
    close_pools,
    drop_connection,
    make_async_pool,
)
from coordinator.store.transport.connections.exchange import exchange_async
from coordinator.store.transport.connections.open_files import transport_of
from coordinator.store.transport.connections.silence import SilenceLimit
from coordinator.store.transport.error_mapping import SlotMoved, TransientError, map_error
from coordinator.store.transport.lane import MOST_REDIRECTS, Lane, LaneFinder
from coordinator.store.transport.packets import count_next_trip
from coordinator.store.transport.topology.discovery import discover_async
from coordinator.store.transport.trip import TRIP_SECONDS, Trip

TRIPS_AT_ONCE = 2  # for each lane


class PendingRequest(NamedTuple):
    """A request without an answer yet, the future for its answer, and the number of MOVED redirects that it followed."""

    request: Request
    future: asyncio.Future[Any]
    redirects: int = 0

    def answer(self, answer: Any) -> None:
        """Set the result of the future, unless the caller has cancelled it."""
        if not self.future.done():
            self.future.set_result(answer)


@dataclass(slots=True)
class LaneQueue:
    """The requests that wait for a trip of one lane, and the number of trips under way."""

    waiting: list[PendingRequest] = field(default_factory=list)
    under_way: int = 0


class AsyncWire:
    """The wire that sends the requests of one event loop to the servers.

    Args:
        address: The address of the server, Sentinel group or Cluster.
        timeout: Seconds for which a request is repeated after transient errors.
        trip_seconds: Seconds without a byte in either direction after which a trip is ended and its connection dropped.

    Attributes:
        trips: The number of trips so far.
    """

    def __init__(self, address: Address, timeout: float = 30.0, trip_seconds: float = TRIP_SECONDS) -> None:
        self.address, self.timeout = address, timeout
        self._lanes = LaneFinder(address)
        self._trip_seconds = trip_seconds
        self._pools: dict[Node, Any] = {}
        self._submitted: list[PendingRequest] = []  # in this turn of the event loop
        self._undirected: list[PendingRequest] = []  # these wait for the discovery of their node
        self._queues: dict[Lane, LaneQueue] = {}
        self._under_way: dict[asyncio.Task[None], Sequence[PendingRequest]] = {}
        self._discovery: asyncio.Task[None] | None = None
        self._dispatch_scheduled = self._closed = False
        self.trips = 0

    # -- asking

    async def ask(
        self, requests: Sequence[Request], timeout: float | None = None, give_up: Callable[[], bool] | None = None
    ) -> list[Any]:
        """Send requests, and repeat the requests that get transient errors.

        Args:
            requests: The requests to send.
            timeout: Seconds for which requests are repeated; the wire's own by default.
            give_up: A function that is called before each repetition, instead of a timeout. If it returns True, requests are not
                repeated any more.

        Returns:
            A reply or an error for each request.
        """
        answers = [await future for future in [self.submit(request) for request in requests]]
        if all_good(answers):
            return answers  # the usual case: no request has to be repeated
        gathered = Answers(requests)
        gathered.take(answers)
        if gathered.open:

            async def try_again() -> bool:
                waiting = [self.submit(request) for request in gathered.waiting]
                return gathered.take([await future for future in waiting])

            seconds = self.timeout if timeout is None else timeout
            until = tenacity.stop_after_delay(seconds) if give_up is None else lambda state: give_up()
            await make_retrying(tenacity.AsyncRetrying, until)(try_again)
        return gathered.result()

    def recheck_topology(self) -> None:
        """Make the wire ask again which nodes serve the partitions, at the same time as its next trip.

        A master that was cut off from the network and replaced may still answer. A caller that does not wait for replicas would
        keep using that master.
        """
        self._lanes.topology.recheck()

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """Send a request once, without repeating it.

        Returns:
            A future whose result is a reply or an error. The future never raises.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._submitted.append(PendingRequest(request, future))
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            loop.call_soon(self._dispatch)
        return future

    # -- choosing lanes

    def _dispatch(self) -> None:
        """Move the submitted requests into the queues of their lanes. Requests without a node wait for the discovery."""
        self._dispatch_scheduled = False
        if self._closed:
            self._refuse_waiting()
            return
        submitted, self._submitted = self._submitted, []
        touched = dict[Lane, None]()
        for pending in submitted:
            lane = self._lanes.find(pending.request)
            if lane is None:
                self._undirected.append(pending)
                continue
            queue = self._queues.get(lane)
            if queue is None:
                queue = self._queues[lane] = LaneQueue()
            queue.waiting.append(pending)
            touched[lane] = None
        for lane in touched:
            self._start_trips(lane)
        if self._lanes.only_lane is None:
            self._lanes.master_check.start_if_due(asyncio.get_running_loop().time())
        if (self._lanes.topology.stale or self._undirected) and self._discovery is None:
            self._discovery = asyncio.get_running_loop().create_task(self._discover())

    async def _discover(self) -> None:
        """Find the nodes that serve the partitions. Then dispatch the waiting requests, or answer them with the error."""
        error: Exception = TransientError(f"no node of {self.address} serves this partition", sent=False)
        try:
            await discover_async(self.address, self._lanes.topology)
        except Exception as failure:  # noqa: BLE001  # any error is the answer to the requests that wait
            error = map_error(failure, self.address, sent=False)
        finally:
            self._discovery = None
            undirected, self._undirected = self._undirected, []
            for pending in undirected:
                if self._lanes.find(pending.request) is None:
                    pending.answer(error)
                else:
                    self._submitted.append(pending)
            if self._submitted and not self._dispatch_scheduled:
                self._dispatch()

    # -- trips

    def _start_trips(self, lane: Lane) -> None:
        queue = self._queues[lane]
        while queue.waiting and queue.under_way < TRIPS_AT_ONCE:
            count = count_next_trip([pending.request for pending in queue.waiting])
            aboard, queue.waiting = queue.waiting[:count], queue.waiting[count:]
            queue.under_way += 1
            task = asyncio.get_running_loop().create_task(self._trip(lane, aboard))
            self._under_way[task] = aboard
            task.add_done_callback(self._under_way.pop)

    async def _trip(self, lane: Lane, aboard: Sequence[PendingRequest]) -> None:
        """Make one trip, answer its requests, and start the next trip of the lane."""
        self.trips += 1
        requests = [pending.request for pending in aboard]
        answers: list[Any] = []
        try:
            answers = await self._travel(lane, requests)
        except BaseException as error:
            answers = [TransientError(f"a request to {self.address} was interrupted: {error!r}", sent=True)] * len(
                requests
            )
            raise
        finally:
            for pending, answer in zip(aboard, answers, strict=True):
                if isinstance(answer, SlotMoved) and pending.redirects < MOST_REDIRECTS:
                    self._submitted.append(pending._replace(redirects=pending.redirects + 1))
                else:
                    pending.answer(answer)
            queue = self._queues[lane]
            queue.under_way -= 1
            if any(isinstance(answer, TransientError) and answer.rediscover for answer in answers):
                # The other requests of this lane wait for the discovery first: the node may have a successor by now.
                self._undirected += queue.waiting
                queue.waiting = []
            if (self._submitted or self._undirected or self._closed) and not self._dispatch_scheduled:
                self._dispatch()
            self._start_trips(lane)

    async def _travel(self, lane: Lane, requests: Sequence[Request]) -> list[Any]:
        trip = Trip(self.address, lane, requests, self._trip_seconds)
        sent = False
        try:
            pool = self._pool(lane.node)
            async with asyncio.timeout(self._trip_seconds):
                connection = await pool.get_connection()
            transport = transport_of(connection)
            try:
                sent = True
                async with SilenceLimit(connection, self._trip_seconds):
                    answers = await self._run(trip, connection)
            except BaseException:
                await drop_connection(connection, transport)
                raise
            finally:
                await pool.release(connection)
        except Exception as error:  # noqa: BLE001  # any error is the answer: the trip's task would swallow it otherwise
            answers = [trip.map_error(error, sent=sent)] * len(requests)
        self._lanes.learn(lane, answers)
        return answers

    def _pool(self, node: Node) -> Any:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = make_async_pool(self.address, node)
        return pool

    async def _run(self, trip: Trip, connection: Any) -> list[Any]:
        steps = trip.run()
        try:
            commands = next(steps)
            while True:
                commands = steps.send(await exchange_async(connection, *commands))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # a generator's return value

    # -- closing

    async def close(self) -> None:
        """Refuse waiting requests, let the current trips end, and close all connections.

        Trips that take longer than `trip_seconds` are cancelled. All connections are closed, even if the caller is cancelled
        meanwhile.
        """
        self._closed = True
        self._refuse_waiting()
        try:
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=self._trip_seconds)
        finally:
            await self._end_trips(dict(self._under_way))

    def _refuse_waiting(self) -> None:
        """Answer all waiting requests with an error, because a new trip would open a connection that is never closed."""
        waiting = [*self._submitted, *self._undirected, *(one for q in self._queues.values() for one in q.waiting)]
        self._submitted, self._undirected = [], []
        for queue in self._queues.values():
            queue.waiting = []
        for pending in waiting:
            pending.answer(Unreachable(f"the connection to {self.address} was closed before the request was sent"))

    async def _end_trips(self, trips: dict[asyncio.Task[None], Sequence[PendingRequest]]) -> None:
        tasks = [*trips, *([] if self._discovery is None else [self._discovery])]
        for task in tasks:
            task.cancel()
        # The requests are answered here, not by their trip: a task that has not begun yet never runs after its cancellation.
        for pending in (one for aboard in trips.values() for one in aboard):
            pending.answer(TransientError(f"the connection to {self.address} was closed before the reply", sent=True))
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await close_pools(self._pools.values())
