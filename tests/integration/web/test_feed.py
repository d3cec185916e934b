"""Readers that come and go while the client reads the outputs of runs for them."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.client.output import async_feed
from coordinator.store.transport.wire import AsyncBell
from tests.integration.web.conftest import Site
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("worker")


async def read_values(site: Site, id: str) -> list[object]:
    return [item.value async for item in site.client.handle(id).stream()]  # type: ignore[union-attr]


async def test_reader_that_subscribes_while_the_connection_is_closed_gets_the_output(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_feed, "BLOCK", 0.5)
    close = AsyncBell.close
    readers: list[asyncio.Task[list[object]]] = []
    id = await site.enqueue("chat")

    async def close_beside_a_new_reader(bell: AsyncBell) -> None:
        if not readers:
            readers.append(asyncio.create_task(read_values(site, id)))
            await eventually(lambda: bool(part.streams), "the reader to subscribe")
        await close(bell)

    first = site.client.handle(id).stream()
    await anext(first)
    (part,) = site.client._open().feed._parts.values()
    monkeypatch.setattr(AsyncBell, "close", close_beside_a_new_reader)
    await first.aclose()
    await eventually(lambda: bool(readers), "the connection to be closed")
    await site.client.handle(id).send("answer", "Ada")
    async with asyncio.timeout(20):
        assert await readers[0] == ["What is your name?", "Hello Ada"]
