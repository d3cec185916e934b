"""A part of the process closes a connection by its number, and the number belongs to another file from then on."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from coordinator.config import address
from coordinator.store.script import read
from coordinator.store.transport.connections.open_files import identify_file
from coordinator.store.transport.wire import AsyncWire
from tests.servers import Server
from tests.waiting import eventually

HANG = 60.0
REQUESTS = [read("{x:0}", "PING"), read("{x:0}", "ECHO", "hello")]


def only_connection(wire: AsyncWire) -> Any:
    (pool,) = wire._pools.values()
    (connection,) = pool._in_use_connections
    return connection


async def test_idle_connection_is_replaced_and_the_other_file_is_left_alone(valkey_server: Server) -> None:
    wire = AsyncWire(address(valkey_server.url))
    mine, other = socket.socketpair()
    try:
        assert await wire.ask(REQUESTS[:1]) == [b"PONG"]
        number, _ = only_connection(wire).file
        os.dup2(mine.fileno(), number)
        async with asyncio.timeout(HANG):
            assert await wire.ask(REQUESTS) == [b"PONG", b"hello"]
        other.setblocking(False)
        with pytest.raises(BlockingIOError):  # no request was written to the other file
            other.recv(100)
        assert identify_file(number) == identify_file(mine.fileno())
        os.close(number)
    finally:
        await wire.close()
        mine.close()
        other.close()


async def test_closed_connection_that_is_not_used_does_not_keep_others_from_being_opened(valkey_server: Server) -> None:
    unused, wire = AsyncWire(address(valkey_server.url)), AsyncWire(address(valkey_server.url), timeout=HANG)
    taken: list[int] = []
    try:
        assert await unused.ask(REQUESTS[:1]) == [b"PONG"]
        number, _ = only_connection(unused).file
        while not taken or taken[-1] < number:  # all lower numbers, so that the next connection gets this one
            taken.append(os.dup(0))
        os.close(number)
        assert await wire.ask(REQUESTS) == [b"PONG", b"hello"]
        assert only_connection(wire).file[0] == number
        assert await unused.ask(REQUESTS) == [b"PONG", b"hello"]
        assert await wire.ask(REQUESTS) == [b"PONG", b"hello"]
    finally:
        for one in taken:
            os.close(one)
        await unused.close()
        await wire.close()


async def test_exchange_ends_although_bytes_move_on_the_other_connection(valkey_server: Server) -> None:
    wire = AsyncWire(address(valkey_server.url), trip_seconds=5.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", valkey_server.port)

    async def keep_moving() -> None:
        while True:
            writer.write(b"PING\r\n")
            await reader.readline()
            await asyncio.sleep(0.02)  # The pause only keeps the server from being flooded.

    moving = asyncio.create_task(keep_moving())
    try:
        asking = asyncio.create_task(wire.ask([read("{x:0}", "BLPOP", "{x:0}:none", "0.5")]))
        await eventually(lambda: wire._pools and only_connection(wire).is_connected, "the connection", HANG)
        connection = only_connection(wire)
        await eventually(lambda: hasattr(connection, "file"), "the exchange", HANG)
        number, _ = connection.file  # the wire opens the connection again, with another file
        os.dup2(writer.get_extra_info("socket").fileno(), number)
        async with asyncio.timeout(HANG):
            assert await asking == [None], "the request was repeated on a new connection"
        assert identify_file(number) == identify_file(writer.get_extra_info("socket").fileno())
        os.close(number)
    finally:
        moving.cancel()
        writer.close()
        await wire.close()
