"""Pools of connections for an event loop. The retries and time limits of redis-py are off, because the wire has its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import redis.asyncio
import redis.asyncio.retry
import redis.backoff

from coordinator.model.address import Address, Node
from coordinator.store.transport.connections import memory
from coordinator.store.transport.connections.embedded_connection import AsyncEmbeddedConnection, hold_server
from coordinator.store.transport.connections.open_files import (
    abort_closed_connections,
    has_own_file,
    remember_file,
    spare_other_file,
)
from coordinator.store.transport.connections.settings import CONNECT_SECONDS, connection_settings, connection_url


def make_async_pool(
    address: Address,
    node: Node,
    *,
    sentinel: bool = False,
    connect_seconds: float = CONNECT_SECONDS,
    protocol: int = 2,
) -> Any:
    """Return a new pool of connections to one node.

    The connections have no socket timeout: with one, Python 3.11 swallows cancellations. Trips have a deadline of their own.

    Args:
        address: The address of the server, Sentinel group or Cluster.
        node: The node to connect to.
        sentinel: True if the node is a sentinel, which has credentials of its own.
        connect_seconds: Seconds to wait for a new connection.
        protocol: 2, or 3 for a connection on which the server sends messages of its own.
    """
    if address.scheme == "memory":
        return memory.async_client(address.name).connection_pool
    retry = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
    settings = {"socket_timeout": None, "retry": retry, **connection_settings(address, connect_seconds, protocol)}
    if address.scheme == "embedded":
        release = hold_server(address.name)
        pool = _Pool(AsyncEmbeddedConnection, directory=address.name, **settings)
        pool.leave_server = release
        return pool
    return _Pool.from_url(connection_url(address, node, sentinel=sentinel), **settings)


class _Pool(redis.asyncio.ConnectionPool):
    """A pool that keeps released connections in a list of its own, as the pool for threads does, and closes without waiting.

    When redis-py closes a connection, it waits until all bytes are sent and TLS has shut down. If the server hangs, that wait never
    ends, and if the closing task is cancelled meanwhile, the connection stays open until the garbage collector finds it.

    Attributes:
        leave_server: Ends the pool's use of an embedded server.
    """

    leave_server: Callable[[], None] | None = None

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._idle: list[Any] = []

    async def get_connection(self, *_: Any, **__: Any) -> Any:
        while self._idle:
            connection = self._idle.pop()
            # Unread bytes on a connection would be taken for the reply to the next request.
            usable = connection.is_connected and connection._reader.exception() is None and has_own_file(connection)
            if usable and not await connection.can_read():
                return connection
            spare_other_file(connection)
            await connection.disconnect(nowait=True)  # the server, or another part of this process, has closed it
            await super().release(connection)
        return await super().get_connection()  # type: ignore[no-untyped-call]  # redis-py has no types here

    async def ensure_connection(self, connection: Any) -> None:
        # For redis-py, a new connection on which bytes have arrived is broken, and it drops them. They are the reason for which
        # the server refuses the connection. get_connection above examines the connections that were used before.
        abort_closed_connections()
        await connection.connect()
        remember_file(connection)

    async def release(self, connection: Any) -> None:
        if connection.is_connected:
            self._idle.append(connection)
        else:
            await super().release(connection)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        for connection in (*self._available_connections, *(self._in_use_connections if inuse_connections else ())):
            if connection._writer is not None:
                spare_other_file(connection)
                connection._writer.transport.abort()
                connection._close()  # forgets the writer, about which the garbage collector would warn otherwise
        await super().disconnect(inuse_connections)


async def drop_connection(connection: Any, transport: asyncio.Transport | None) -> None:
    """Close a connection immediately after a failed exchange, and discard the bytes that were not sent yet.

    Otherwise the bytes of a large request would keep the connection open, and could reach the server much later.

    Args:
        connection: A connection of redis-py.
        transport: The transport of the connection, from before the exchange.
    """
    spare_other_file(connection)
    await connection.disconnect(nowait=True)
    if transport is not None:
        transport.abort()


async def close_pools(pools: Iterable[Any]) -> None:
    """Close the connections of all pools, and end their use of an embedded server. The last user of the server stops it.

    Raises:
        CancelledError: The caller was cancelled meanwhile. All pools are closed first.
    """
    cancelled: asyncio.CancelledError | None = None
    for pool in list(pools):
        try:
            await pool.disconnect()
            leave: Callable[[], None] | None = getattr(pool, "leave_server", None)
            if leave is not None:
                await asyncio.to_thread(leave)  # the server may take a while to stop
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001  # a broken connection is as good as closed
            pass
    if cancelled is not None:
        raise cancelled
