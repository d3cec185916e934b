"""Cancels and endings at the same moment, with real workers: every run has one ending, and each cancel gets a true answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from coordinator import AsyncClient, AsyncHandle, Status
from coordinator.model.policies.retry import RetryLater
from coordinator.store.plans import coordinators as coordinator_plans
from tests.integration.worker_harness import Bench, bench
from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry
from workers.handlers.facts import Stopped

RUNS = 120


@pytest.fixture
async def here(real_url: str, namespace: str) -> AsyncIterator[Bench]:
    async with bench(real_url, namespace) as made:
        yield made


async def test_every_run_has_one_ending_that_matches_the_answer_to_cancel(here: Bench) -> None:
    runs, whys = Registry(), []
    chance = random.Random(7)

    @runs.handler
    async def ends(run: AsyncRun, how: str, seconds: float) -> str:
        try:
            await work_for(seconds)
            run.checkpoint()
        except Stopped as stop:
            whys.append(stop.why)
            raise
        if how == "raise":
            raise ValueError(how)
        if how == "retry":
            raise RetryLater(after=0.01)
        if how == "stop":
            raise Stopped("drain")  # The handler stops without a stop request, so the run is released with back-off.
        return how

    first, _ = here.worker(runs, concurrency=RUNS)
    here.worker(runs, concurrency=RUNS)

    async with AsyncClient(here.url, here.namespace.name) as client:
        handles: list[AsyncHandle[str]] = [
            await client.enqueue("ends", {"how": chance.choice(["return", "raise", "retry", "stop"]), "seconds": 0.2})
            for _ in range(RUNS)
        ]
        await eventually(lambda: any(here.status(h.id) == "running" for h in handles), "runs to run")

        async def cancel_soon(handle: AsyncHandle[str]) -> Status:
            await asyncio.sleep(chance.random() * 0.6)  # The test needs a random moment.
            return await handle.cancel(grace=20.0)

        cancels = [asyncio.create_task(cancel_soon(handle)) for handle in handles]
        await eventually(
            lambda: sum(cancel.done() for cancel in cancels) >= RUNS // 3, "a third of the cancels to be done"
        )
        await here.abandon(first)  # Meanwhile half of the runs are taken from their worker.
        told = await asyncio.gather(*cancels)

        async def settled() -> bool:
            await here.do(coordinator_plans.due(here.namespace.keys(0)))
            return all(here.status(handle.id) in ("completed", "failed", "cancelled") for handle in handles)

        await eventually(settled, "all of them to end", timeout=60)
        for handle, said in zip(handles, told, strict=True):
            status = here.status(handle.id)
            if said is not Status.RUNNING:
                assert status == said, "the answer about an ended run stays true"
            assert here.admin.zscore(here.namespace.keys(0).ended(status), handle.id) is not None
        lists = [
            here.admin.zcard(here.namespace.keys(0).ended(status)) for status in ("completed", "failed", "cancelled")
        ]
        assert sum(lists) == RUNS, "each is in one list"
        assert here.admin.zcard(here.namespace.keys(0).deadlines()) == 0
        assert {here.status(handle.id) for handle in handles} >= {"cancelled"}


async def test_running_handler_is_cancelled_immediately_and_may_clean_up(here: Bench) -> None:
    """Check that this happens long before the next heartbeat, which would also inform the handler: the lease is 10 minutes here."""
    runs, told = Registry(), list[str]()
    began = asyncio.Event()

    @runs.handler
    async def works(run: AsyncRun) -> None:
        began.set()
        try:
            async for _ in run.loop(limit=10_000):
                await work_for(0.005)
        except Stopped as stop:
            told.append(stop.why)
            run.note("cleaned up")
            raise

    here.worker(runs, lease=600.0)
    async with AsyncClient(here.url, here.namespace.name) as client:
        handle = await client.enqueue("works")
        await began.wait()
        await handle.cancel(grace=50.0)
        assert await handle.wait(timeout=45) is Status.CANCELLED
        assert told == ["cancel"]
        view = await handle.view()
        assert (view.why, [entry.why for entry in view.story]) == ("a cancel was requested", ["a cancel was asked for"])
