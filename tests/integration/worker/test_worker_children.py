"""Handlers that run children and wait for them: gather, as_completed, cancels, kills, revives, on a real server."""

from __future__ import annotations

import asyncio
import io
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rich.console import Console

from coordinator import AsyncClient
from coordinator.clock import SystemClock
from coordinator.errors import BadOption, Refused, TreeCancelled
from coordinator.model.run import Status
from coordinator.store.plans import clients as client_plans
from coordinator.views.run_display import run_details
from tests.integration import worker_harness
from tests.integration.worker.test_worker_waits import _coordinate, checkpointed, ended
from tests.integration.worker_harness import Bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, ChildFailed, Registry, Run

ANY_LINGER = pytest.mark.parametrize("linger", [0.0, 30.0], ids=["suspended", "lingering"])


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        coordinator = asyncio.create_task(_coordinate(made))
        yield made
        coordinator.cancel()


def registry_with_square() -> tuple[Registry[None], Any]:
    runs = Registry()

    @runs.handler
    async def square(run: AsyncRun, n: int) -> int:
        if n == 13:
            raise ValueError("unlucky")
        return n * n

    return runs, square


@ANY_LINGER
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("at_once", [None, 3])
async def test_gather_returns_the_results_in_order(
    bench: Bench, linger: float, plain: bool, at_once: int | None
) -> None:
    runs, square = registry_with_square()

    if plain:

        @runs.handler(kind="total", linger=linger)
        def plain_total(run: Run, count: int) -> list[int]:
            return run.gather("squares", [square.inputs(n) for n in range(count)], at_once=at_once)

    else:

        @runs.handler(kind="total", linger=linger)
        async def total(run: AsyncRun, count: int) -> list[int]:
            return await run.gather("squares", [square.inputs(n) for n in range(count)], at_once=at_once)

    bench.worker(runs, concurrency=4)
    id = await bench.enqueue("total", {"count": 12})
    view = await ended(bench, id)
    assert (view.status, bench.result(id)) == (Status.COMPLETED, [n * n for n in range(12)])
    keys = bench.namespace.keys(0)
    assert bench.admin.exists(keys.joins(id), keys.results(id)) == 0


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_as_completed_gives_every_child_once_in_the_stored_order(bench: Bench, plain: bool) -> None:
    runs, square = registry_with_square()
    orders: list[list[int]] = []

    if plain:

        @runs.handler(kind="total", linger=0)
        def plain_total(run: Run) -> int:
            orders.append([])
            found = 0
            for done in run.as_completed("squares", [square.inputs(n) for n in range(8)], at_once=2):
                orders[-1].append(done.index)
                found += done.result
            return found
    else:

        @runs.handler(kind="total", linger=0)
        async def total(run: AsyncRun) -> int:
            orders.append([])
            found = 0
            async for done in run.as_completed("squares", [square.inputs(n) for n in range(8)], at_once=2):
                orders[-1].append(done.index)
                found += done.result
            return found

    bench.worker(runs)
    id = await bench.enqueue("total")
    await ended(bench, id)
    assert bench.result(id) == sum(n * n for n in range(8))
    assert sorted(orders[-1]) == list(range(8))
    for order in orders:
        assert order == orders[-1][: len(order)], "a later attempt sees the same order"


async def test_depth_ten_finishes_in_one_slot(bench: Bench) -> None:
    runs = Registry()

    @runs.handler
    async def nested(run: AsyncRun, depth: int) -> int:
        if depth == 0:
            return 0
        (below,) = await run.gather("below", [nested.inputs(depth - 1)])
        return int(below) + 1

    bench.worker(runs, concurrency=1)
    id = await bench.enqueue("nested", {"depth": 10})
    await ended(bench, id)
    assert bench.result(id) == 10


class StandingClock(SystemClock):
    """A clock that always shows the time at which it was made."""

    def __init__(self) -> None:
        self._at = super().now()

    def now(self) -> float:
        return self._at


async def test_parents_whose_steps_begin_in_the_same_millisecond_have_their_own_children(bench: Bench) -> None:
    runs, square = registry_with_square()

    @runs.handler(linger=0)
    async def total(run: AsyncRun, of: int) -> list[int]:
        return await run.gather("squares", [square.inputs(n) for n in range(of, of + 3)])

    bench.worker(runs, clock=StandingClock(), concurrency=4)
    ids = [await bench.enqueue("total", {"of": of}) for of in (1, 5, 9)]
    for id, of in zip(ids, (1, 5, 9), strict=True):
        await ended(bench, id)
        assert bench.result(id) == [n * n for n in range(of, of + 3)]


async def test_child_that_failed_is_raised_or_returned(bench: Bench) -> None:
    runs, square = registry_with_square()

    @runs.handler(linger=0)
    async def total(run: AsyncRun) -> list[Any]:
        children = [square.inputs(n) for n in (2, 13, 3)]
        found = await run.gather("all", children, return_failures=True)
        try:
            await run.gather("again", children)
        except ChildFailed as error:
            said = [error.kind, str(error.status), error.failure.message if error.failure else ""]
            return [found[0], isinstance(found[1], ChildFailed), found[2], *said]
        return []

    bench.worker(runs)
    id = await bench.enqueue("total")
    await ended(bench, id)
    assert bench.result(id) == [4, True, 9, "square", "failed", "unlucky"]


async def test_step_whose_announcement_was_overtaken_is_announced_again(bench: Bench) -> None:
    runs = Registry()

    @runs.handler
    async def child(run: AsyncRun, n: int) -> int:
        return n

    @runs.handler(linger=30)
    async def parent(run: AsyncRun) -> list[int]:
        # another task of the handler has sent two calls, which arrived before the next one
        record = bench.namespace.keys_of(run.id).run(run.id)
        token = bench.admin.hget(record, "token")
        assert isinstance(token, bytes)
        bench.admin.hset(record, "called", f"3 {token.decode()}")
        return await run.gather("all", [child.inputs(n) for n in range(2)])

    bench.worker(runs)
    id = await bench.enqueue("parent")
    await ended(bench, id)
    assert bench.result(id) == [0, 1]


async def test_killed_parent_finds_the_same_children(bench: Bench) -> None:
    runs, started, go = Registry(), list[str](), asyncio.Event()

    @runs.handler
    async def slow(run: AsyncRun, n: int) -> int:
        started.append(run.id)
        await go.wait()
        return n

    @runs.handler(linger=60)
    async def total(run: AsyncRun) -> int:
        return sum(await run.gather("slow", [slow.inputs(n) for n in range(3)]))

    parents = Registry.merged(runs)
    first, _ = bench.worker(parents, concurrency=10)
    id = await bench.enqueue("total")
    await checkpointed(bench, id)
    await eventually(lambda: len(started) == 3, "three children")
    await bench.abandon(first)
    bench.worker(parents, concurrency=10)
    go.set()
    await ended(bench, id)
    assert bench.result(id) == 3
    assert len(set(started)) == 3, "no child was enqueued twice"


async def test_cancelled_parent_cancels_its_joined_children(bench: Bench) -> None:
    runs, started = Registry(), list[str]()

    @runs.handler(linger=0)
    async def waiting(run: AsyncRun) -> None:
        started.append(run.id)
        await run.receive("never")

    @runs.handler(linger=0)
    async def parent(run: AsyncRun) -> None:
        await run.gather("all", [waiting.inputs() for _ in range(3)])

    bench.worker(runs)
    id = await bench.enqueue("parent")
    await eventually(lambda: len(started) == 3, "three children")
    await bench.until(id, Status.WAITING)
    await bench.cancel(id)
    for child in started:
        await bench.until(child, Status.CANCELLED)
    assert bench.status(id) == Status.CANCELLED


async def test_revived_parent_keeps_completed_results(bench: Bench) -> None:
    runs, calls = Registry(), list[int]()

    @runs.handler
    async def flaky(run: AsyncRun, n: int) -> int:
        calls.append(n)
        if n == 1 and calls.count(1) == 1:
            raise ValueError("once")
        return n

    @runs.handler(linger=0)
    async def total(run: AsyncRun) -> int:
        return sum(await run.gather("all", [flaky.inputs(n) for n in range(3)]))

    bench.worker(runs)
    id = await bench.enqueue("total")
    assert (await ended(bench, id)).status is Status.FAILED
    await bench.do(client_plans.revive(bench.namespace.keys_of(id), id, operation="r"))
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert bench.result(id) == 3
    assert sorted(calls) == [0, 1, 1, 2], "only the child that failed ran again"


async def test_results_of_a_turn_are_dropped_at_its_end(bench: Bench) -> None:
    runs, square = registry_with_square()
    most: list[int] = []

    @runs.handler(linger=0)
    async def total(run: AsyncRun) -> int:
        found = 0
        async for turn in run.loop(limit=4):
            run.state["sum"] = run.state.get("sum", 0) + sum(
                await run.gather("squares", [square.inputs(turn), square.inputs(1)])
            )
            most.append(bench.admin.hlen(bench.namespace.keys(0).joins(run.id)))
            found = run.state["sum"]
        return found

    bench.worker(runs)
    id = await bench.enqueue("total")
    await ended(bench, id)
    assert bench.result(id) == 0 + 1 + 4 + 9 + 4
    assert max(most) == 1


async def test_wrong_use_is_refused(bench: Bench) -> None:
    runs, square = registry_with_square()

    @runs.handler(linger=0)
    async def wrong(run: AsyncRun) -> list[str]:
        async def in_phase() -> None:
            await run.gather("x", [square.inputs(1)])

        said = []
        for attempt in (
            lambda: run.phase("p", in_phase),
            lambda: run.gather("", [square.inputs(1)]),
            lambda: run.gather("x", [square.inputs(1)], at_once=0),
            lambda: run.gather("x", [square.inputs(1)], key="k"),  # type: ignore[call-arg]
            lambda: run.gather("x", ["square"]),  # type: ignore[list-item]
        ):
            try:
                await attempt()
            except (Refused, BadOption) as error:
                said.append(str(error))
        return [*said, str(await run.gather("nothing", []))]

    bench.worker(runs)
    id = await bench.enqueue("wrong")
    await ended(bench, id)
    said = bench.result(id)
    assert len(said) == 6, said
    assert said[-1] == "[]"


async def test_kind_that_no_worker_knows_lets_the_parent_wait(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=0)
    async def parent(run: AsyncRun) -> None:
        await run.gather("strange", [("nobody-knows", {"a": 1})])  # type: ignore[list-item]

    bench.worker(runs)
    id = await bench.enqueue("parent")
    await bench.until(id, Status.WAITING)
    view = await bench.view(id)
    assert view.waiting is not None
    assert view.waiting.children is not None
    (child,) = view.waiting.children.open
    nobody = "no live worker handles kind 'nobody-knows' in queue 'default'"
    assert (child.kind, child.status, child.why) == ("nobody-knows", Status.QUEUED, nobody)
    since = view.waiting.since.isoformat(timespec="milliseconds")
    assert view.why == (
        f"waits for 1 of 1 child since {since}; child {child.run} of kind 'nobody-knows' is queued: {nobody}"
    )


@pytest.mark.parametrize("linger", [0.0, 0.3])
@pytest.mark.parametrize("each", [False, True], ids=["gather", "as_completed"])
async def test_parent_of_a_child_that_cannot_start_is_suspended(bench: Bench, linger: float, each: bool) -> None:
    runs = Registry()

    @runs.handler(linger=linger)
    async def parent(run: AsyncRun) -> None:
        strange = [("nobody-knows", {"a": 1})]
        if each:
            async for _ in run.as_completed("strange", strange):  # type: ignore[arg-type]
                pass
        else:
            await run.gather("strange", strange)  # type: ignore[arg-type]

    worker, _ = bench.worker(runs)
    id = await bench.enqueue("parent")
    await bench.until(id, Status.WAITING)
    await eventually(lambda: not worker.attempts, "the slot to be free")


async def test_view_names_some_of_the_children_that_a_run_waits_for(bench: Bench) -> None:
    runs, go = Registry(), asyncio.Event()

    @runs.handler
    async def part(run: AsyncRun, n: int) -> None:
        if n >= 3:
            await go.wait()

    @runs.handler(linger=0)
    async def parent(run: AsyncRun) -> None:
        await run.gather("parts", [part.inputs(n) for n in range(12)])

    bench.worker(runs, concurrency=4)
    id = await bench.enqueue("parent")
    await bench.until(id, Status.WAITING)
    await eventually(lambda: bench.admin.hlen(bench.namespace.keys(0).results(id)) == 6, "three endings")
    waiting = (await bench.view(id)).waiting
    assert waiting is not None
    assert waiting.children is not None
    assert (waiting.children.count, waiting.children.ended, waiting.children.needed) == (12, 3, 12)
    assert len(waiting.children.open) == 5
    assert {child.status for child in waiting.children.open} == {Status.RUNNING, Status.QUEUED}
    screen = io.StringIO()
    Console(file=screen, width=200).print(run_details(await bench.view(id), time.time()))
    assert "waits for 9 of 12 children" in screen.getvalue()
    assert f"child {waiting.children.open[0].run} of kind 'part' is running" in screen.getvalue()
    go.set()
    assert (await ended(bench, id)).status is Status.COMPLETED


async def _grow_tree(bench: Bench, client: AsyncClient) -> tuple[str, dict[str, set[str]]]:
    """Start a tree of depth 3 with runs in every open status, and one that has completed. Return its root and its runs by kind."""
    runs, seen = Registry(), defaultdict[str, set[str]](set)

    @runs.handler
    async def done(run: AsyncRun) -> None:
        seen["done"].add(run.id)

    @runs.handler
    async def working(run: AsyncRun) -> None:
        seen["working"].add(run.id)
        while True:
            await asyncio.sleep(0.01)  # work between two cuts
            await run.flush()

    @runs.handler(linger=0)
    async def listening(run: AsyncRun) -> None:
        seen["listening"].add(run.id)
        await run.receive("never")

    @runs.handler(linger=0)
    async def middle(run: AsyncRun) -> None:
        seen["middle"].add(run.id)
        later = await run.enqueue(done.inputs(), delay=3600)
        seen["delayed"].add(later.id)
        await run.gather("leaves", [done.inputs(), working.inputs(), listening.inputs(), ("unknown", {})])  # type: ignore[list-item]

    @runs.handler(linger=0)
    async def root(run: AsyncRun) -> None:
        await run.gather("middles", [middle.inputs(), middle.inputs(), working.inputs()])

    bench.worker(runs, concurrency=20)
    handle = await client.enqueue("root")
    await eventually(
        lambda: (
            [len(seen[kind]) for kind in ("done", "working", "listening", "delayed")] == [2, 3, 2, 2]
            and {bench.status(id) for id in seen["done"]} == {"completed"}
            and {bench.status(id) for id in [*seen["listening"], *seen["middle"], handle.id]} == {"waiting"}
        ),
        "the tree",
    )
    return handle.id, seen


async def test_cancelled_tree_ends_every_run_in_whatever_status(bench: Bench) -> None:
    async with AsyncClient(bench.url, bench.namespace.name) as client:
        root, seen = await _grow_tree(bench, client)
        every = {key.rpartition(b":")[2].decode() for key in bench.admin.scan_iter(bench.namespace.keys(0).run("*"))}
        before = [bench.status(id) for id in every]
        assert {status: before.count(status) for status in before} == {
            "completed": 2, "running": 3, "waiting": 5, "queued": 2, "delayed": 2,
        }  # fmt: skip
        told = await client.handle(root).cancel_tree(grace=20)
        assert root in told
        open_before = every - {*seen["done"]}
        await eventually(lambda: {bench.status(id) for id in open_before} == {"cancelled"}, "the tree to be cancelled")
        assert {bench.status(id) for id in seen["done"]} == {"completed"}
        after = {key.rpartition(b":")[2].decode() for key in bench.admin.scan_iter(bench.namespace.keys(0).run("*"))}
        assert after == every, "nothing was enqueued below afterwards"
        for parent in (root, *seen["middle"], *seen["listening"], *seen["working"]):
            with pytest.raises(TreeCancelled):
                await client.enqueue("done", parent=parent)
        assert all(bench.counters(id).strikes == 0 for id in every)
