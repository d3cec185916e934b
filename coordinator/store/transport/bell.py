"""Wait for bells in a thread, on connections of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from coordinator.clock import SystemClock
from coordinator.errors import Unreachable
from coordinator.model.address import HERE, Address, Node
from coordinator.store.script import Argument
from coordinator.store.transport.async_bell import (
    AsyncBell,
    Entries,
    Token,
    as_transient,
    check_open,
    read_command,
    read_entries,
    read_token,
)
from coordinator.store.transport.connections.exchange import exchange
from coordinator.store.transport.connections.settings import CONNECT_SECONDS
from coordinator.store.transport.connections.sync_pool import close_pool, make_pool
from coordinator.store.transport.error_mapping import final_error, map_error
from coordinator.store.transport.topology import make_topology
from coordinator.store.transport.topology.discovery import discover
from coordinator.store.transport.topology.sentinel import MasterCheckTimer

T = TypeVar("T")
_clock = SystemClock()


class Bell:
    """A bell for a thread: it waits until one of several lists has a token. Another thread may close it, which ends the wait."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._topology = make_topology(address)
        self._master_check = MasterCheckTimer(self._topology)
        self._pools: dict[tuple[Node, float], Any] = {}
        self._cluster_bell: _ClusterBell | None = None
        self._closed = False

    def wait(self, keys: Sequence[str], seconds: float) -> Token | None:
        """Wait until one of the lists has a token, and take it.

        Returns:
            The list's key and the token, or None when the time is over.

        Raises:
            Unreachable: No node of these lists can be reached, or another thread has closed the bell.
        """
        if self.address.kind == "cluster":
            self._cluster_bell = self._cluster_bell or _ClusterBell(self.address)
            return self._cluster_bell.run(lambda bell: bell.wait(keys, seconds))
        return read_token(self._ask(keys, seconds, ["BLPOP", *keys, str(seconds)]))

    def read(self, keys: Sequence[str], after: Sequence[str], most: int, seconds: float) -> Entries:
        """Wait until one of several streams of one partition has entries after a given id. See `AsyncBell.read`."""
        if self.address.kind == "cluster":
            self._cluster_bell = self._cluster_bell or _ClusterBell(self.address)
            return self._cluster_bell.run(lambda bell: bell.read(keys, after, most, seconds))
        return read_entries(self._ask(keys, seconds, read_command(keys, after, most, seconds)))

    def _ask(self, keys: Sequence[str], seconds: float, command: list[Argument]) -> Any:
        """Send a blocking command to the node of the first key, and return the server's answer.

        Raises:
            Unreachable: The node can't be reached, or another thread has closed the bell.
        """
        node = HERE
        try:
            self._master_check.start_if_due(_clock.monotonic())
            if self._topology.stale:
                discover(self.address, self._topology)
            node = self._topology.where(keys[0]) or HERE
            return self._block(node, seconds, command)
        except Exception as error:  # after any error there is no token
            if self._closed:  # redis-py raises odd errors when another thread closes a connection that is in use
                raise Unreachable("the wait ended: this client has closed its bell") from error
            failure = as_transient(map_error(error, self.address, sent=False, node=node))
        self._topology.doubt(node)
        raise final_error(failure)

    def close(self) -> None:
        """End the wait and close its connection. Any thread may call this."""
        self._closed = True
        if self._cluster_bell is not None:
            self._cluster_bell.close()
        for pool in list(self._pools.values()):
            close_pool(pool)

    def _block(self, node: Node, seconds: float, command: list[Argument]) -> Any:
        # A connection that died without a sign is dropped a few seconds after the server should have answered.
        limit = seconds + CONNECT_SECONDS
        pool = self._pools.get((node, limit))
        if pool is None:
            pool = self._pools[node, limit] = make_pool(self.address, node, limit)
        connection = pool.get_connection()
        try:
            check_open(self._closed)
            (reply,) = exchange(connection, [command])
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
        if isinstance(reply, Exception):
            raise reply
        return reply


class _ClusterBell:
    """A bell for a thread and a Cluster: an AsyncBell in a private event loop.

    One thread cannot wait for several connections at the same time, but an event loop can. If the bell is closed during a wait, the
    waiting thread closes the loop and its connections. Otherwise the thread that closes the bell does.
    """

    def __init__(self, address: Address) -> None:
        self._loop, self._bell = asyncio.new_event_loop(), AsyncBell(address)
        self._lock = threading.Lock()
        self._waiting: asyncio.Task[Any] | None = None
        self._closed = threading.Event()

    def run(self, wait: Callable[[AsyncBell], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the AsyncBell in the private event loop, and return its result.

        Raises:
            Unreachable: The bell was closed.
        """
        with self._lock:
            if self._closed.is_set():
                raise Unreachable("the wait ended: this client has closed its bell")
            waiting: asyncio.Task[T] = self._loop.create_task(wait(self._bell))
            self._waiting = waiting
        try:
            return self._loop.run_until_complete(waiting)
        except asyncio.CancelledError:
            raise Unreachable("the wait ended: this client has closed its bell") from None
        finally:
            with self._lock:
                self._waiting, closed = None, self._closed.is_set()
            if closed:
                self._end()

    def close(self) -> None:
        with self._lock:
            closed, waiting = self._closed.is_set(), self._waiting
            self._closed.set()
            if waiting is not None:
                self._loop.call_soon_threadsafe(waiting.cancel)
        if waiting is None and not closed:
            self._end()

    def _end(self) -> None:
        self._loop.run_until_complete(self._bell.close())
        self._loop.close()
