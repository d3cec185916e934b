"""A tree is cancelled while its handlers enqueue more runs: every run that was enqueued ends as cancelled, and so do the handlers'
runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator import AsyncClient, RunCancelled, Status
from tests.integration.worker_harness import Bench, bench
from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry


@pytest.fixture(params=[1, 3], ids=["P=1", "P=3"])
async def here(request: pytest.FixtureRequest, real_url: str, namespace: str) -> AsyncIterator[Bench]:
    async with bench(real_url, namespace, request.param) as made:
        yield made


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("told", [True, False])
async def test_cancel_reaches_every_run_of_a_growing_tree(here: Bench, told: bool) -> None:
    """Test both kinds of handlers.

    With `told` they have cuts and stop there; otherwise a refused enqueue is the first sign of the cancel.
    """
    runs = Registry()

    async with AsyncClient(here.url, here.namespace.name) as client:

        @runs.handler
        async def grow(run: AsyncRun, depth: int) -> None:
            async for _ in run.loop(limit=10_000):
                while True:
                    if depth < 3:
                        await client.enqueue("grow", {"depth": depth + 1})
                    await work_for(0.05)
                    if told:
                        break

        here.worker(runs, concurrency=40)
        root = await client.enqueue("grow", {"depth": 0})

        await eventually(lambda: len(_all(here)) > 30, "a tree of 30 runs")
        became = await root.cancel_tree(grace=20.0)
        assert became[root.id] is Status.RUNNING
        await eventually(lambda: not _open(here), "all of them to end")
        assert {here.status(id) for id in _all(here)} == {"cancelled"}
        assert set(became) == _all(here), "all other enqueues were refused"
        assert all(here.counters(id).strikes == 0 for id in _all(here))


@pytest.mark.parametrize("then", ["returns", "raises"])
async def test_a_parent_that_waits_for_its_children_is_cancelled_with_them(here: Bench, then: str) -> None:
    runs = Registry()

    async with AsyncClient(here.url, here.namespace.name) as client:

        @runs.handler
        async def parent(run: AsyncRun) -> str:
            child = await client.enqueue("child", {}, queue="nobody")
            try:
                await child.result()
            except RunCancelled:
                if then == "raises":
                    raise
            return "the work is done without the child"

        here.worker(runs)
        root = await client.enqueue("parent", {})
        await eventually(lambda: len(_all(here)) == 2, "the parent waits for its child")
        await root.cancel_tree(grace=20.0)
        await eventually(lambda: not _open(here), "both to end")
        assert {here.status(id) for id in _all(here)} == {"cancelled"}


def _all(here: Bench) -> set[str]:
    return {
        key.decode().rpartition(":")[2] for key in here.admin.scan_iter(f"{{{here.namespace.name}:*:run:*", count=1000)
    }


def _open(here: Bench) -> set[str]:
    return {id for id in _all(here) if here.status(id) in ("queued", "delayed", "running")}
