"""A run has one owner at a time: the behaviour of a worker that counts as dead while it still runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from coordinator.store.plans import workers as worker_plans
from tests.integration.worker_harness import Bench, bench, performing
from tests.servers import Server
from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry, Run
from workers.handlers.facts import Stopped
from workers.liveness.lease import Lease


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_abandoned_worker_stops_its_handlers_registers_again_and_continues(here, plain):
    runs, ends, tick = Registry(), [], threading.Event()

    @runs.handler(kind="a")
    async def loops(run: AsyncRun) -> str:
        if run.attempt > 1:
            return f"attempt {run.attempt}"
        try:
            async for _ in run.loop(limit=100_000):
                await work_for(0.01)
        except BaseException as error:
            ends.append(error)
            raise
        return "the first attempt must not get here"

    @runs.handler(kind="p")
    def plain_loops(run: Run) -> str:
        if run.attempt > 1:
            return f"attempt {run.attempt}"
        try:
            for _ in run.loop(limit=100_000):
                tick.wait(0.01)
        except BaseException as error:
            ends.append(error)
            raise
        return "the first attempt must not get here"

    worker, _ = here.worker(runs, lease=1.5)
    id = await here.enqueue("p" if plain else "a")
    await performing(worker)
    before = worker._membership.leases[0].worker
    assert (await here.abandon(worker)).taken == 1
    assert await here.outcome(id) == "completed"
    assert here.result(id) == "attempt 2"
    await eventually(lambda: ends, "the first handler to stop")
    assert isinstance(ends[0], (Stopped, asyncio.CancelledError))
    assert worker._membership.leases[0].worker != before
    counters = here.counters(id)
    assert (counters.recoveries, counters.releases) == (1, 0)
    after = await here.enqueue("p" if plain else "a")
    await performing(worker)
    await here.cancel(after)
    assert await here.outcome(after) == "cancelled"


async def test_fenced_run_can_neither_save_nor_complete(here):
    runs, words = Registry(), []
    waiting, go = asyncio.Event(), asyncio.Event()

    @runs.handler
    async def work(run: AsyncRun) -> str:
        if run.attempt > 1:
            await asyncio.Event().wait()
        run.state["from"] = "the first owner"
        waiting.set()
        try:
            await go.wait()
            await run.flush()
        except BaseException as error:
            words.append(error)
            raise
        return "must not be recorded"

    worker, _ = here.worker(runs, lease=600.0, grace=0.0)  # No heartbeat informs the worker.
    id = await here.enqueue("work")
    await waiting.wait()
    await here.abandon(worker)
    go.set()
    await eventually(lambda: words, "the flush to be refused")
    assert isinstance(words[0], (Stopped, asyncio.CancelledError))
    assert here.state(id) is None
    assert here.status(id) in ("queued", "running")


async def test_result_of_a_fenced_attempt_is_not_recorded(here):
    runs, waiting, go = Registry(), asyncio.Event(), asyncio.Event()

    @runs.handler
    async def work(run: AsyncRun) -> str:
        waiting.set()
        await go.wait()
        return f"attempt {run.attempt}"

    worker, _ = here.worker(runs, lease=600.0)
    id = await here.enqueue("work")
    await waiting.wait()
    await here.abandon(worker)
    go.set()
    assert await here.outcome(id) == "completed"  # The same worker takes it, which has registered again.
    assert here.result(id) == "attempt 2"


async def test_fenced_handler_that_does_not_stop_keeps_its_slot_and_changes_nothing(here):
    runs, go, second = Registry(), threading.Event(), threading.Event()

    @runs.handler
    def deaf(run: Run) -> str:
        if run.attempt == 1:
            go.wait(60)
        else:
            second.set()
        return f"attempt {run.attempt}"

    worker, _ = here.worker(runs, lease=1.5, concurrency=2)
    id = await here.enqueue("deaf")
    await performing(worker)
    try:
        await here.abandon(worker)
        assert await here.outcome(id) == "completed"
        await eventually(lambda: not worker.attempts, "the second attempt to end")
        assert worker._slots.held == 1, "the thread of the first is taken"
    finally:
        go.set()
    await eventually(lambda: worker._slots.held == 0, "the thread to be free")
    assert here.result(id) == "attempt 2"


async def test_claim_answered_after_its_worker_is_gone_starts_nothing(here):
    runs, begun = Registry(), []

    @runs.handler
    async def work(run: AsyncRun) -> None:
        begun.append(run.attempt)

    worker, _ = here.worker(runs)
    await worker.ready.wait()
    id = await here.enqueue("work", queue="elsewhere")
    keys = here.namespace.keys(0)
    member = worker_plans.WorkerRecord("w9", 60_000, "host", 1, "", "fleet", "-", 1, ())
    assert await here.do(worker_plans.join(keys, here.namespace.birth, member)) == "ok"
    claim = worker_plans.claim(keys, "w9", number=1, want=1, routes=["elsewhere:work@0"], alone=False)
    _, claimed = await here.do(claim)
    assert [run.id for run in claimed] == [id]
    lease = Lease(keys, 15.0, worker.clock)
    lease.lose()
    worker._intake.take(lease, claimed)
    await here.until(id, "queued")
    counters = here.counters(id)
    assert (counters.releases, counters.strikes) == (1, 0)
    assert not begun
    assert not worker.attempts


async def test_next_heartbeat_stops_a_run_that_has_another_owner(here):
    runs, ends = Registry(), []

    @runs.handler(grace=0.0)
    async def waits(run: AsyncRun) -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            ends.append((error, run.stopping))
            raise

    worker, _ = here.worker(runs, lease=1.5)
    id = await here.enqueue("waits")
    await performing(worker)
    here.admin.hset(here.namespace.keys(0).run(id), "token", "1-1-somebody")
    await eventually(lambda: ends, "the handler to be stopped")
    error, stopping = ends[0]
    assert isinstance(error, asyncio.CancelledError)
    assert stopping is not None
    assert stopping.why == "lost"
    assert here.status(id) == "running"
