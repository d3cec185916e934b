"""Handlers that leave a step with children before all of them have ended, or come back with other inputs, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator.model.run import Status
from tests.integration import worker_harness
from tests.integration.worker.test_worker_waits import _coordinate, checkpointed, ended, send
from tests.integration.worker_harness import Bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry, RetryLater, Run


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        coordinator = asyncio.create_task(_coordinate(made))
        yield made
        coordinator.cancel()


def registry_with_listener() -> tuple[Registry[None], list[str], Any]:
    """Return a registry with a child that ends at once if its number is 0, and otherwise waits without end."""
    runs, started = Registry(), list[str]()

    @runs.handler(linger=0)
    async def child(run: AsyncRun, n: int) -> int:
        started.append(run.id)
        if n:
            await run.receive("never")
        return n

    return runs, started, child


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_children_of_a_loop_that_was_left_early_are_cancelled(bench: Bench, plain: bool) -> None:
    runs, started, child = registry_with_listener()
    if plain:

        @runs.handler(kind="parent", linger=0)
        def plain_parent(run: Run) -> int:
            for done in run.as_completed("all", [child.inputs(n) for n in range(3)]):
                return int(done.result)
            return -1

    else:

        @runs.handler(kind="parent", linger=0)
        async def parent(run: AsyncRun) -> int:
            async for done in run.as_completed("all", [child.inputs(n) for n in range(3)]):
                return int(done.result)
            return -1

    bench.worker(runs)
    id = await bench.enqueue("parent")
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert bench.result(id) == 0
    await eventually(lambda: len(set(started)) == 3, "three children")
    statuses = sorted([(await ended(bench, id)).status for id in set(started)])
    assert statuses == [Status.CANCELLED, Status.CANCELLED, Status.COMPLETED]


@pytest.mark.parametrize("where", ["before the loop", "in its first turn"])
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_children_of_one_turn_cannot_be_iterated_in_another(bench: Bench, plain: bool, where: str) -> None:
    runs, _, child = registry_with_listener()
    inputs = [child.inputs(0), child.inputs(0), child.inputs(1)]
    if plain:

        @runs.handler(kind="parent", linger=0)
        def plain_parent(run: Run) -> None:
            plain_done = run.as_completed("pages", inputs)
            if where == "before the loop":
                next(plain_done)
            for _turn in run.loop(limit=3):
                next(plain_done)

    else:

        @runs.handler(kind="parent", linger=0)
        async def parent(run: AsyncRun) -> None:
            done = run.as_completed("pages", inputs)
            if where == "before the loop":
                await anext(done)
            async for _turn in run.loop(limit=3):
                await anext(done)

    bench.worker(runs)
    view = await ended(bench, await bench.enqueue("parent"))
    assert view.error is not None
    assert view.error.type.rpartition(".")[2] == "Refused"
    assert "step 'pages' began in another turn of run.loop" in view.error.message


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_end_of_a_turn_cancels_its_open_children_while_the_parent_goes_on(bench: Bench, plain: bool) -> None:
    runs, started, child = registry_with_listener()
    if plain:

        @runs.handler(kind="parent", linger=0)
        def plain_parent(run: Run) -> str:
            for _turn in run.loop(limit=1):
                for _done in run.as_completed("all", [child.inputs(n) for n in range(3)]):
                    break
            return str(run.receive("go").payload)

    else:

        @runs.handler(kind="parent", linger=0)
        async def parent(run: AsyncRun) -> str:
            async for _turn in run.loop(limit=1):
                async for _done in run.as_completed("all", [child.inputs(n) for n in range(3)]):
                    break
            return str((await run.receive("go")).payload)

    bench.worker(runs)
    id = await bench.enqueue("parent")
    await eventually(lambda: len(set(started)) == 3, "three children")
    statuses = sorted([(await ended(bench, one)).status for one in set(started)])
    assert statuses == [Status.CANCELLED, Status.CANCELLED, Status.COMPLETED]
    await eventually(lambda: bench.status(id) == "waiting", "the parent to wait")
    keys = bench.namespace.keys(0)
    assert bench.admin.exists(keys.joins(id), keys.results(id)) == 0
    assert await send(bench, id, "go", "end") == ["sent"]
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert bench.result(id) == "end"


async def test_turn_ends_although_its_children_cannot_be_dropped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    runs, started, child = registry_with_listener()
    keys = bench.namespace.keys(0)

    @runs.handler
    async def parent(run: AsyncRun) -> int:
        async for turn in run.loop(limit=2):
            if turn == 0:
                async for _done in run.as_completed("all", [child.inputs(0), child.inputs(1)]):
                    break
                bench.admin.rename(keys.joins(run.id), keys.joins("aside"))
                bench.admin.set(keys.joins(run.id), "damaged")
            else:
                bench.admin.rename(keys.joins("aside"), keys.joins(run.id))
        return turn

    bench.worker(runs)
    id = await bench.enqueue("parent")
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert "could not drop the children of its last turn" in caplog.text
    statuses = sorted([(await ended(bench, one)).status for one in set(started)])
    assert statuses == [Status.CANCELLED, Status.COMPLETED]


async def test_gather_that_a_handler_gave_up_can_be_followed_by_other_steps(bench: Bench) -> None:
    runs, started, child = registry_with_listener()

    @runs.handler(linger=60)
    async def parent(run: AsyncRun) -> list[int]:
        try:
            async with asyncio.timeout(0.3):
                await run.gather("slow", [child.inputs(n) for n in range(3)])
        except TimeoutError:
            await run.sleep(0.01)
            return list(await run.gather("quick", [child.inputs(0)]))
        return []

    bench.worker(runs)
    id = await bench.enqueue("parent")
    view = await ended(bench, id)
    assert (view.status, view.error, bench.result(id)) == (Status.COMPLETED, None, [0])
    slow = [id for id in set(started) if (await ended(bench, id)).status is Status.CANCELLED]
    assert len(slow) == 2, "the children that the handler no longer waits for are cancelled when it ends"


@pytest.mark.parametrize("count", [1, 5], ids=["fewer", "more"])
async def test_step_that_comes_back_with_fewer_inputs_is_refused_and_with_more_inputs_enqueues_them(
    bench: Bench, count: int
) -> None:
    runs, started, go, counts = Registry(), list[str](), asyncio.Event(), [3, count]

    @runs.handler
    async def child(run: AsyncRun, n: int) -> int:
        started.append(run.id)
        await go.wait()
        return n

    @runs.handler(linger=60)
    async def parent(run: AsyncRun) -> list[int]:
        return list(await run.gather("all", [child.inputs(n) for n in range(counts.pop(0))]))

    first, _ = bench.worker(runs, concurrency=10)
    id = await bench.enqueue("parent")
    await checkpointed(bench, id)
    await eventually(lambda: len(set(started)) == 3, "three children")
    await bench.abandon(first)
    bench.worker(runs, concurrency=10)
    await eventually(lambda: not counts, "the second attempt")
    go.set()
    view = await ended(bench, id)
    if count > 3:
        assert (view.status, bench.result(id), len(set(started))) == (Status.COMPLETED, list(range(count)), count)
    else:
        assert view.status is Status.FAILED
        kind, message = bench.error(id)[:2]
        assert kind.endswith("Refused")
        assert "step 'all' has 1 inputs now, fewer than in an earlier attempt" in message


@pytest.mark.parametrize("count", [1, 5], ids=["fewer", "more"])
async def test_finished_step_that_comes_back_with_other_inputs_is_refused(bench: Bench, count: int) -> None:
    runs, counts = Registry(), [3, count]

    @runs.handler
    async def child(run: AsyncRun, n: int) -> int:
        return n

    @runs.handler(linger=0)
    async def parent(run: AsyncRun) -> list[int]:
        found = await run.gather("all", [child.inputs(n) for n in range(counts[0])])
        if counts[0] == 3:
            await run.flush()
            counts.pop(0)
            raise RetryLater("other inputs", after=0.01)
        return list(found)

    bench.worker(runs)
    id = await bench.enqueue("parent")
    assert (await ended(bench, id)).status is Status.FAILED
    than = "fewer" if count < 3 else "more"
    assert f"step 'all' has {count} inputs now, {than} than in an earlier attempt" in bench.error(id)[1]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("linger", [0.0, 30.0], ids=["suspended", "lingering"])
async def test_loop_that_a_handler_breaks_off_can_be_followed_by_other_steps(
    bench: Bench, plain: bool, linger: float
) -> None:
    runs, started, child = registry_with_listener()
    if plain:

        @runs.handler(kind="parent", linger=linger)
        def plain_parent(run: Run) -> list[int]:
            first = -1
            for done in run.as_completed("all", [child.inputs(n) for n in range(3)]):
                first = int(done.result)
                break
            run.sleep(0.01)
            return [first, *run.gather("quick", [child.inputs(0)])]

    else:

        @runs.handler(kind="parent", linger=linger)
        async def parent(run: AsyncRun) -> list[int]:
            first = -1
            async for done in run.as_completed("all", [child.inputs(n) for n in range(3)]):
                first = int(done.result)
                break
            await run.sleep(0.01)
            return [first, *(await run.gather("quick", [child.inputs(0)]))]

    bench.worker(runs)
    id = await bench.enqueue("parent")
    view = await ended(bench, id)
    assert (view.status, view.error, bench.result(id)) == (Status.COMPLETED, None, [0, 0])
    await eventually(lambda: len(set(started)) == 4, "four children")
    statuses = sorted([(await ended(bench, id)).status for id in set(started)])
    assert statuses == [Status.CANCELLED] * 2 + [Status.COMPLETED] * 2, "the open children are cancelled"


async def test_handler_that_survives_a_cancellation_inside_gather_can_gather_again(bench: Bench) -> None:
    runs, started, child = registry_with_listener()

    @runs.handler(linger=60)
    async def parent(run: AsyncRun) -> list[int]:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.3, task.cancel)
        try:
            await run.gather("slow", [child.inputs(n) for n in range(3)])
        except asyncio.CancelledError:
            task.uncancel()
        return list(await run.gather("quick", [child.inputs(0)]))

    bench.worker(runs)
    id = await bench.enqueue("parent")
    view = await ended(bench, id)
    assert (view.status, view.error, bench.result(id)) == (Status.COMPLETED, None, [0])
    statuses = sorted([(await ended(bench, id)).status for id in set(started)])
    assert statuses == [Status.CANCELLED] * 2 + [Status.COMPLETED] * 2
