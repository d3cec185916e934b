"""Budgets in a real worker: a run over its budget fails or waits for a grant; attempts and children count once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from coordinator import AsyncClient, AsyncHandle, Ended
from coordinator.model.policies.budget import Spending
from coordinator.store.plans import coordinators as coordinator_plans
from tests.integration import worker_harness
from tests.integration.worker_harness import Bench
from tests.servers import Server
from tests.waiting import eventually, next_turn, work_for
from workers import AsyncRun, Budget, BudgetExceeded, ChildFailed, Registry, Retry, Run
from workers.attempt.waits.waiter import ServerWaiter


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        coordinator = asyncio.create_task(_coordinate(made))
        yield made
        coordinator.cancel()


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(bench.url, bench.namespace.name) as made:
        yield made


async def _coordinate(bench: Bench) -> None:
    """Do the part of a coordinator that wakes runs."""
    while True:
        await bench.do(coordinator_plans.due(bench.namespace.keys(0)))
        await asyncio.sleep(0.05)  # a coordinator in miniature: it looks again and again


def agents(calls: list[int], budget: Budget | None, **options: Any) -> Registry[Any]:
    """Return a registry with a plain and an async agent that spend 0.4 dollars in each turn."""
    runs: Registry[Any] = Registry()

    def ask(run: Any, turn: int) -> int:
        calls.append(turn)
        run.spend(usd=0.4, requests=1)
        return turn

    @runs.handler(kind="plain", budget=budget, **options)
    def plain(run: Run, turns: int) -> int:
        for turn in run.loop(turns):
            run.messages.append(run.phase("ask", ask, run, turn))
        return len(run.messages)

    @runs.handler(kind="async", budget=budget, **options)
    async def asynchronous(run: AsyncRun, turns: int) -> int:
        async for turn in run.loop(turns):
            run.messages.append(await run.phase("ask", ask, run, turn))
        return len(run.messages)

    return runs


KINDS = pytest.mark.parametrize("kind", ["plain", "async"])


@KINDS
@pytest.mark.parametrize("linger", [0.0, 30.0], ids=["suspended", "lingering"])
async def test_run_over_its_budget_waits_and_a_grant_continues_it_over_a_roll(
    bench: Bench, client: AsyncClient, kind: str, linger: float
) -> None:
    calls: list[int] = []
    runs = agents(calls, Budget(usd=1, then="wait"), linger=linger)
    worker, task = bench.worker(runs)
    handle = await client.enqueue(kind, {"turns": 5})
    if linger:
        await eventually(lambda: calls == [0, 1, 2], "the budget to be spent")
    else:
        await bench.until(handle.id, "waiting")
        view = await handle.view()
        assert (view.waiting, view.spent) != (None, None)
        assert view.waiting is not None
        since = view.waiting.since.isoformat(timespec="milliseconds")
        assert view.why == f"waits for a grant since {since}, because its budget is spent"
        assert await bench.end(worker, task) == 0
        bench.worker(runs)
    assert calls == [0, 1, 2]
    await handle.grant(usd=5)
    await bench.until(handle.id, "completed")
    assert (calls, bench.result(handle.id)) == ([0, 1, 2, 3, 4], 5)
    assert (await handle.view()).spent == Spending(2.0, 0, 5)
    with pytest.raises(Ended, match="nothing can be granted"):
        await handle.grant(usd=1)


async def test_failed_run_continues_after_a_grant_and_a_revive(bench: Bench, client: AsyncClient) -> None:
    runs = Registry[Any]()

    @runs.handler(budget=Budget(usd=1))
    async def agent(run: AsyncRun) -> str:
        await run.phase("paid", lambda: run.spend(usd=1))
        await run.phase("next", lambda: None)
        return "ok"

    bench.worker(runs)
    handle = await client.enqueue("agent")
    await bench.until(handle.id, "failed")
    await handle.grant(usd=10)
    await handle.revive()
    assert await bench.until(handle.id, "completed", "failed") == "completed"


@KINDS
async def test_run_over_its_budget_fails_and_is_not_retried(bench: Bench, client: AsyncClient, kind: str) -> None:
    calls: list[int] = []
    bench.worker(agents(calls, Budget(usd=10), retry=Retry(limit=5, wait=0)))
    handle = await client.enqueue(kind, {"turns": 9}, budget=Budget(requests=2))
    await bench.until(handle.id, "failed")
    assert (bench.error(handle.id)[0], calls) == ("BudgetExceeded", [0, 1])
    assert bench.counters(handle.id).failures == 1


async def test_spending_of_a_lost_worker_counts(bench: Bench, client: AsyncClient) -> None:
    entered, runs = asyncio.Event(), Registry[Any]()

    @runs.handler(budget=Budget(usd=2))
    async def agent(run: AsyncRun) -> float | None:
        await run.phase("paid", lambda: run.spend(usd=1.5))
        await run.phase("next", lambda: None)
        if run.attempt == 1:
            entered.set()
            await asyncio.Event().wait()
        run.spend(usd=0.25)
        return run.spent.usd

    worker, _ = bench.worker(runs)
    handle = await client.enqueue("agent")
    await entered.wait()
    await bench.abandon(worker)
    bench.worker(runs)
    await bench.until(handle.id, "completed")
    assert bench.result(handle.id) == 1.75
    assert (await handle.view()).spent == Spending(1.75, 0, 0)


async def test_spending_before_a_saved_cut_counts_if_the_worker_is_lost_after_the_save(
    bench: Bench, client: AsyncClient
) -> None:
    saved, runs = asyncio.Event(), Registry[Any]()

    @runs.handler(budget=Budget(usd=2))
    async def agent(run: AsyncRun) -> float | None:
        if not run.messages:
            run.spend(usd=1.5)
            run.messages.append("an answer that was paid for")
            await run.flush()
            saved.set()
            await asyncio.Event().wait()
        return run.spent.usd

    worker, _ = bench.worker(runs, lease=600.0)  # No heartbeat brings the spending before the worker is lost.
    await worker.ready.wait()
    lease = worker._membership.leases[0]
    before = lease._beat_at
    worker._heartbeat.poke(lease)
    await eventually(lambda: lease._beat_at > before, "the answer of the last heartbeat for a long time")
    handle = await client.enqueue("agent")
    await saved.wait()
    await bench.abandon(worker)
    bench.worker(runs)
    await bench.until(handle.id, "completed")
    assert bench.result(handle.id) == 1.5


async def test_spending_reaches_the_server_with_a_heartbeat(bench: Bench, client: AsyncClient) -> None:
    runs, may_end = Registry[Any](), asyncio.Event()

    @runs.handler
    async def agent(run: AsyncRun) -> None:
        run.spend(tokens=7)
        await may_end.wait()

    bench.worker(runs, lease=3.0)
    handle = await client.enqueue("agent")
    await eventually(lambda: bench.run(handle.id).get("spend"), "a heartbeat to bring the spending")
    may_end.set()
    await bench.until(handle.id, "completed")
    assert (await handle.view()).spent == Spending(0, 7, 0)


async def test_children_spend_the_budget_of_their_parent(bench: Bench, client: AsyncClient) -> None:
    runs = Registry[Any]()

    @runs.handler
    async def child(run: AsyncRun, usd: float) -> None:
        run.spend(usd=usd)

    @runs.handler(linger=0, budget=Budget(usd=1))
    async def parent(run: AsyncRun) -> str:
        await run.gather("first", [child.inputs(0.2), child.inputs(0.3)])
        await run.phase("still allowed", lambda: None)
        await run.gather("second", [child.inputs(0.6)])
        await run.phase("not allowed", lambda: None)
        return "never"

    bench.worker(runs)
    handle = await client.enqueue("parent")
    await bench.until(handle.id, "failed")
    assert bench.error(handle.id)[:2] == ["BudgetExceeded", "the budget of the run is spent: 1.1 USD"]
    assert (await handle.view()).spent == Spending(1.1, 0, 0)
    assert "still allowed" in (await handle.view()).phases


async def test_run_that_spends_nothing_has_no_spending(bench: Bench, client: AsyncClient) -> None:
    runs = Registry[Any]()

    @runs.handler(budget=Budget(usd=1))
    async def agent(run: AsyncRun) -> float | None:
        return await run.phase("look", lambda: run.left.usd)

    bench.worker(runs)
    handle = await client.enqueue("agent")
    await bench.until(handle.id, "completed")
    assert (bench.result(handle.id), (await handle.view()).spent) == (1.0, None)
    assert not {"spend", "beside"} & set(bench.run(handle.id))


@pytest.mark.parametrize(("budget", "spends"), [(None, False), (Budget(usd=1), False), (None, True)])
async def test_only_runs_that_spend_send_requests_for_it(
    bench: Bench,
    client: AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    budget: Budget | None,
    spends: bool,
) -> None:
    runs, sent = Registry[Any](), list[str]()
    carry_out = ServerWaiter.carry_out

    async def count(self: ServerWaiter, attempt: Any, make_plan: Any) -> Any:
        sent.append(attempt.id)
        return await carry_out(self, attempt, make_plan)

    monkeypatch.setattr(ServerWaiter, "carry_out", count)

    @runs.handler(budget=budget, throttle=3600)
    async def agent(run: AsyncRun) -> None:
        for number in range(3):
            await run.phase(f"ask {number}", lambda: run.spend(usd=0.1) if spends else None)
        await run.once("mail", lambda: None)
        async for _ in run.loop(3):
            pass

    bench.worker(runs)
    handle = await client.enqueue("agent")
    await bench.until(handle.id, "completed")
    assert (len(sent) > 0) == spends


# ---- work in several tasks


@pytest.mark.parametrize("step", ["phase", "once"])
@pytest.mark.parametrize("then", ["fail", "wait"])
async def test_budget_stops_work_that_other_tasks_begin(
    bench: Bench, client: AsyncClient, then: Literal["fail", "wait"], step: str
) -> None:
    runs: Registry[Any] = Registry()

    @runs.handler(budget=Budget(usd=2, then=then), linger=0.0)
    async def agent(run: AsyncRun) -> str:
        for batch in range(3):
            calls = (getattr(run, step)(f"call {batch} {i}", lambda: run.spend(usd=1)) for i in range(2))
            await asyncio.gather(*calls)
        return "done"

    bench.worker(runs)
    handle = await client.enqueue("agent")
    await bench.until(handle.id, "failed" if then == "fail" else "waiting")
    assert (await handle.view()).spent == Spending(2.0, 0, 0)
    if then == "wait":
        await handle.grant(usd=2)
        await eventually_spent(handle, 4.0)
        await bench.until(handle.id, "waiting")
        await handle.grant(usd=10)
        assert await handle.result(timeout=30) == "done"
        assert (await handle.view()).spent == Spending(6.0, 0, 0), "no call is repeated"


async def test_new_work_over_the_budget_waits_for_work_that_is_running(bench: Bench, client: AsyncClient) -> None:
    runs: Registry[Any] = Registry()
    spent, ended = asyncio.Event(), []

    @runs.handler(budget=Budget(usd=2))
    async def agent(run: AsyncRun) -> None:
        async def work() -> None:
            await spent.wait()
            await work_for(0.5)
            ended.append("slow")

        slow = asyncio.create_task(run.phase("slow", work))
        await next_turn()
        for number in range(10):
            await run.phase(f"call {number}", lambda: run.spend(usd=1))
            if number == 1:
                spent.set()
        await slow

    bench.worker(runs)
    handle = await client.enqueue("agent")
    await bench.until(handle.id, "failed")
    view = await handle.view()
    assert (view.spent, ended) == (Spending(2.0, 0, 0), ["slow"])


@KINDS
async def test_children_of_a_lingering_parent_count_in_the_next_turn(
    bench: Bench, client: AsyncClient, kind: str
) -> None:
    runs: Registry[Any] = Registry()

    @runs.handler
    async def child(run: AsyncRun) -> None:
        run.spend(usd=1)
        raise ValueError("no result")

    @runs.handler(kind="async", linger=30.0, budget=Budget(usd=2))
    async def asynchronous(run: AsyncRun) -> None:
        async for _ in run.loop(8):
            with contextlib.suppress(ChildFailed):
                await run.gather("work", [child.inputs()])

    @runs.handler(kind="plain", linger=30.0, budget=Budget(usd=2))
    def plain(run: Run) -> None:
        for _ in run.loop(8):
            list(run.as_completed("work", [child.inputs()]))

    bench.worker(runs)
    handle = await client.enqueue(kind)
    await bench.until(handle.id, "failed")
    assert (await handle.view()).spent == Spending(2.0, 0, 0)


async def test_child_that_is_cancelled_after_its_turn_counts_when_new_work_begins(
    bench: Bench, client: AsyncClient
) -> None:
    runs: Registry[Any] = Registry()
    may_end, slow = asyncio.Event(), list[str]()

    @runs.handler(linger=30.0)
    async def child(run: AsyncRun, is_slow: bool) -> None:
        if is_slow:
            slow.append(run.id)
            run.spend(usd=5)
            try:
                await run.receive("never")
            finally:
                await may_end.wait()

    @runs.handler(linger=30.0, budget=Budget(usd=2))
    async def parent(run: AsyncRun) -> None:
        async for turn in run.loop(2):
            if turn == 0:
                async for _done in run.as_completed("work", [child.inputs(True), child.inputs(False)]):
                    await eventually(lambda: slow, "the slow child")
                    break
            else:
                await run.phase("until the child is cancelled", until_cancelled)
                await run.phase("more", list)

    async def until_cancelled() -> None:
        may_end.set()
        await bench.until(slow[0], "cancelled")

    bench.worker(runs)
    handle = await client.enqueue("parent")
    await bench.until(handle.id, "failed", "completed")
    view = await handle.view()
    assert view.error is not None, "the budget is spent before the last phase begins"
    assert view.error.type.rpartition(".")[2] == "BudgetExceeded"
    assert view.spent == Spending(5.0, 0, 0)


async def test_spending_of_children_leaves_less_to_reserve(bench: Bench, client: AsyncClient) -> None:
    runs: Registry[Any] = Registry()

    @runs.handler
    async def child(run: AsyncRun) -> None:
        run.spend(usd=5)

    @runs.handler(linger=30.0, budget=Budget(usd=6))
    async def parent(run: AsyncRun) -> float:
        await run.gather("work", [child.inputs()])
        with pytest.raises(BudgetExceeded), run.reserve(usd=2):
            pass
        return run.spent.usd or 0.0

    bench.worker(runs)
    handle = await client.enqueue("parent")
    assert await handle.result(timeout=30) == 5.0


@pytest.mark.parametrize("kind", ["plain", "async", "thread"])
async def test_grant_that_was_sent_early_can_be_reserved_and_counts_once(
    bench: Bench, client: AsyncClient, kind: str
) -> None:
    runs, granted, sizes = Registry[Any](), threading.Event(), list[float | None]()
    begun = threading.Event()

    def reserve(run: Any, usd: float) -> None:
        begun.set()
        assert granted.wait(30)
        with run.reserve(usd=usd):
            sizes.append(run.left.usd)

    @runs.handler(kind="plain", budget=Budget(usd=1))
    def plain(run: Run) -> float | None:
        reserve(run, 3)
        run.phase("saved", lambda: None)
        return run.left.usd

    @runs.handler(kind="thread", budget=Budget(usd=1))
    async def thread(run: AsyncRun) -> float | None:
        await run.phase("in a thread", reserve, run, 3)
        await run.phase("saved", lambda: None)
        return run.left.usd

    @runs.handler(kind="async", budget=Budget(usd=1))
    async def asynchronous(run: AsyncRun) -> float | None:
        begun.set()
        await asyncio.to_thread(granted.wait, 30)
        async with run.reserve(usd=3):
            sizes.append(run.left.usd)
        await run.phase("saved", lambda: None)
        return run.left.usd

    bench.worker(runs)
    handle = await client.enqueue(kind)
    await asyncio.to_thread(begun.wait, 30)
    for _ in range(2):
        await handle.grant(usd=1)
    granted.set()
    assert (await handle.result(timeout=30), sizes) == (3.0, [0.0])


async def eventually_spent(handle: AsyncHandle[Any], usd: float) -> None:
    """Wait until the run has spent so much."""
    async with asyncio.timeout(30):
        while (view := await handle.view()).spent is None or view.spent.usd != usd:
            await next_turn()


@pytest.mark.parametrize("own", [None, Budget(tokens=7, then="wait")])
async def test_view_shows_the_budget_of_the_run_or_else_of_its_handler(bench, client, own):
    declared = Budget(usd=2.5, requests=10)
    worker, task = bench.worker(agents([], declared))
    with_budget = await client.enqueue("plain", {"turns": 1}, budget=own)
    await with_budget.wait(60)
    view = await with_budget.view()
    assert view.budget is not None
    assert view.budget.pack() == (own or declared).pack()
    await bench.end(worker, task)
    worker, task = bench.worker(agents([], None))  # a version of the handler without a budget
    await (await client.enqueue("async", {"turns": 1})).wait(60)
    again = (await with_budget.view()).budget
    assert again == (None if own is None else view.budget)
    await bench.end(worker, task)
