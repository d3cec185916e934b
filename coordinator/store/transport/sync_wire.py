"""The wire for threads: it sends requests to their nodes, and repeats them after transient errors.

The wire repeats requests itself, instead of redis-py, because only the wire knows that a script may be sent twice. Each node has a
lane of its own, so that a node that does not answer does not delay requests to other nodes. Requests that wait for replicas have
lanes of their own, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import tenacity

from coordinator.clock import SystemClock
from coordinator.errors import Unreachable
from coordinator.model.address import Address, Node
from coordinator.store.script import Argument, Call, Request
from coordinator.store.transport.answers import Answers, all_good, make_retrying
from coordinator.store.transport.connections.exchange import exchange
from coordinator.store.transport.connections.sync_pool import close_pool, make_pool
from coordinator.store.transport.error_mapping import SlotMoved, TransientError, final_error, map_error
from coordinator.store.transport.lane import MOST_REDIRECTS, Lane, LaneFinder
from coordinator.store.transport.packets import Packet, count_next_trip, pack
from coordinator.store.transport.topology.discovery import discover
from coordinator.store.transport.trip import TRIP_SECONDS, Trip

LANES_AT_ONCE = 32  # the most lanes with a trip at the same time, for all threads that share a wire
LEAST_BLOCK = 0.001  # seconds; BLPOP with 0 would wait forever
_clock = SystemClock()


@dataclass(slots=True)
class BlockingPop:
    """A registration and a command that waits for a token of a list, ahead of the commands of a trip.

    Attributes:
        registration: The call after which the server puts a token into the list.
        key: The key of the list.
        seconds: How long the server waits.
        taken: True after the server has taken a token.
    """

    registration: Call
    key: str
    seconds: float
    taken: bool = False

    def exchange(self, connection: Any, commands: list[list[Argument]], packets: list[Packet]) -> list[Any]:
        """Send these commands and the commands of a trip, and return the replies to the commands of the trip.

        Raises:
            Exception: The server's error for one of these commands. Without it, a caller would wait again without a pause.
        """
        # The script is sent with its source. The blocking command is under way before the client could learn that the server
        # lacks the script.
        (registration,) = pack([self.registration])
        register = registration.command(bare=False, whole=True)
        pop: list[Argument] = ["BLPOP", self.key, str(self.seconds)]
        _, token, *replies = exchange(connection, [register, pop, *commands], packets, ahead=2, blocking=self.seconds)
        if isinstance(token, Exception):
            raise token
        self.taken = token is not None
        return replies


class Wire:
    """The wire that sends the requests of threads to the servers. After a fork, the child process opens its own connections.

    Args:
        address: The address of the server, Sentinel group or Cluster.
        timeout: Seconds for which a request is repeated after transient errors.
    """

    def __init__(self, address: Address, timeout: float = 30.0) -> None:
        self.address, self.timeout = address, timeout
        self._lanes = LaneFinder(address)
        self._discovery_error: Exception = TransientError(f"no node of {address} serves this partition", sent=False)
        self._start_process()

    def _start_process(self) -> None:
        """Create the locks, pools and threads that belong to one process."""
        self._pid = os.getpid()
        self._discovering = threading.Lock()
        self._pools: dict[Node, Any] = {}
        self._executor: ThreadPoolExecutor | None = None
        self._closings = 0

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> list[Any]:
        """Send requests, and repeat the requests that get transient errors.

        Args:
            requests: The requests to send.
            timeout: Seconds for which requests are repeated; the wire's own by default.

        Returns:
            A reply or an error for each request.
        """
        if self._pid != os.getpid():
            self._start_process()
        answers = self._try(requests)
        if all_good(answers):
            return answers  # the usual case: no request has to be repeated
        gathered = Answers(requests)
        gathered.take(answers)
        if gathered.open:
            seconds = self.timeout if timeout is None else timeout
            make_retrying(tenacity.Retrying, tenacity.stop_after_delay(seconds))(
                lambda: gathered.take(self._try(gathered.waiting, again=True)) and not self._closings
            )
        return gathered.result()

    def ask_after_token(self, registration: Call, key: str, seconds: float, request: Request) -> tuple[bool, Any]:
        """Send a request that the server carries out when a list has a token, or when the time is over.

        The server takes the token from the list. The request is sent once. If it gets an error, the token may be lost. Meanwhile
        the calling thread occupies one connection of the wire.

        Args:
            registration: A call that the server carries out first. It decides when the list gets a token.
            key: The key of the list, in the partition of the request.
            seconds: How long the server waits for a token.
            request: The request. It must not wait for replicas.

        Returns:
            True if the list had a token, and the reply to the request or its error.
        """
        if self._pid != os.getpid():
            self._start_process()
        if self._lanes.master_check.start_if_due(_clock.monotonic()):
            self._threads().submit(self._discover, needed=True)  # in the background
        lane = self._lanes.find(request)
        if lane is None:
            return False, Unreachable(f"no node of {self.address} is known to serve this partition")
        trip = Trip(self.address, lane, [request], seconds)
        pop = BlockingPop(registration, key, max(seconds, LEAST_BLOCK))
        (answer,) = self._carry_out(trip, lane, 1, pop)
        return pop.taken, final_error(answer) if isinstance(answer, TransientError) else answer

    def close(self) -> None:
        """Close all connections."""
        if self._pid == os.getpid():
            self._closings += 1
            executor, self._executor = self._executor, None
            if executor is not None:
                executor.shutdown(wait=False)
            pools, self._pools = self._pools, {}
            for pool in pools.values():
                close_pool(pool)

    # -- choosing lanes

    def _try(self, requests: Sequence[Request], *, again: bool = False) -> list[Any]:
        """Try each request once, in as many trips as needed, and follow MOVED redirects. Return a reply or an error for each.

        With `again`, the requests are repeated after an error, so that a stale topology is searched first.
        """
        if len(requests) == 1 and self._lanes.only_lane is not None and not requests[0].replicas:
            return self._trip(self._lanes.only_lane, requests)  # one request to a single server: nothing to sort
        answers: list[Any] = [None] * len(requests)
        left = list(range(len(requests)))
        if self._lanes.master_check.start_if_due(_clock.monotonic()):
            self._threads().submit(self._discover, needed=True)  # in the background
        for _ in range(MOST_REDIRECTS):
            self._discover(needed=again or any(self._lanes.find(requests[i]) is None for i in left))
            lanes = self._sort(requests, left, answers)
            carry = partial(self._carry_lane, requests, answers)
            # All nodes are asked at the same time, so that a node that does not answer does not delay the requests to the others.
            if len(lanes) == 1:
                carry(*next(iter(lanes.items())))
            elif lanes:
                list(self._threads().map(carry, lanes.keys(), lanes.values()))
            left = [i for i in left if isinstance(answers[i], SlotMoved)]
            if not left:
                break
            again = True
        return answers

    def _sort(self, requests: Sequence[Request], indices: Sequence[int], answers: list[Any]) -> dict[Lane, list[int]]:
        """Return the indices of the requests by lane. A request without a lane gets an error as its answer."""
        lanes: dict[Lane, list[int]] = {}
        for i in indices:
            lane = self._lanes.find(requests[i])
            if lane is None:
                answers[i] = self._discovery_error
            else:
                lanes.setdefault(lane, []).append(i)
        return lanes

    def _carry_lane(self, requests: Sequence[Request], answers: list[Any], lane: Lane, indices: list[int]) -> None:
        """Make the trips of one lane, one after the other."""
        while indices:
            aboard = indices[: count_next_trip([requests[i] for i in indices])]
            indices = indices[len(aboard) :]
            for i, answer in zip(aboard, self._trip(lane, [requests[i] for i in aboard]), strict=True):
                answers[i] = answer

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(LANES_AT_ONCE, thread_name_prefix="wire")
        return self._executor

    def _discover(self, *, needed: bool) -> None:
        """Find the nodes that serve the partitions, if the topology is stale. If no node answers, the known nodes stay in use.

        Args:
            needed: False if the nodes of all requests are known and no request is repeated. Then nothing is searched, so that a
                node that hangs does not delay the requests.
        """
        topology = self._lanes.topology
        if not topology.stale or not needed:
            return
        with self._discovering:
            if topology.stale:
                try:
                    discover(self.address, topology)
                except Exception as error:  # noqa: BLE001  # any error is the answer to requests without a node
                    self._discovery_error = map_error(error, self.address, sent=False)

    # -- trips

    def _trip(self, lane: Lane, requests: Sequence[Request]) -> list[Any]:
        """Make one trip, and return a reply or an error for each request."""
        trip = Trip(self.address, lane, requests, min(TRIP_SECONDS, self.timeout))
        return self._carry_out(trip, lane, len(requests))

    def _carry_out(self, trip: Trip, lane: Lane, count: int, pop: BlockingPop | None = None) -> list[Any]:
        """Carry out a trip on a connection of its lane, and return a reply or an error for each of its `count` requests."""
        sent, closings = False, self._closings
        try:
            pool = self._pool(lane.node)
            connection = pool.get_connection()
            try:
                sent = True
                answers = self._run(trip, connection, pop)
            except BaseException:
                connection.disconnect()
                raise
            finally:
                pool.release(connection)
        except Exception as error:  # noqa: BLE001  # any error is the answer to all requests of the trip
            if self._closings != closings:  # redis-py raises odd errors when another thread closes a connection in use
                error = ConnectionError(f"another thread closed the connection: {error}")
            answers = [trip.map_error(error, sent=sent)] * count
        self._lanes.learn(lane, answers)
        return answers

    def _pool(self, node: Node) -> Any:
        if self._closings:  # a new pool would never be closed
            raise ConnectionError(f"the connection to {self.address} was closed before the request was sent")
        pool = self._pools.get(node)
        if pool is None:
            made = make_pool(self.address, node, min(TRIP_SECONDS, self.timeout))
            pool = self._pools.setdefault(node, made)
            if pool is not made:  # another thread was faster
                close_pool(made)
        return pool

    def _run(self, trip: Trip, connection: Any, pop: BlockingPop | None = None) -> list[Any]:
        steps = trip.run()
        try:
            commands = next(steps)
            if pop is not None:  # a script that is missing is sent again without it: the token may have been taken
                commands = steps.send(pop.exchange(connection, *commands))
            while True:
                commands = steps.send(exchange(connection, *commands))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # a generator's return value
