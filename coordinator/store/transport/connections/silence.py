"""A time limit for exchanges in which no bytes move. An exchange in which bytes move has no limit.

A large checkpoint over a slow network takes longer than a limit that detects a dead server soon. So an exchange continues as long
as bytes arrive, or the server's host acknowledges bytes that were sent.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from types import TracebackType
from typing import Any

from coordinator.store.transport.connections.open_files import has_own_file, spare_other_file

LOOKS = 5  # how often the bytes are counted within the limit
_BYTES_ACKED = 120  # where struct tcp_info of Linux has tcpi_bytes_acked, followed by tcpi_bytes_received
_TCP_INFO = getattr(socket, "TCP_INFO", None)


class SilenceLimit:
    """A context manager that raises TimeoutError when no bytes moved on a connection for some seconds.

    If the system does not count the bytes of a connection (unix sockets, systems other than Linux), the whole exchange has to end
    within the limit.

    Args:
        connection: A connection of redis-py's asyncio side.
        seconds: The limit.
    """

    __slots__ = ("_connection", "_look_again", "_moved", "_seconds", "_timeout")

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self._moved: tuple[int, int] | None = None
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> SilenceLimit:
        await self._timeout.__aenter__()
        # Nearly every exchange ends before the bytes are counted first, so they are not counted at its beginning.
        self._look_again = asyncio.get_running_loop().call_later(self._seconds / LOOKS, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._look_again.cancel()
        await self._timeout.__aexit__(kind, error, at)

    def _look(self) -> None:
        if self._timeout.expired():
            return
        loop = asyncio.get_running_loop()
        if not has_own_file(self._connection):  # its number may belong to another connection, whose bytes move
            spare_other_file(self._connection)
            self._timeout.reschedule(loop.time())
            return
        moved = count_moved_bytes(self._connection)
        if self._moved is not None and moved != self._moved:
            self._timeout.reschedule(loop.time() + self._seconds)
        self._moved = moved
        self._look_again = loop.call_later(self._seconds / LOOKS, self._look)


def wait_for_reply(sock: Any, seconds: float | None) -> None:
    """Wait, in a thread, until a reply begins to arrive, or until no bytes moved on the socket for some seconds.

    Call this after a large request: the system has accepted its bytes, but the server may not have received them yet. The call
    returns in both cases. After a silence, the read that follows raises a timeout error.
    """
    if not isinstance(sock, socket.socket) or seconds is None:  # the connection to memory:// has no socket
        return
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    moved, silent = _count_bytes(sock), 0
    while silent < LOOKS and not poll.poll(seconds / LOOKS * 1000):
        before, moved = moved, _count_bytes(sock)
        silent = 0 if moved is not None and moved != before else silent + 1


def count_moved_bytes(connection: Any) -> tuple[int, int] | None:
    """Return how many sent bytes the server's host has acknowledged, and how many bytes have arrived.

    Return None if the system does not count the bytes of this connection.
    """
    # The writer of a store in memory has no socket.
    ask = getattr(getattr(connection, "_writer", None), "get_extra_info", None)
    return None if ask is None else _count_bytes(ask("socket"))


def _count_bytes(sock: Any) -> tuple[int, int] | None:
    if _TCP_INFO is None or sock is None or sock.family == getattr(socket, "AF_UNIX", None):
        return None
    try:
        # A new socket object is made, because the socket object of uvloop has no getsockopt.
        with socket.socket(fileno=os.dup(sock.fileno())) as copy:
            info = copy.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 192)
        acked, received = struct.unpack_from("=QQ", info, _BYTES_ACKED)
    except (OSError, ValueError, struct.error):
        return None
    return acked, received
