"""What a run sees and leaves behind in a worker: partitions, suspects, notes, logs, parents, resources."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator

import pytest

from coordinator import AsyncClient, Client, logs
from coordinator.client.operations.open_namespace import new_mark
from coordinator.client.parent import current_parent
from coordinator.store.plans import clients as client_plans
from tests.integration.worker_harness import Bench, bench, performing
from tests.servers import Server
from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry, Run
from workers.handlers.facts import Stopped


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


async def test_worker_serves_every_partition_within_its_slots(valkey_server, namespace):
    runs, now, most = Registry(), [], []

    @runs.handler
    async def work(run: AsyncRun) -> str:
        now.append(run.id)
        most.append(len(now))
        await work_for(0.01)
        now.remove(run.id)
        return run.id

    async with bench(valkey_server.url, namespace, partitions=4) as here:
        ids = [await here.enqueue("work", partition=n % 4) for n in range(20)]
        worker, task = here.worker(runs, concurrency=3)
        late = [await here.enqueue("work", partition=n) for n in range(4)]
        for id in ids + late:
            assert await here.outcome(id) == "completed"
        assert max(most) <= 3
        assert await here.end(worker, task) == 0
        for keys in here.namespace.everywhere():
            assert not here.admin.exists(keys.workers())


async def test_suspect_runs_alone_until_it_makes_progress(here):
    runs, go, end = Registry(), asyncio.Event(), asyncio.Event()

    @runs.handler
    async def odd(run: AsyncRun) -> str:
        if run.attempt <= 2:
            raise Stopped("drain")
        await go.wait()
        run.state["progress"] = True
        await run.flush()
        await end.wait()
        return "fine after all"

    @runs.handler
    async def fine(run: AsyncRun) -> str:
        return "ok"

    worker, _ = here.worker(runs)
    id = await here.enqueue("odd")
    for _ in range(2):
        assert await here.outcome(id) == "delayed"
        await here.make_due(id)
        await here.until(id, "running", "delayed")
    await here.attempted(id, 3)
    await performing(worker)
    assert worker._slots.alone
    assert worker._slots.free == 0
    neighbour = await here.enqueue("fine")
    go.set()
    assert await here.outcome(neighbour) == "completed"
    assert here.status(id) == "running"
    assert here.run(neighbour)["started"] >= here.run(id)["started"]
    end.set()
    assert await here.outcome(id) == "completed"
    assert not worker._slots.alone


async def test_busy_process_claims_no_suspect(here):
    runs, end, begun = Registry(), asyncio.Event(), []

    @runs.handler
    async def odd(run: AsyncRun) -> str:
        begun.append(run.attempt)
        if run.attempt <= 2:
            raise Stopped("drain")
        return "ok"

    @runs.handler
    async def long(run: AsyncRun) -> None:
        await end.wait()

    @runs.handler
    async def fine(run: AsyncRun) -> str:
        return "ok"

    here.worker(runs)
    id = await here.enqueue("odd")
    assert await here.outcome(id) == "delayed"
    await here.make_due(id)
    await eventually(lambda: len(begun) == 2 and here.status(id) == "delayed", "the second strike")
    held = await here.enqueue("long")
    await here.until(held, "running")
    await here.make_due(id)
    for _ in range(3):
        assert await here.outcome(await here.enqueue("fine")) == "completed"
    assert here.status(id) == "queued"
    end.set()
    assert await here.outcome(id) == "completed"


async def test_process_with_one_slot_runs_a_suspect_although_other_runs_wait(here):
    """Check that the suspect starts between two runs, when the process is empty, because it is the oldest."""
    runs, order = Registry(), []

    @runs.handler
    async def odd(run: AsyncRun) -> str:
        order.append("odd")
        if run.attempt <= 2:
            raise Stopped("drain")
        return "ok"

    @runs.handler
    async def fine(run: AsyncRun) -> str:
        order.append("fine")
        if len(order) == 3:
            await here.make_due(id)
        return "ok"

    here.worker(runs, concurrency=1)
    id = await here.enqueue("odd")
    assert await here.outcome(id) == "delayed"
    await here.make_due(id)
    await eventually(lambda: len(order) == 2 and here.status(id) == "delayed", "the second strike")
    await here.do(client_plans.pause(here.namespace.keys(0), "kind:fine", new_mark()))
    others = [await here.enqueue("fine") for _ in range(20)]
    await here.do(client_plans.unpause(here.namespace.keys(0), "kind:fine", new_mark()))
    assert await here.outcome(others[-1]) == "completed"
    assert order == ["odd", "odd", "fine", "odd"] + 19 * ["fine"]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_log_records_of_a_handler_name_its_run(here, plain):
    runs, seen = Registry(), {}

    def record_place(where: str) -> None:
        seen[where] = dict(logs.about.get())

    @runs.handler(kind="a")
    async def handler(run: AsyncRun) -> None:
        record_place("handler")
        await run.phase("thread", record_place, "phase")
        await asyncio.to_thread(record_place, "thread")
        async with asyncio.TaskGroup() as group:
            group.create_task(run.phase("task", record_place, "task"))

    @runs.handler(kind="p")
    def plain_handler(run: Run) -> None:
        record_place("handler")
        run.phase("phase", record_place, "phase")

    here.worker(runs)
    kind = "p" if plain else "a"
    id = await here.enqueue(kind)
    assert await here.outcome(id) == "completed"
    assert set(seen) == ({"handler", "phase"} if plain else {"handler", "phase", "thread", "task"})
    for about in seen.values():
        assert about == {"run": id, "kind": kind, "attempt": 1}


async def test_note_is_shown_without_a_save_and_accepts_any_text(here):
    runs, go = Registry(), asyncio.Event()

    @runs.handler
    async def says(run: AsyncRun) -> None:
        run.note("half \udc80 way", done=1, total=2)
        await go.wait()

    worker, _ = here.worker(runs, lease=1.0)
    id = await here.enqueue("says")
    await performing(worker)
    async with AsyncClient(here.url, here.namespace.name) as client:

        async def shown() -> bool:
            note = (await client.handle(id).view()).note
            return note is not None and (note.text, note.done, note.total) == ("half ? way", 1, 2)

        await eventually(shown, "the note")
    go.set()
    assert await here.outcome(id) == "completed"


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_run_enqueued_by_a_handler_inherits_parent_and_meta(here, plain):
    runs, children = Registry(), []

    @runs.handler
    async def leaf(run: AsyncRun) -> str:
        return "ok"

    @runs.handler(kind="a")
    async def parent(run: AsyncRun) -> None:
        async with AsyncClient(here.url, here.namespace.name) as client:
            children.append((await client.enqueue("leaf")).id)

    @runs.handler(kind="p")
    def plain_parent(run: Run) -> None:
        with Client(here.url, here.namespace.name) as client:
            children.append(client.enqueue("leaf").id)

    here.worker(runs)
    id = await here.enqueue("p" if plain else "a", meta={"caller_id": "u1"})
    assert await here.outcome(id) == "completed"
    assert current_parent.get() is None
    async with AsyncClient(here.url, here.namespace.name) as client:
        view = await client.handle(children[0]).view()
    assert view.parent == id
    assert view.meta["caller_id"] == "u1"
    assert await here.outcome(children[0]) == "completed"


async def test_handlers_share_the_resource_of_the_lifespan_until_it_is_closed(here):
    events = []

    @contextlib.asynccontextmanager
    async def model() -> AsyncIterator[str]:
        events.append("open")
        yield "the model"
        events.append("closed")

    runs = Registry(lifespan=model)

    @runs.handler
    async def asks(run: AsyncRun[str]) -> str:
        events.append("used")
        return run.resources

    worker, task = here.worker(runs)
    id = await here.enqueue("asks")
    assert await here.outcome(id) == "completed"
    assert here.result(id) == "the model"
    assert await here.end(worker, task) == 0
    assert events == ["open", "used", "closed"]


async def test_checkpoint_too_large_for_the_claim_is_loaded_in_pages(here):
    runs, go = Registry(), asyncio.Event()

    @runs.handler(grace=0.0)
    async def talks(run: AsyncRun) -> list[int]:
        if run.attempt == 1:
            for n in range(40):
                run.messages.append({"n": n, "text": "x" * 50_000})
                await run.flush()
            go.set()
            await asyncio.Event().wait()
        return [message["n"] for message in run.messages]

    worker, task = here.worker(runs)
    id = await here.enqueue("talks")
    await go.wait()
    await here.end(worker, task)
    here.worker(runs)
    assert await here.outcome(id) == "completed"
    assert here.result(id) == list(range(40))


async def test_broken_answer_to_a_claim_does_not_end_the_worker(here, caplog):
    runs = Registry()

    @runs.handler
    async def fine(run: AsyncRun) -> str:
        return "ok"

    bad = await here.enqueue("fine")
    here.admin.hset(here.namespace.keys(0).run(bad), "prev", b"\xff\xff")
    with caplog.at_level(logging.ERROR):
        worker, _ = here.worker(runs, concurrency=1, lease=1.0)
        await eventually(
            lambda: "claim failed: its answer" in caplog.text or here.status(bad) == "completed", "the claim"
        )
    here.admin.hset(here.namespace.keys(0).run(bad), "prev", b"w1 c1")
    assert await here.outcome(bad) == "completed"
    assert here.counters(bad).strikes == 0
    assert await here.outcome(await here.enqueue("fine")) == "completed"
    assert worker.ready.is_set()


@pytest.mark.matrix("waits through a timeout")
async def test_hung_handler_of_a_worker_without_supervisor_is_named_until_it_stops(here):
    runs, go = Registry(), threading.Event()

    @runs.handler(grace=0.0)
    def hangs(run: Run) -> None:
        go.wait()

    worker, _ = here.worker(runs, lease=2.0)
    id = await here.enqueue("hangs")
    await performing(worker)
    try:
        await here.abandon(worker)
        async with AsyncClient(here.url, here.namespace.name) as client:

            async def stuck() -> list[str]:
                return [run for one in await client.workers() for run in one.stuck]

            async def named() -> bool:
                return id in await stuck()

            async def gone() -> bool:
                return id not in await stuck()

            await eventually(named, "the worker to name the run")
            go.set()
            await eventually(gone, "the worker to forget the run")
    finally:
        go.set()
