"""A deploy loses no work: how a worker ends, whatever its handlers do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

from coordinator.errors import NotConfigured
from tests.integration.worker_harness import HANG, Bench, bench, performing
from tests.servers import Server
from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry, Run


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


async def test_handler_may_finish_within_its_grace(here):
    runs, go = Registry(), asyncio.Event()

    @runs.handler(grace=60.0)
    async def patient(run: AsyncRun) -> str:
        await go.wait()
        return "in time"

    @runs.handler(grace=0.0)
    async def hasty(run: AsyncRun) -> None:
        await asyncio.Event().wait()

    worker, task = here.worker(runs)
    first, second = await here.enqueue("patient"), await here.enqueue("hasty")
    await performing(worker, 2)
    worker.stop()
    await here.until(second, "queued")
    assert here.status(first) == "running"
    go.set()
    assert await task == 0
    assert here.result(first) == "in time"


async def test_second_stop_skips_the_grace_and_still_releases(here):
    runs = Registry()

    @runs.handler(grace=3600.0)
    async def waits(run: AsyncRun) -> None:
        run.state["x"] = 1
        run.checkpoint()
        await asyncio.Event().wait()

    worker, task = here.worker(runs)
    id = await here.enqueue("waits")
    await performing(worker)
    worker.stop()
    assert await here.end(worker, task) == 0
    assert here.status(id) == "queued"
    assert here.state(id) == {"x": 1}


@pytest.mark.matrix("waits through a timeout")
async def test_handler_that_ignores_every_cancel_is_left_behind_and_fenced(here):
    runs, over = Registry(), asyncio.Event()
    words = []

    @runs.handler(grace=0.0)
    async def deaf(run: AsyncRun) -> str:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()
        run.state["late"] = True
        run.checkpoint()
        try:
            await run.flush()
        except BaseException as error:
            words.append(type(error).__name__)
            raise
        return "late"

    worker, task = here.worker(runs)
    id = await here.enqueue("deaf")
    await performing(worker)
    attempt = next(iter(worker.attempts.values()))
    worker.stop()
    async with asyncio.timeout(HANG):
        assert await task == 0
    assert here.status(id) == "queued"
    assert here.counters(id).strikes == 0
    over.set()
    await eventually(lambda: words, "the handler to be refused")
    assert attempt.task is not None
    await asyncio.wait({attempt.task}, timeout=HANG)
    assert words == ["Stopped"]
    assert here.state(id) is None
    assert here.status(id) == "queued"


@pytest.mark.matrix("waits through a timeout")
async def test_plain_handler_without_a_cut_is_left_behind_and_fenced(here):
    runs, over, words = Registry(), threading.Event(), []

    @runs.handler(grace=0.0)
    def deaf(run: Run) -> str:
        over.wait(HANG)
        run.state["late"] = True
        try:
            run.flush()
        except BaseException as error:
            words.append(type(error).__name__)
            raise
        return "late"

    worker, task = here.worker(runs)
    id = await here.enqueue("deaf")
    await performing(worker)
    try:
        async with asyncio.timeout(HANG):
            assert await here.end(worker, task) == 0
        assert here.status(id) == "queued"
    finally:
        over.set()
    await eventually(lambda: words, "the handler to be refused")
    assert words == ["Stopped"]
    assert here.state(id) is None


async def test_messages_after_the_last_cut_are_marked_as_unfinished(here):
    runs, seen = Registry(), []

    @runs.handler(grace=0.0)
    async def talks(run: AsyncRun) -> str:
        seen.append((list(run.messages), run.resumed and (run.resumed.cause, run.resumed.unfinished)))
        if run.attempt == 1:
            run.messages.append({"n": 1})
            await run.flush()
            run.messages.append({"n": 2})
            await asyncio.Event().wait()
        await run.flush()
        return "ok"

    worker, task = here.worker(runs)
    id = await here.enqueue("talks")
    await eventually(lambda: here.admin.hlen(here.namespace.keys(0).messages(id, "1")), "the first message to be saved")
    await performing(worker)
    await here.end(worker, task)
    assert here.status(id) == "queued"
    here.worker(runs)
    assert await here.outcome(id) == "completed"
    assert seen == [([], None), ([{"n": 1}], ("release", ({"n": 2},)))]


async def more(seen: list[int], count: int) -> None:
    """Return when that many more events were seen."""
    wanted = len(seen) + count
    await eventually(lambda: len(seen) >= wanted, f"{count} more")


async def test_drained_run_resumes_and_loses_no_turn(here):
    runs, turns = Registry(), []

    @runs.handler(throttle=3600.0)
    async def counts(run: AsyncRun) -> int:
        async for turn in run.loop(limit=30):
            turns.append(turn)
            run.messages.append({"turn": turn})
            await work_for(0.01)
        return len(run.messages)

    id = await here.enqueue("counts")
    for _ in range(3):
        worker, task = here.worker(runs)
        await more(turns, 3)
        await here.end(worker, task)
    here.worker(runs)
    assert await here.outcome(id) == "completed"
    assert here.result(id) == 30
    assert turns == list(range(30)), "no turn lost, none done twice"
    assert here.counters(id).releases == 3


async def test_worker_that_left_leaves_only_a_tombstone(here):
    runs = Registry()

    @runs.handler
    async def fine(run: AsyncRun) -> str:
        return "ok"

    worker, task = here.worker(runs)
    assert await here.outcome(await here.enqueue("fine")) == "completed"
    keys, name = here.namespace.keys(0), worker._membership.leases[0].worker
    assert await here.end(worker, task) == 0
    assert not here.admin.exists(keys.owned(name), keys.inbox(name), keys.workers())
    assert here.admin.pttl(keys.worker(name)) > 0


async def test_failing_lifespan_is_one_sentence_and_nothing_is_claimed(here):
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        if events:
            yield
        raise OSError("no model here")

    runs = Registry(lifespan=broken)

    @runs.handler
    async def fine(run: AsyncRun[None]) -> str:
        return "ok"

    id = await here.enqueue("fine")
    _, task = here.worker(runs)
    with pytest.raises(NotConfigured, match=r"lifespan raised OSError: no model here; no run was claimed"):
        await task
    assert here.status(id) == "queued"
    assert not here.admin.exists(here.namespace.keys(0).workers())


async def test_stop_before_the_start_shuts_down_in_order(here):
    runs = Registry()

    @runs.handler
    async def fine(run: AsyncRun) -> str:
        return "ok"

    worker, task = here.worker(runs)
    worker.stop()
    async with asyncio.timeout(HANG):
        assert await task == 0


async def test_internal_failure_drains_the_worker_before_it_is_raised(here, monkeypatch):
    runs = Registry()

    @runs.handler(grace=0.0, on_lost_lease="stop")
    async def waits(run: AsyncRun) -> None:
        await asyncio.Event().wait()

    worker, task = here.worker(runs)
    id = await here.enqueue("waits")
    await performing(worker)

    def broken() -> bool:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(type(worker._membership.leases[0]), "in_doubt", property(lambda lease: broken()))
    async with asyncio.timeout(HANG):
        with pytest.raises(ZeroDivisionError):
            await task
    assert here.status(id) == "queued"
    assert here.counters(id).strikes == 0


async def test_cancelling_the_task_of_an_attempt_does_not_fail_the_run(here):
    runs = Registry()

    @runs.handler
    async def waits(run: AsyncRun) -> str:
        if run.attempt > 1:
            return "went on"
        await asyncio.Event().wait()
        return ""

    worker, _ = here.worker(runs)
    id = await here.enqueue("waits")
    await performing(worker)
    attempt = next(iter(worker.attempts.values()))
    assert attempt.task is not None
    attempt.task.cancel()  # An event loop that is closed does this.
    assert await here.outcome(id) == "delayed"
    await here.make_due(id)
    await here.until(id, "completed")
