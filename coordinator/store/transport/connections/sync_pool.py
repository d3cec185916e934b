"""Pools of connections for threads. The retries of redis-py are off, because the wire repeats requests itself."""

from __future__ import annotations

import os
import select
import ssl
from collections.abc import Callable
from typing import Any

import redis
import redis.backoff
import redis.retry

from coordinator.model.address import Address, Node
from coordinator.store.transport.connections import memory
from coordinator.store.transport.connections.embedded_connection import EmbeddedConnection, hold_server
from coordinator.store.transport.connections.settings import CONNECT_SECONDS, connection_settings, connection_url


def make_pool(
    address: Address,
    node: Node,
    socket_timeout: float | None,
    *,
    sentinel: bool = False,
    connect_seconds: float = CONNECT_SECONDS,
) -> Any:
    """Return a new pool of connections to one node.

    Args:
        address: The address of the server, Sentinel group or Cluster.
        node: The node to connect to.
        socket_timeout: Seconds to wait for a reply.
        sentinel: True if the node is a sentinel, which has credentials of its own.
        connect_seconds: Seconds to wait for a new connection.
    """
    if address.scheme == "memory":
        return memory.sync_client(address.name).connection_pool
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    settings = {"socket_timeout": socket_timeout, "retry": retry, **connection_settings(address, connect_seconds)}
    if address.scheme == "embedded":
        release = hold_server(address.name)
        pool = _Pool(EmbeddedConnection, directory=address.name, **settings)
        pool.leave_server = release
        return pool
    if address.tls:
        settings["connection_class"] = _TlsConnection
    return _Pool.from_url(connection_url(address, node, sentinel=sentinel), **settings)


class _Pool(redis.ConnectionPool):
    """A pool that keeps released connections in a list of its own.

    The base class counts the connections in this list as in use. Its own acquire and release, with two locks and metrics, would
    take as long as writing a request and reading the reply.

    Attributes:
        leave_server: Ends the pool's use of an embedded server.
    """

    leave_server: Callable[[], None] | None = None

    def reset(self) -> None:
        # The list belongs to this process. Threads take and return one connection at a time. The list is made first,
        # because the last step of super().reset() declares the pool to be usable by this process.
        self._idle: list[Any] = []
        super().reset()

    def make_connection(self) -> Any:
        # For redis-py, a new connection on which bytes have arrived is broken, and it drops them. They are the reason for which
        # the server refuses the connection. get_connection below examines the connections that were used before.
        connection: Any = super().make_connection()
        connection.can_read = lambda timeout=0: False
        return connection

    def get_connection(self, *_: Any, **__: Any) -> Any:
        while self.pid == os.getpid():
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if _is_silent(connection._sock):
                return connection
            connection.disconnect()  # the server has closed it
            super().release(connection)
        return super().get_connection()

    def release(self, connection: Any) -> None:
        if connection.is_connected and connection.pid == self.pid:
            self._idle.append(connection)
        else:
            super().release(connection)


def close_pool(pool: Any) -> None:
    """Close the connections of a pool, and end its use of an embedded server. The last user of the server stops it."""
    pool.disconnect()
    leave: Callable[[], None] | None = getattr(pool, "leave_server", None)
    if leave is not None:
        leave()


def _is_silent(sock: Any) -> bool:
    """Return True if the server has neither closed the connection nor sent unexpected bytes on it."""
    if sock is None:
        return False
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN)
    except ValueError:  # another thread has just closed it
        return False
    return not poll.poll(0)


class _TlsConnection(redis.SSLConnection):
    """A TLS connection whose errors contain the server's reason for closing it.

    With TLS 1.3 a server refuses a client's certificate after the handshake. The next write then fails with a plain
    connection error, but the server's alert with the reason can still be read.
    """

    _alert = ""

    def disconnect(self, *arguments: Any, **options: Any) -> None:
        self._alert = _read_alert(self._sock)
        super().disconnect(*arguments, **options)  # type: ignore[no-untyped-call]  # redis-py has no types here

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self._alert = ""
        try:
            super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]  # redis-py has no types here
        except redis.ConnectionError as error:
            if not self._alert:
                raise
            raise redis.ConnectionError(self._alert) from error


def _read_alert(sock: Any) -> str:
    """Return the text of a TLS alert that the server has sent on a socket; empty if there is none."""
    try:
        if sock is not None:
            sock.settimeout(0)
            sock.recv(1)
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLError as error:
        return str(error)
    except (OSError, ValueError):
        pass
    return ""
