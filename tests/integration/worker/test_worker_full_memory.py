"""While the memory of the server is full, runs end, are released and recovered, and their last changes are stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from coordinator.model.policies.retry import Retry
from tests.conftest import StartServer
from tests.integration import worker_harness
from tests.integration.worker_harness import Bench, performing
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server(settings={"appendonly": "yes", "maxmemory-policy": "noeviction"})


@pytest.fixture
async def bench(server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(server.url, namespace) as made:
        yield made


@contextmanager
def full_memory(server: Server) -> Iterator[None]:
    server.admin.config_set("maxmemory", 1)
    try:
        yield
    finally:
        server.admin.config_set("maxmemory", 0)


def errors(server: Server) -> int:
    """Return how many requests the server has refused because its memory is full."""
    return int(server.admin.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])


ENDINGS = {
    "completes": "completed",
    "fails": "failed",
    "retries": "delayed",
    "is_stopped": "queued",
    "is_cancelled": "cancelled",
}


@pytest.mark.parametrize("how", ENDINGS)
async def test_attempt_ends_and_stores_its_last_changes(server: Server, bench: Bench, how: str) -> None:
    runs, full = Registry(), asyncio.Event()

    @runs.handler(grace=0.0, throttle=0, retry=Retry(limit=int(how == "retries"), wait=30))
    async def work(run: AsyncRun) -> str:
        await full.wait()
        run.state["last"] = True
        run.checkpoint()
        if how == "completes":
            return "done"
        if how in ("fails", "retries"):
            raise RuntimeError("trouble")
        await asyncio.Event().wait()
        return ""

    worker, task = bench.worker(runs)
    id = await bench.enqueue("work")
    await performing(worker)
    with full_memory(server):
        full.set()
        if how.startswith("is_"):
            await eventually(lambda: errors(server) > 0, "the server to refuse a save")
        if how == "is_stopped":
            assert await bench.end(worker, task) == 0
        elif how == "is_cancelled":
            await bench.cancel(id)
        assert await bench.until(id, ENDINGS[how]) == ENDINGS[how]
        assert bench.counters(id).strikes == 0
        # The result of a completed run replaces its checkpoint.
        assert bench.result(id) == "done" if how == "completes" else bench.state(id) == {"last": True}


async def test_run_that_sleeps_is_suspended_as_soon_as_memory_is_free(server: Server, bench: Bench) -> None:
    """The end of the sleep must be saved before the run sleeps, and the server refuses ordinary saves."""
    runs, full = Registry(), asyncio.Event()

    @runs.handler(throttle=0, linger=0.0)
    async def work(run: AsyncRun) -> None:
        await full.wait()
        await run.sleep(3600)

    worker, _ = bench.worker(runs)
    id = await bench.enqueue("work")
    await performing(worker)
    with full_memory(server):
        full.set()
        await eventually(lambda: errors(server) > 0, "the server to refuse a save")
        assert bench.status(id) == "running"
    await bench.until(id, "waiting")


async def test_runs_of_a_lost_worker_are_requeued_and_completed_by_another_one(server: Server, bench: Bench) -> None:
    runs, lost = Registry(), asyncio.Event()

    @runs.handler
    async def work(run: AsyncRun) -> str:
        if not lost.is_set():
            await asyncio.Event().wait()
        return "done"

    worker, _ = bench.worker(runs)
    id = await bench.enqueue("work")
    await performing(worker)
    with full_memory(server):
        lost.set()
        assert (await bench.abandon(worker)).queued == 1
        bench.worker(runs)
        assert await bench.outcome(id) == "completed"
