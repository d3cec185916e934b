"""Pausing with a client: it covers all partitions, and views and overviews show it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from coordinator import AsyncClient, BadName, BadOption, Client
from coordinator.config import address
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.transport.wire import Wire, drive


@pytest.fixture(params=[1, 3])
def created_namespace(store_url: str, request: pytest.FixtureRequest) -> tuple[str, str]:
    """The URL and the name of a namespace with one or three partitions."""
    name = f"t{uuid.uuid4().hex[:10]}"
    wire = Wire(address(store_url), timeout=5)
    drive(wire, namespace_plans.create(name, birth="b1", partitions=request.param, durability="local"))
    wire.close()
    return store_url, name


@pytest.fixture
async def client(created_namespace: tuple[str, str]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(*created_namespace) as made:
        yield made


async def test_paused_queue_is_shown_in_the_overview_and_as_the_reason_why_a_run_waits(client: AsyncClient) -> None:
    handles = await client.enqueue_many([("k", {}) for _ in range(10)])
    assert await client.pause(queue="default") is True
    assert await client.pause(queue="default") is False
    assert (await client.status()).paused == ("queue:default",)
    assert {(await handle.view()).why for handle in handles} == {"queue 'default' is paused"}
    assert await client.unpause(queue="default") is True
    assert await client.unpause(queue="default") is False
    assert (await client.status()).paused == ()
    assert "paused" not in (await handles[0].view()).why


async def test_paused_kind_is_shown_too(client: AsyncClient) -> None:
    handle = await client.enqueue("k")
    await client.pause(kind="k")
    assert (await client.status()).paused == ("kind:k",)
    assert (await handle.view()).why == "kind 'k' is paused"


async def test_pause_requires_a_queue_or_a_kind(client: AsyncClient) -> None:
    for pausing in (client.pause, client.unpause):
        with pytest.raises(BadOption, match="a queue or a kind, and not both"):
            await pausing()
        with pytest.raises(BadOption, match="a queue or a kind, and not both"):
            await pausing(queue="q", kind="k")
        with pytest.raises(BadName, match="is not a valid name"):
            await pausing(queue="a b")


def test_sync_client_does_the_same(created_namespace: tuple[str, str]) -> None:
    with Client(*created_namespace) as client:
        assert client.pause(kind="k") is True
        assert client.status().paused == ("kind:k",)
        assert client.unpause(kind="k") is True
        assert client.status().paused == ()
