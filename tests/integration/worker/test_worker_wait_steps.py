"""Waits as steps of a handler, on a real server: their order, and what other tasks and stops do to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator.model.run import Status
from coordinator.store.plans import coordinators as coordinator_plans
from tests.integration import worker_harness
from tests.integration.worker.test_worker_waits import ended, send
from tests.integration.worker_harness import Bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        coordinator = asyncio.create_task(_wake_runs(made))
        yield made
        coordinator.cancel()


async def _wake_runs(bench: Bench) -> None:
    """Do the part of a coordinator that wakes runs."""
    while True:
        await bench.do(coordinator_plans.due(bench.namespace.keys(0)))
        await asyncio.sleep(0.05)  # a coordinator in miniature: it looks again and again


async def test_wait_that_the_handler_gives_up_keeps_its_place_for_the_next_one(bench: Bench) -> None:
    runs, given_up = Registry(), list[int]()

    @runs.handler(linger=1)
    async def impatient(run: AsyncRun) -> list[int]:
        while run.attempt == 1 and len(given_up) < 3:
            try:
                async with asyncio.timeout(0.05):
                    await run.receive("a")
            except TimeoutError:
                given_up.append(run.attempt)
        first = await run.receive("a")
        return [first.number, (await run.receive("b")).number]

    bench.worker(runs)
    id = await bench.enqueue("impatient")
    await eventually(lambda: len(given_up) == 3, "three waits that were given up")
    await send(bench, id, "a")
    await bench.until(id, Status.WAITING)
    await send(bench, id, "b")
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert bench.result(id) == [1, 1]
