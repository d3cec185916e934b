"""Recognise files that another part of the process has closed.

A handler, or a library that it uses, may close a file by its number without owning it, for example because it closes a file of its
own twice. The operating system gives the number to the next file that is opened. Without the checks of this module, two parts of
the process would then use the same connection, and each would read replies to the requests of the other.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any

Identity = tuple[int, int]


class _Connections(threading.local):
    """The connections that were opened in a thread."""

    def __init__(self) -> None:
        self.opened: weakref.WeakSet[Any] = weakref.WeakSet()


_connections = _Connections()


def identify_file(number: int) -> Identity | None:
    """Return the identity of an open file, which no other open file has; None if no file has this number."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def transport_of(connection: Any) -> asyncio.Transport | None:
    """Return the asyncio transport of a connection; None if it has none. redis-py forgets the transport after a failed exchange."""
    return getattr(getattr(connection, "_writer", None), "transport", None)


def remember_file(connection: Any) -> None:
    """Store the file of a new connection of redis-py in its attribute `file`, and the event loop in its attribute `loop`."""
    transport = transport_of(connection)
    sock = None if transport is None else transport.get_extra_info("socket")
    connection.file = None if sock is None else (sock.fileno(), identify_file(sock.fileno()))
    connection.loop = asyncio.get_running_loop()
    _connections.opened.add(connection)


def has_own_file(connection: Any) -> bool:
    """Return False if another part of the process has closed the file of a connection."""
    file: tuple[int, Identity | None] | None = getattr(connection, "file", None)
    return file is None or identify_file(file[0]) == file[1]


def spare_other_file(connection: Any) -> None:
    """Call this before a connection is closed: it keeps the transport from closing a file that has got its number.

    uvloop has no way to prevent this. The part of the process that owns the other file then finds it closed.
    """
    transport = transport_of(connection)
    if transport is not None and not has_own_file(connection):
        real = getattr(transport.get_extra_info("socket"), "_sock", None)
        if real is not None:
            real.detach()


def abort_closed_connections() -> None:
    """Abort the connections of this event loop whose files another part of the process has closed.

    Call this before a connection is opened. While such a connection exists, even if no part of the process uses it now, asyncio
    refuses each new connection that gets its number.
    """
    loop = asyncio.get_running_loop()
    for connection in list(_connections.opened):
        transport = transport_of(connection)
        if transport is not None and connection.loop is loop and not has_own_file(connection):
            spare_other_file(connection)
            transport.abort()
