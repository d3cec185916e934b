"""Send commands on a connection and read their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from coordinator.store.script import Argument
from coordinator.store.transport.connections.silence import wait_for_reply
from coordinator.store.transport.error_mapping import (
    ConnectionLost,
    ErrorReply,
    ServerLoading,
    is_refused_connection,
)
from coordinator.store.transport.observer import start_exchange
from coordinator.store.transport.packets import Packet

PIECE = 256 * 1024
LATE = 1.0  # seconds that the reply to a blocking command may be late before its connection counts as lost
_pack: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub allows one argument


def encode_commands(commands: Sequence[list[Argument]]) -> bytes:
    """Return commands as the bytes to send. hiredis encodes them, because the Python code of redis-py is much slower."""
    return b"".join([_pack(tuple(command)) for command in commands])


def exchange(
    connection: Any,
    commands: Sequence[list[Argument]],
    packets: Sequence[Packet] = (),
    ahead: int = 0,
    blocking: float | None = None,
) -> list[Any]:
    """Send commands and read their replies, from a thread.

    Args:
        connection: A connection of redis-py.
        commands: The commands to send.
        packets: The packets to which the commands belong, for the observer. Further commands ask how many replicas have
            confirmed the writes.
        ahead: The number of commands that come before the commands of the packets.
        blocking: Seconds for which the last of the commands ahead may block at the server; None if no command blocks. The time
            limit of the connection applies to the other replies.

    Returns:
        For each command its reply, or the error that the server answered.

    Raises:
        ErrorReply: The server's error for a command before the blocking one. The caller must not wait for the blocking command.
    """
    replies: list[Any] = []
    with start_exchange(packets) as observed:
        pieces = _pieces(encode_commands(commands))
        connection.send_packed_command(pieces)
        observed.sent()
        if blocking is None and len(pieces) > 1:
            wait_for_reply(connection._sock, connection.socket_timeout)
        for n in range(len(commands)):
            try:
                if blocking is not None and n == ahead - 1:
                    replies.append(connection.read_response(timeout=blocking + LATE))
                else:
                    replies.append(connection.read_response())
            except ErrorReply as error:
                if blocking is not None and n < ahead - 1:
                    raise
                replies.append(error)
            except ServerLoading as error:
                raise _loading_error(error, replies) from None
            except (ConnectionLost, OSError) as error:
                raise _closing_error(error, replies) from None
        observed.answered(replies[ahead:])
    return replies


def _pieces(data: bytes) -> list[bytes]:
    """Return the data in pieces. A thread sends them one by one, because the timeout of a socket applies to one piece."""
    if len(data) <= PIECE:
        return [data]
    return [data[start : start + PIECE] for start in range(0, len(data), PIECE)]


async def exchange_async(
    connection: Any, commands: Sequence[list[Argument]], packets: Sequence[Packet] = (), ahead: int = 0
) -> list[Any]:
    """Send commands and read their replies, from an event loop.

    Args:
        connection: A connection of redis-py.
        commands: The commands to send.
        packets: The packets to which the commands belong, for the observer.
        ahead: The number of commands that come before the commands of the packets.

    Returns:
        For each command its reply, or the error that the server answered.
    """
    replies: list[Any] = []
    with start_exchange(packets) as observed:
        await connection.send_packed_command([encode_commands(commands)])
        observed.sent()
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except ErrorReply as error:
                replies.append(error)
            except ServerLoading as error:
                raise _loading_error(error, replies) from None
            except (ConnectionLost, OSError) as error:
                raise _closing_error(error, replies) from None
        observed.answered(replies[ahead:])
    return replies


def _loading_error(error: ServerLoading, replies: Sequence[Any]) -> Exception:
    """Return the error for an exchange that the server ended with a LOADING error.

    If LOADING is the first reply, the server has carried out no command, and the error is returned as it is. Otherwise the server
    may have carried out some commands, and the result is a ConnectionError.
    """
    return ConnectionError(str(error)) if replies else error


def _closing_error(error: Exception, replies: Sequence[Any]) -> Exception:
    """Return the error for an exchange whose connection the server has closed.

    A server that refuses a connection (in protected mode, or because it has too many connections) sends one error and closes the
    connection. That error is returned, because it has the reason. `error` would only say that the connection is closed.
    """
    refused = bool(replies) and isinstance(replies[0], ErrorReply) and is_refused_connection(str(replies[0]))
    return replies[0] if refused else error
