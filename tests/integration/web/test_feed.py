"""Readers that come and go while the client reads the outputs of runs for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.client.output import async_feed
from coordinator.errors import Unreachable
from coordinator.model.output import Event
from coordinator.store.transport.wire import AsyncBell, drive_async
from tests.integration.web.conftest import Site
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("worker")


async def read_values(site: Site, id: str) -> list[object]:
    return [item.value async for item in site.client.handle(id).stream() if isinstance(item, Event)]


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


@pytest.mark.matrix("waits through a timeout")
async def test_reader_beside_a_busy_one_learns_that_its_run_has_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_feed, "BLOCK", 1.0)
    busy, ended = await site.enqueue("tick"), await site.enqueue("chat")
    neighbour = asyncio.create_task(read_values(site, busy))
    # The end of this output lies before the cursor of the reader, so that it never comes.
    stream = site.client.handle(ended).stream(after="9999999999999999999-0")
    reader = asyncio.ensure_future(anext(stream, None))
    parts = site.client._open().feed._parts
    await eventually(lambda: [len(part.streams.wanted()[0]) for part in parts.values()] == [3], "both to subscribe")
    await site.client.handle(ended).send("answer", "Ada")
    async with asyncio.timeout(20):
        assert await reader is None
    assert not neighbour.done()
    await site.client.handle(busy).cancel()
    await neighbour


async def test_reader_after_a_failed_interrupt_gets_the_output(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = asyncio.create_task(read_values(site, await site.enqueue("ask")))
    parts = site.client._open().feed._parts
    await eventually(lambda: any(part.blocking for part in parts.values()), "the feed to read")
    failures: list[Any] = []

    async def fail_once(wire: Any, plan: Any) -> Any:
        if not failures:
            failures.append(plan)
            plan.close()
            raise Unreachable("the server does not answer")
        return await drive_async(wire, plan)

    monkeypatch.setattr(async_feed, "drive_async", fail_once)
    with pytest.raises(Unreachable):
        await read_values(site, await site.enqueue("ask"))
    id = await site.enqueue("chat")
    stream = site.client.handle(id).stream()
    async with asyncio.timeout(20):
        assert isinstance(await anext(stream), Event)
        await site.client.handle(id).send("answer", "Ada")
        assert [item.value async for item in stream if isinstance(item, Event)] == ["Hello Ada"]
    first.cancel()
