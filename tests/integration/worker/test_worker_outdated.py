"""A run moves once in a roll: an outdated worker leaves released runs to newer workers, and claims them only if those have no free
slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.replies import text
from tests.integration.worker_harness import HANG, Bench, bench, performing
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry

COUNT = 20


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


def holding() -> Registry[None]:
    runs = Registry()

    @runs.handler(grace=0.0)
    async def holds(run: AsyncRun[None]) -> None:
        await asyncio.Event().wait()

    return runs


def owners(here: Bench, ids: list[str]) -> set[str]:
    """Return the code version of each run's owner."""
    keys = here.namespace.keys(0)
    workers = {text(here.run(id)["token"]).split("-", 2)[2] for id in ids}
    return {text(here.admin.hget(keys.worker(worker), "code")) for worker in workers}


async def test_released_runs_go_to_newer_workers(here: Bench) -> None:
    old, stopping = here.worker(holding(), concurrency=COUNT, code="old")
    ids = [await here.enqueue("holds") for _ in range(COUNT)]
    await performing(old, COUNT)
    outdated, _ = here.worker(holding(), concurrency=COUNT, code="outdated")
    outdated.outdated = True
    new, _ = here.worker(holding(), concurrency=COUNT, code="new")
    await asyncio.wait_for(outdated.ready.wait(), HANG)
    await asyncio.wait_for(new.ready.wait(), HANG)
    await here.end(old, stopping)
    await performing(new, COUNT)
    assert owners(here, ids) == {"new"}
    assert {here.counters(id).attempt for id in ids} == {2}


async def test_outdated_workers_continue_if_newer_workers_have_no_free_slot(here: Bench) -> None:
    old, stopping = here.worker(holding(), concurrency=COUNT, code="old")
    ids = [await here.enqueue("holds") for _ in range(COUNT)]
    await performing(old, COUNT)
    outdated, _ = here.worker(holding(), concurrency=COUNT, code="outdated")
    outdated.outdated = True
    new, _ = here.worker(holding(), concurrency=5, code="new")
    await asyncio.wait_for(outdated.ready.wait(), HANG)
    await asyncio.wait_for(new.ready.wait(), HANG)
    await here.end(old, stopping)
    await performing(new, 5)
    await performing(outdated, COUNT - 5)
    assert owners(here, ids) == {"new", "outdated"}


async def test_outdated_workers_continue_if_there_are_no_newer_workers(here: Bench) -> None:
    """Check that the outdated worker claims again by itself, because no coordinator rings a bell."""
    old, stopping = here.worker(holding(), code="old")
    id = await here.enqueue("holds")
    await performing(old)
    outdated, _ = here.worker(holding(), code="outdated")
    outdated.outdated = True
    await asyncio.wait_for(outdated.ready.wait(), HANG)
    await here.end(old, stopping)
    await performing(outdated)
    assert owners(here, [id]) == {"outdated"}


async def test_worker_drains_on_request_and_keeps_its_grace(here: Bench) -> None:
    runs, go = Registry(), asyncio.Event()

    @runs.handler(grace=HANG)
    async def waits(run: AsyncRun[None]) -> None:
        await go.wait()

    worker, task = here.worker(runs)
    id = await here.enqueue("waits")
    await performing(worker)
    keys, name = here.namespace.keys(0), worker._membership.leases[0].worker
    assert await here.do(fleet_plans.drain(keys, name))
    assert await here.do(fleet_plans.drain(keys, name)), "a second request does not end the grace"
    await eventually(lambda: worker._shutdown.deadline is not None, "it drains")
    assert here.status(id) == "running"
    go.set()
    assert await asyncio.wait_for(task, HANG) == 0
    assert here.status(id) == "completed"


async def test_worker_that_stops_by_itself_is_shown_as_draining(here: Bench) -> None:
    runs, go = Registry(), asyncio.Event()

    @runs.handler(grace=HANG)
    async def waits(run: AsyncRun[None]) -> None:
        await go.wait()

    worker, task = here.worker(runs)
    await here.enqueue("waits")
    await performing(worker)
    key = here.namespace.keys(0).worker(worker._membership.leases[0].worker)
    worker.stop()
    await eventually(lambda: here.admin.hget(key, "drain"), "it is shown as draining")
    go.set()
    assert await asyncio.wait_for(task, HANG) == 0
