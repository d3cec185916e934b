"""Handlers that enqueue runs of their own: once, with this run as their parent, on a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator import AsyncClient, Client
from coordinator.encoding.codec import encode
from coordinator.errors import BadOption, KeyConflict, Refused
from coordinator.model.run import Status
from coordinator.model.run_id import RunIds
from tests.integration import worker_harness
from tests.integration.worker.test_worker_waits import checkpointed, ended
from tests.integration.worker_harness import Bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry, Run


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        yield made


def children_of(bench: Bench, id: str) -> set[str]:
    return {child.decode() for child in bench.admin.smembers(bench.namespace.keys(0).children(id))}


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_enqueue_returns_a_handle_of_a_run_of_its_own(bench: Bench, plain: bool) -> None:
    runs = Registry()

    @runs.handler
    async def square(run: AsyncRun, n: int) -> int:
        return n * n

    if plain:

        @runs.handler(kind="parent")
        def plain_parent(run: Run) -> list[Any]:
            handle = run.enqueue(square.inputs(3), delay=0)
            return [handle.id, handle.created, handle.result(timeout=30)]
    else:

        @runs.handler(kind="parent")
        async def parent(run: AsyncRun) -> list[Any]:
            handle = await run.enqueue("square", {"n": 3})
            return [handle.id, handle.created, await handle.result(timeout=30)]

    bench.worker(runs)
    id = await bench.enqueue("parent", meta={"user": "ada"})
    assert (await ended(bench, id)).status is Status.COMPLETED
    child, *rest = bench.result(id)
    assert rest == [True, 9]
    view = await bench.view(child)
    assert (view.parent, view.meta) == (id, {"user": "ada"})


@pytest.mark.parametrize("lost", [False, True], ids=["after the enqueue", "before the answer was saved"])
async def test_killed_handler_does_not_enqueue_a_second_run(bench: Bench, lost: bool) -> None:
    runs, started, go = Registry(), list[str](), asyncio.Event()

    @runs.handler(kind="parent")
    async def parent(run: AsyncRun) -> list[str]:
        ids = [(await run.enqueue("child", delay=3600)).id for _ in range(2)]
        started.append(",".join(ids))
        if len(started) == 1:
            await go.wait()
        return ids

    first, _ = bench.worker(runs)
    id = await bench.enqueue("parent")
    await eventually(lambda: started, "the first attempt")
    if lost:  # what a process leaves behind that is killed after the enqueue
        keys = bench.namespace.keys(0)
        field = "wait:-:enqueue child#1"
        answer = bench.admin.hget(keys.ckpt(id), field)
        second = started[0].split(",")[1].encode()
        assert second in answer
        bench.admin.hset(keys.ckpt(id), field, encode([second.decode()], "id"))
    await bench.abandon(first)
    bench.worker(runs)
    await ended(bench, id)
    go.set()
    assert bench.result(id) == started[0].split(",")
    assert children_of(bench, id) == {*bench.result(id)}


async def test_id_that_the_server_refuses_for_its_age_is_renewed(bench: Bench) -> None:
    runs, started, go, old = Registry(), list[str](), asyncio.Event(), RunIds().make(time.time() - 86_400, 0)

    @runs.handler
    async def parent(run: AsyncRun) -> str:
        if not started:
            started.append(run.id)
            await run.flush()
            await go.wait()
        return (await run.enqueue("child", delay=3600)).id

    first, _ = bench.worker(runs)
    id = await bench.enqueue("parent")
    await checkpointed(bench, id)
    # What a process leaves behind that ended a day ago, between the saved id and the enqueue.
    bench.admin.hset(bench.namespace.keys(0).ckpt(id), "wait:-:enqueue child#0", encode([old], "id"))
    await bench.abandon(first)
    bench.worker(runs)
    await ended(bench, id)
    go.set()
    assert bench.result(id) > old
    assert children_of(bench, id) == {bench.result(id)}


async def test_key_names_one_run_and_wrong_use_is_refused(bench: Bench) -> None:
    runs = Registry()

    @runs.handler
    async def parent(run: AsyncRun) -> list[Any]:
        first = await run.enqueue("child", {"n": 1}, key="k", delay=3600)
        again = await run.enqueue("child", {"n": 1}, key="k", delay=3600)
        said: list[Any] = [first.created, again.created, first.id == again.id]

        async def in_phase() -> None:
            await run.enqueue("child")

        async def in_task() -> None:
            await asyncio.create_task(in_phase())

        for attempt in (
            lambda: run.enqueue("child", {"n": 2}, key="k"),
            lambda: run.enqueue("child", parent=first.id),  # type: ignore[call-overload]
            lambda: run.enqueue("child", key_ttl=3),
            lambda: run.phase("p", in_phase),
            in_task,
        ):
            try:
                await attempt()
            except (Refused, BadOption, KeyConflict) as error:
                said.append(str(error))
        return said

    bench.worker(runs)
    id = await bench.enqueue("parent")
    await ended(bench, id)
    said = bench.result(id)
    assert said[:3] == [True, False, True]
    assert "belongs to run" in said[3]
    assert "has no option 'parent'" in said[4]
    assert "key_ttl has no effect without key" in said[5]
    assert said[6:] == [
        "run.enqueue can't be called inside a phase or an effect: call it before or after it",
        "a run can wait and enqueue only in its handler's own task or thread, not in one that the handler started",
    ]


async def test_enqueued_run_outlives_its_parent(bench: Bench) -> None:
    runs = Registry()

    @runs.handler
    async def parent(run: AsyncRun) -> str:
        return (await run.enqueue("child", delay=3600)).id

    bench.worker(runs)
    id = await bench.enqueue("parent")
    await ended(bench, id)
    assert bench.status(bench.result(id)) == Status.DELAYED


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("way", ["run.enqueue", "client"])
async def test_handler_that_waits_for_its_child_in_its_slot_is_warned_once(
    bench: Bench, plain: bool, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Registry()

    @runs.handler
    async def square(run: AsyncRun, n: int) -> int:
        await asyncio.sleep(0.1)  # so that its parent has to wait for it
        return n * n

    if plain:

        @runs.handler(kind="parent")
        def plain_parent(run: Run) -> int:
            with Client() as client:
                new = run.enqueue if way == "run.enqueue" else client.enqueue
                return sum(new(square.inputs(n)).result(timeout=30) for n in range(2))
    else:

        @runs.handler(kind="parent")
        async def parent(run: AsyncRun) -> int:
            async with AsyncClient() as client:
                new = run.enqueue if way == "run.enqueue" else client.enqueue
                return sum([await (await new(square.inputs(n))).result(timeout=30) for n in range(2)])

    bench.worker(runs)
    id = await bench.enqueue("parent")
    await ended(bench, id)
    assert bench.result(id) == 1
    said = [record.getMessage() for record in caplog.records if "run.gather" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"run {id} holds its slot while it waits for its child ")


async def test_client_outside_of_handlers_waits_without_a_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Registry()

    @runs.handler
    async def slow(run: AsyncRun) -> None:
        await asyncio.sleep(0.1)  # so that the client has to wait for it

    bench.worker(runs)
    async with AsyncClient(bench.url, bench.namespace.name) as client:
        await (await client.enqueue("slow")).wait(timeout=30)
    assert not [record for record in caplog.records if "run.gather" in record.getMessage()]
