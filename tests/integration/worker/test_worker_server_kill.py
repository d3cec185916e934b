"""The server is killed and restarted while runs wait: for a signal, for a time and for a child. None of them is lost."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.model.run import Status
from tests.conftest import StartServer
from tests.integration import worker_harness
from tests.integration.worker.test_worker_waits import _coordinate, ended, send
from tests.waiting import eventually
from workers import AsyncRun, Registry


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("linger", [0.0, 60.0], ids=["suspended", "lingering"])
async def test_runs_that_wait_continue_after_the_server_was_killed(
    start_server: StartServer, namespace: str, linger: float
) -> None:
    runs, waiting = Registry(), set[str]()

    @runs.handler(linger=linger)
    async def listener(run: AsyncRun) -> str:
        waiting.add("listener")
        return str((await run.receive("go")).payload)

    @runs.handler(linger=linger)
    async def sleeper(run: AsyncRun) -> str:
        waiting.add("sleeper")
        await run.sleep(2)
        return "awake"

    @runs.handler(linger=linger)
    async def parent(run: AsyncRun) -> list[str]:
        waiting.add("parent")
        return list(await run.gather("child", [listener.inputs()]))

    server = start_server()
    async with worker_harness.bench(server.url, namespace) as bench:
        bench.worker(runs, concurrency=10)
        ids = {kind: await bench.enqueue(kind) for kind in ("listener", "sleeper", "parent")}
        joins = bench.namespace.keys_of(ids["parent"]).joins(ids["parent"])
        await eventually(lambda: len(waiting) == 3 and bench.admin.exists(joins) == 1, "the runs wait")
        server.kill()
        server.restart()
        coordinator = asyncio.create_task(_coordinate(bench))
        assert (await ended(bench, ids["sleeper"])).status is Status.COMPLETED
        base = next(iter(bench.admin.hkeys(joins))).decode()
        for id in (ids["listener"], base):
            await send(bench, id, "go", "said")
        for kind, result in (("listener", "said"), ("parent", ["said"])):
            view = await ended(bench, ids[kind])
            assert (view.status, bench.result(ids[kind])) == (Status.COMPLETED, result)
        coordinator.cancel()
