"""An unexpected error during a trip is reported to the caller: no caller waits for ever, and nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.config import address
from coordinator.errors import BadCall, Unreachable
from coordinator.store.script import read
from coordinator.store.transport.wire import AsyncBell, AsyncWire, Wire
from tests.servers import Server

REQUESTS = [read("{x:0}", "PING"), read("{x:0}", "ECHO", "hello")]


def broken(commands: Any) -> bytes:
    raise ValueError("can't be packed")


async def test_request_that_can_not_be_packed_raises_immediately(
    valkey_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = AsyncWire(address(valkey_server.url))
    monkeypatch.setattr("coordinator.store.transport.connections.exchange.encode_commands", broken)
    try:
        async with asyncio.timeout(10):
            answers = await wire.ask(REQUESTS, give_up=lambda: False)
        assert [type(answer) for answer in answers] == [BadCall, BadCall]
        monkeypatch.undo()
        assert await wire.ask(REQUESTS) == [b"PONG", b"hello"]
    finally:
        await wire.close()


def test_request_that_can_not_be_packed_raises_immediately_in_threads(
    valkey_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(address(valkey_server.url))
    monkeypatch.setattr("coordinator.store.transport.connections.exchange.encode_commands", broken)
    try:
        assert [type(answer) for answer in wire.ask(REQUESTS)] == [BadCall, BadCall]
        monkeypatch.undo()
        assert wire.ask(REQUESTS) == [b"PONG", b"hello"]
    finally:
        wire.close()


async def test_connection_with_an_unexpected_error_is_retried(
    valkey_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Raise a RuntimeError, as uvloop does when a transport was closed while it was written to."""
    wire = AsyncWire(address(valkey_server.url))
    exchange, failures = wire._run, [RuntimeError("the handler is closed")] * 2

    async def odd(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await exchange(*arguments, **options)

    monkeypatch.setattr(wire, "_run", odd)
    try:
        assert await wire.ask(REQUESTS) == [b"PONG", b"hello"]
    finally:
        await wire.close()
    assert not caplog.records


async def test_bell_with_an_unexpected_connection_error_raises_unreachable(
    valkey_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report it as unreachable. Any other error would end the listener: a worker's inbox, or a coordinator's bell."""
    bell = AsyncBell(address(valkey_server.url))

    async def odd(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("the handler is closed")

    monkeypatch.setattr(bell, "_block", odd)
    try:
        with pytest.raises(Unreachable, match="the handler is closed"):
            await bell.wait(["{x:0}:bell"], 1.0)
    finally:
        await bell.close()
