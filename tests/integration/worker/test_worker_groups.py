"""Runs with a group on a real worker: limits of handlers, lingering, children and enqueues of handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator import AsyncClient, GroupLimit
from coordinator.model.run import Status
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import groups as group_plans
from tests.integration import worker_harness
from tests.integration.worker_harness import Bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        coordinator = asyncio.create_task(_coordinate(made))
        yield made
        coordinator.cancel()


async def _coordinate(bench: Bench) -> None:
    """Do the parts of a coordinator that wake and admit runs."""
    while True:
        await bench.do(coordinator_plans.due(bench.namespace.keys(0)))
        await bench.do(group_plans.sweep(bench.namespace.keys(0)))
        await asyncio.sleep(0.05)  # a coordinator in miniature: it looks again and again


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(bench.url, bench.namespace.name) as made:
        yield made


async def test_no_more_runs_of_a_group_work_at_once_than_its_handler_allows(bench: Bench, client: AsyncClient) -> None:
    runs, working, most = Registry(), dict[str, int](), dict[str, int]()

    @runs.handler(at_once=2, group_by="customer")
    async def research(run: AsyncRun, customer: str) -> str:
        working[customer] = working.get(customer, 0) + 1
        most[customer] = max(most.get(customer, 0), working[customer])
        await asyncio.sleep(0.01)  # work, during which other runs of the group could start
        working[customer] -= 1
        return customer

    before = await client.enqueue(research.inputs("a"))  # no worker has published a limit yet
    assert (await before.view()).held is not None
    bench.worker(runs)
    handles = [before, *await client.enqueue_many([research.inputs(c) for c in "abc" for _ in range(8)])]
    assert [await handle.result(timeout=30) for handle in handles] == ["a", *"aaaaaaaabbbbbbbbcccccccc"]
    assert most == {"a": 2, "b": 2, "c": 2}
    assert await client.limits() == (GroupLimit("research", None, 2, "handler"),)


async def test_waiting_run_gives_its_place_away_without_lingering(bench: Bench, client: AsyncClient) -> None:
    runs = Registry()

    @runs.handler(at_once=1, linger=60)
    async def asks(run: AsyncRun) -> str:
        return str((await run.receive("go")).payload)

    bench.worker(runs)
    first = await client.enqueue(asks.inputs(), group="acme")
    second = await client.enqueue(asks.inputs(), group="acme")
    await bench.until(first.id, Status.WAITING)
    await bench.until(second.id, Status.WAITING)
    await second.send("go", "2")
    await first.send("go", "1")
    assert [await first.result(timeout=30), await second.result(timeout=30)] == ["1", "2"]


async def test_children_and_enqueued_runs_have_groups(bench: Bench, client: AsyncClient) -> None:
    runs, most, working = Registry(), 0, 0

    @runs.handler(at_once=1, group_by="customer")
    async def part(run: AsyncRun, customer: str) -> str:
        nonlocal most, working
        working += 1
        most = max(most, working)
        await asyncio.sleep(0.01)  # work, during which other runs of the group could start
        working -= 1
        return customer

    @runs.handler
    async def whole(run: AsyncRun) -> list[str]:
        other = await run.enqueue(part.inputs("acme"))
        found = await run.gather("parts", [part.inputs("acme") for _ in range(3)])
        return [*found, other.id]

    bench.worker(runs)
    *parts, other = await (await client.enqueue(whole.inputs())).result(timeout=30)
    assert parts == ["acme"] * 3
    await bench.until(other, Status.COMPLETED)
    assert most == 1


async def test_child_of_a_limited_kind_without_a_group_fails_its_parent(bench: Bench, client: AsyncClient) -> None:
    runs = Registry()

    @runs.handler(at_once=1)
    async def part(run: AsyncRun) -> None: ...

    @runs.handler
    async def whole(run: AsyncRun) -> None:
        await run.gather("parts", [part.inputs()])

    bench.worker(runs)
    parent = await client.enqueue(whole.inputs())
    await bench.until(parent.id, Status.FAILED)
    assert "its runs need a group" in bench.error(parent.id)[1]


async def test_limit_of_a_new_worker_replaces_the_limit_of_an_old_one(bench: Bench, client: AsyncClient) -> None:
    for limit in (1, 3):
        runs = Registry()

        @runs.handler(kind="work", at_once=limit)
        async def work(run: AsyncRun) -> None: ...

        worker, task = bench.worker(runs)
        await eventually(worker.ready.is_set, "a worker")
        await bench.end(worker, task)
    assert await client.limits() == (GroupLimit("work", None, 3, "handler"),)
