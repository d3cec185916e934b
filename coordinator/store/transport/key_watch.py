"""Let the server report which keys change, on connections that are used for nothing else.

The server's client tracking in broadcast mode (`CLIENT TRACKING ON BCAST PREFIX …`) sends the names of changed keys to every
connection that asked for their prefix. It costs nothing while no connection asks for it. It does not depend on our scripts, so it
also reports changes by processes of other versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from coordinator.errors import Refused
from coordinator.model.address import HERE, Address, Node
from coordinator.store.script import Argument
from coordinator.store.transport.connections.async_pool import (
    close_pools,
    drop_connection,
    make_async_pool,
)
from coordinator.store.transport.connections.exchange import encode_commands
from coordinator.store.transport.connections.open_files import transport_of
from coordinator.store.transport.connections.settings import CONNECT_SECONDS
from coordinator.store.transport.error_mapping import ErrorReply, TransientError, final_error, map_error
from coordinator.store.transport.topology import make_topology
from coordinator.store.transport.topology.discovery import discover_async

PING_SECONDS = 5.0  # seconds without a message after which a PING tests the connection
_INVALIDATE = b"invalidate"


async def watch_keys(
    address: Address, prefixes: Sequence[str], ping_seconds: float = PING_SECONDS
) -> AsyncGenerator[list[str], None]:
    """Yield the names of changed keys in batches, as the server reports them. The first batch is empty, when the watch has begun.

    A key that changes several times in a short time may be reported once. An empty batch later means that every key may have
    changed: the server was flushed.

    Args:
        address: The server.
        prefixes: The beginnings of the keys to report, with their hash tags.
        ping_seconds: Seconds of silence after which a connection is tested.

    Raises:
        Unreachable: A server can't be reached, or a connection broke. Changes since then are not reported.
        Refused: The server does not offer client tracking, or does not allow it to this user.
    """
    if address.scheme == "memory":
        raise Refused("a store in memory does not report changes of keys")
    batches: asyncio.Queue[list[str] | Exception] = asyncio.Queue()
    pools: list[Any] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        for node, own in (await _by_node(address, prefixes)).items():
            pool = make_async_pool(address, node, protocol=3)
            pools.append(pool)
            connection = await _track(address, node, pool, own)
            tasks.append(asyncio.create_task(_read(address, node, connection, batches, ping_seconds)))
        yield []
        while True:
            batch = await batches.get()
            if isinstance(batch, Exception):
                raise batch
            yield batch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await close_pools(pools)


async def _by_node(address: Address, prefixes: Sequence[str]) -> dict[Node, list[str]]:
    """Return the prefixes by the node that serves their partition.

    Raises:
        Unreachable: No node is known to serve a partition.
    """
    topology = make_topology(address)
    found: dict[Node, list[str]] = {}
    try:
        if topology.stale:
            await discover_async(address, topology)
    except Exception as error:
        raise _final(error, address, HERE) from error
    for prefix in prefixes:
        node = topology.where(prefix)
        if node is None:
            raise final_error(TransientError(f"no node of {address} serves this partition", sent=False))
        found.setdefault(node, []).append(prefix)
    return found


async def _track(address: Address, node: Node, pool: Any, prefixes: Sequence[str]) -> Any:
    """Return a connection to which the server reports the keys with these prefixes."""
    words: list[Argument] = ["CLIENT", "TRACKING", "ON", "BCAST"]
    for prefix in prefixes:
        words += ["PREFIX", prefix]
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await pool.get_connection()
            connection._parser.set_invalidation_push_handler(_pass_on)
            await connection.send_packed_command([encode_commands([words])])
            await connection.read_response()
    except ErrorReply as error:
        raise Refused(f"{address} does not report changes of keys: {error}") from error
    except Exception as error:
        raise _final(error, address, node) from error
    return connection


async def _pass_on(message: Any) -> Any:
    return message


async def _read(
    address: Address, node: Node, connection: Any, batches: asyncio.Queue[list[str] | Exception], ping_seconds: float
) -> None:
    """Put the keys that the server reports on one connection into the queue, and finally the error that ended the connection."""
    transport = transport_of(connection)
    silent = False
    try:
        while True:
            try:
                # With disconnect_on_error, redis-py would close the connection at the timeout, and open another one, to which
                # the server reports nothing, for the ping.
                async with asyncio.timeout(ping_seconds):
                    message = await connection.read_response(push_request=True, disconnect_on_error=False)
            except TimeoutError:
                if silent:  # the server has not answered the ping
                    raise
                silent = True
                await connection.send_packed_command([encode_commands([["PING"]])])
                continue
            except ErrorReply:  # this user may not send PING, but the server has answered
                message = None
            silent = False
            if isinstance(message, list) and message and message[0] == _INVALIDATE:
                batches.put_nowait([key.decode(errors="replace") for key in message[1] or ()])
    except Exception as error:  # noqa: BLE001  # the reader of the queue raises it
        batches.put_nowait(_final(error, address, node))
    finally:
        await drop_connection(connection, transport)


def _final(error: Exception, address: Address, node: Node) -> Exception:
    mapped = map_error(error, address, sent=False, node=node)
    return final_error(mapped) if isinstance(mapped, TransientError) else mapped
