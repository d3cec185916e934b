"""A thousand runs of one process that save all the time: they share their trips, and the heartbeat is not late."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import encode
from coordinator.model.names import route
from coordinator.store.plans import clients as client_plans
from tests.integration.worker_harness import Bench, bench
from tests.servers import Server
from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry

pytestmark = pytest.mark.matrix("large numbers")

RUNS = 1000
OFFERS = 50


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


async def enqueued(here: Bench) -> list[str]:
    """Enqueue all runs in one call, so that they start together, as after a restart."""
    spec = encode([{}, {}, {}], "spec")
    new = [client_plans.NewRun(here.ids.make(time.time(), 0), route("default", "busy", 0), spec) for _ in range(RUNS)]
    return [id for _, id in await here.do(client_plans.enqueue(here.namespace, new))]


async def test_thousand_saving_runs_share_their_trips(here, caplog):
    """Offer ten saves a second per run for five seconds. Two of them fall into one window."""
    parked: list[str] = []
    doubts: list[str] = []
    runs, over = Registry(), asyncio.Event()

    @runs.handler(throttle=0.2)
    async def busy(run: AsyncRun) -> int:
        for number in range(OFFERS):
            run.state["number"] = number
            run.checkpoint()
            doubts.extend([run.id] if worker._membership.leases[0].in_doubt else [])
            await work_for(0.1)
        await run.flush()
        parked.append(run.id)
        await over.wait()
        return run.attempt

    caplog.set_level(logging.WARNING)
    worker, _ = here.worker(runs, concurrency=RUNS)  # This is the default lease: a heartbeat has three seconds.
    await worker.ready.wait()
    lease, trips = worker._membership.leases[0], worker._wire.trips
    ids = await enqueued(here)
    await eventually(lambda: len(parked) == RUNS, "all to have saved", timeout=90)
    trips = worker._wire.trips - trips
    pipeline = here.admin.pipeline(transaction=False)
    for id in ids:
        pipeline.hget(here.namespace.keys(0).ckpt(id), "head")
    saves = sum(CheckpointHead.parse(head).seq for head in pipeline.execute())
    print(f"{RUNS * OFFERS} offers, {saves} saves, {trips} trips")
    assert saves < RUNS * OFFERS * 0.8, "inside the window they are held"
    assert trips < saves / 5
    assert not doubts
    assert worker._membership.leases[0] is lease
    assert not lease.gone
    assert "heartbeat failed" not in caplog.text
    over.set()
    await eventually(lambda: not worker.attempts, "all to end")
    assert {here.status(id) for id in ids} == {"completed"}
    assert {(c.attempt, c.recoveries, c.strikes) for c in map(here.counters, ids)} == {(1, 0, 0)}
