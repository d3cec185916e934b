"""A server that refuses a connection says why before it is asked, and closes. The first request then fails with that reason."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from coordinator.config import address
from coordinator.errors import NotConfigured
from coordinator.store.script import read
from coordinator.store.transport.wire import AsyncWire, Wire
from tests.waiting import eventually

REFUSAL = b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n"


@pytest.fixture
def url() -> Iterator[str]:
    """Return the URL of a server that refuses every connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse_all() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            line.sendall(REFUSAL)
            line.close()

    thread = threading.Thread(target=refuse_all)
    thread.start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


def requests() -> list[Any]:
    return [read("{x}", "GET", "{x}:1"), read("{x}", "GET", "{x}:2")]


def test_refusal_that_arrives_before_the_first_request_is_its_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = redis.Connection.connect

    def connect_and_wait(self: Any) -> None:
        connect(self)
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        assert poll.poll(30_000)

    monkeypatch.setattr(redis.Connection, "connect", connect_and_wait)
    wire = Wire(address(url), timeout=0)
    try:
        answers = wire.ask(requests())
    finally:
        wire.close()
    assert [type(answer) for answer in answers] == [NotConfigured] * 2
    assert "protected mode" in str(answers[0])


async def test_refusal_that_arrives_before_the_first_request_is_its_error_async(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = redis.asyncio.Connection.connect

    async def connect_and_wait(self: Any) -> None:
        await connect(self)
        await eventually(lambda: self._reader._buffer, "the refusal")

    monkeypatch.setattr(redis.asyncio.Connection, "connect", connect_and_wait)
    wire = AsyncWire(address(url), timeout=0)
    try:
        answers = await wire.ask(requests())
    finally:
        await wire.close()
    assert [type(answer) for answer in answers] == [NotConfigured] * 2
    assert "protected mode" in str(answers[0])
