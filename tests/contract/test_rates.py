"""Rates with a client and a worker over every store: each name is in one partition, and calls under it start."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator import AsyncClient, BadName, BadOption, Client, RateLimit
from coordinator.config import Settings, address
from coordinator.store.keys import Namespace
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.transport.wire import Wire, drive
from workers import AsyncRun, Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker

NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def space(store_url: str) -> Namespace:
    wire = Wire(address(store_url), timeout=5)
    name = f"t{uuid.uuid4().hex[:10]}"
    made = drive(wire, namespace_plans.create(name, birth="b1", partitions=3, durability="local"))
    wire.close()
    return made


@pytest.fixture
async def client(store_url: str, space: Namespace) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(store_url, space.name) as made:
        yield made


async def test_rates_are_set_listed_and_removed_in_all_partitions(client: AsyncClient) -> None:
    for name in NAMES:
        assert await client.set_rate(name, "90000/min", burst=10_000, at_once=3) is True
    assert await client.set_rate("a", "90000/min", burst=10_000, at_once=3) is False
    assert await client.rates() == tuple(RateLimit(name, "90000/min", 10_000, 3) for name in NAMES)
    assert await client.remove_rate("a") is True
    assert await client.remove_rate("a") is False
    assert [rate.name for rate in await client.rates()] == [*NAMES[1:]]


def test_plain_client_sets_lists_and_removes_rates(store_url: str, space: Namespace) -> None:
    with Client(store_url, space.name) as client:
        assert client.set_rate("gpu", at_once=4) is True
        assert client.rates() == (RateLimit("gpu", None, None, 4),)
        assert client.remove_rate("gpu") is True
        assert client.rates() == ()


async def test_rate_that_is_not_valid_is_refused(client: AsyncClient) -> None:
    with pytest.raises(BadOption):
        await client.set_rate("a")
    with pytest.raises(BadOption):
        await client.set_rate("a", "many")
    with pytest.raises(BadName):
        await client.set_rate("a b", "10/s")
    assert await client.rates() == ()


async def test_calls_under_limits_of_all_partitions_start_and_end(
    client: AsyncClient, store_url: str, space: Namespace
) -> None:
    runs: Registry[Any] = Registry()

    @runs.handler
    async def calls(run: AsyncRun) -> list[str]:
        made = []
        for name in NAMES:
            async with run.limit(name, cost=5) as limit:
                made.append(name)
                limit.cost = 1
        return made

    for name in NAMES:
        await client.set_rate(name, "1000/s", burst=10, at_once=2)
    handles = [await client.enqueue(calls.inputs()) for _ in range(6)]
    worker = Worker(runs, WorkerOptions(Settings(store_url, space.name)))
    serving = asyncio.create_task(worker.run())
    assert [await handle.result(60) for handle in handles] == [[*NAMES]] * 6
    worker.stop()
    await serving
    assert [(rate.held, rate.waiting) for rate in await client.rates()] == [(0, 0)] * len(NAMES)
