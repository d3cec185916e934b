"""`run.once` in a real worker: the order of the saves, retries, revives, drains and lost workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import pytest

from coordinator.doctor.examiner import examine
from coordinator.store.plans import clients as client_plans
from tests.integration import worker_harness
from tests.integration.worker_harness import Bench
from tests.proxy import Proxy
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, NotDone, Registry, Retry, Run


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        yield made


def stored(bench: Bench, id: str) -> set[str]:
    return {field.decode() for field in bench.admin.hkeys(bench.namespace.keys_of(id).effects(id))}


def saves(bench: Bench, id: str) -> int:
    head = bench.admin.hget(bench.namespace.keys_of(id).ckpt(id), "head")
    return int(head.split()[0]) if head else 0


async def revive(bench: Bench, id: str, operation: str = "r1", **options: Any) -> None:
    plan = client_plans.revive(bench.namespace.keys_of(id), id, operation=operation, **options)
    assert await bench.do(plan) == "queued"


def effect_runs(called: Callable[[], Any], *, check: Any = None, retry: Retry | None = None) -> Registry[Any]:
    """Return a registry with a plain and an async handler that have one effect."""
    runs: Registry[Any] = Registry()

    @runs.handler(kind="plain", retry=retry or Retry(), throttle=3600)
    def plain(run: Run) -> Any:
        return run.once("charge", called, check=check)

    @runs.handler(kind="async", retry=retry or Retry(), throttle=3600)
    async def asynchronous(run: AsyncRun) -> Any:
        return await run.once("charge", called, check=check)

    return runs


KINDS = pytest.mark.parametrize("kind", ["plain", "async"])


@KINDS
async def test_effect_costs_two_saves_whatever_the_throttle(bench: Bench, kind: str) -> None:
    seen = list[tuple[set[str], int]]()
    id = ""

    def charge() -> str:
        seen.append((stored(bench, id), saves(bench, id)))
        return "receipt"

    runs = effect_runs(charge)
    held = asyncio.Event()

    @runs.handler(kind="hold", throttle=3600)
    async def hold(run: AsyncRun) -> Any:
        output = await run.once("charge", charge)
        await held.wait()
        return output

    bench.worker(runs)
    id = await bench.enqueue("hold")
    await eventually(lambda: stored(bench, id) == {"done:charge"}, "the effect to be done")
    assert (seen, saves(bench, id)) == ([({"begun:charge"}, 1)], 2)
    held.set()
    await bench.until(id, "completed")
    assert (bench.result(id), stored(bench, id)) == ("receipt", set())
    id = await bench.enqueue(kind)
    await bench.until(id, "completed")
    assert bench.result(id) == "receipt"


@KINDS
async def test_effect_of_a_lost_worker_is_unknown_and_not_retried(bench: Bench, kind: str) -> None:
    calls, entered = list[int](), asyncio.Event()
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()

    def charge() -> str:
        calls.append(1)
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(gone.wait(), loop).result()
        return "receipt"

    runs = effect_runs(charge, retry=Retry(limit=5, wait=0))
    worker, _ = bench.worker(runs)
    id = await bench.enqueue(kind)
    await entered.wait()
    await bench.abandon(worker)
    bench.worker(runs)
    await bench.until(id, "failed")
    gone.set()
    assert (bench.error(id)[0], len(calls), stored(bench, id)) == ("OutcomeUnknown", 1, {"begun:charge"})
    assert bench.counters(id).failures == 1
    assert (await bench.view(id)).effects == {"charge": "begun"}


async def test_effect_that_waited_for_a_thread_is_not_called_after_its_run_was_lost(bench: Bench) -> None:
    runs, calls, free = Registry[Any](), list[int](), threading.Event()

    @runs.handler
    async def pay(run: AsyncRun) -> None:
        if run.attempt == 1:
            asyncio.get_running_loop().run_in_executor(
                run._backing.threads, free.wait, 60
            )  # the only thread of the worker
        await run.once("charge", calls.append, run.attempt)

    worker, _ = bench.worker(runs, concurrency=1, lease=1.0)
    id = await bench.enqueue("pay")
    await eventually(lambda: stored(bench, id) == {"begun:charge"}, "the effect to be begun")
    (attempt,) = worker.attempts.values()
    await bench.abandon(worker)
    await eventually(lambda: attempt.lost, "the worker to notice that it has lost the run")
    bench.worker(runs)
    await bench.until(id, "failed")
    assert bench.error(id)[0] == "OutcomeUnknown"
    free.set()
    await eventually(lambda: not worker.attempts, "the lost attempt to end")
    assert calls == []


async def test_effect_that_waited_for_a_thread_is_called_when_the_lease_is_confirmed_again(
    bench: Bench, valkey_server: Server
) -> None:
    runs, calls, free = Registry[Any](), list[int](), threading.Event()

    @runs.handler
    async def pay(run: AsyncRun) -> None:
        asyncio.get_running_loop().run_in_executor(run._backing.threads, free.wait, 60)  # the only thread of the worker
        await run.once("charge", calls.append, 1)

    with closing(Proxy(valkey_server.port)) as proxy:
        worker, task = bench.worker(runs, url=proxy.url, concurrency=1, lease=1.0)
        id = await bench.enqueue("pay")
        await eventually(lambda: stored(bench, id) == {"begun:charge"}, "the effect to be begun")
        (attempt,) = worker.attempts.values()
        proxy.hold_requests()
        await eventually(lambda: attempt.lease.in_doubt, "the lease to expire in the worker")
        free.set()
        threads: Any = attempt.threads
        await asyncio.wrap_future(
            threads.submit(int)
        )  # the thread has taken the call of the effect from its queue before this one
        assert calls == [], "another worker may have the run"
        proxy.release_requests()
        await bench.until(id, "completed")
        assert calls == [1]
        await bench.end(worker, task)


@KINDS
async def test_failed_effect_is_checked_by_the_retry(bench: Bench, kind: str) -> None:
    calls = list[int]()

    def charge() -> str:
        calls.append(1)
        raise ConnectionError("the reply is lost")

    runs = effect_runs(charge, check=lambda: "found" if calls else NotDone, retry=Retry(limit=1, wait=0))
    bench.worker(runs)
    id = await bench.enqueue(kind)
    await bench.until(id, "delayed")
    assert stored(bench, id) == {"begun:charge"}
    await bench.make_due(id)
    await bench.until(id, "completed")
    assert (bench.result(id), calls) == ("found", [1])


async def test_effects_survive_a_retry_from_the_start(bench: Bench) -> None:
    runs, calls, seen = Registry[Any](), list[str](), list[int]()

    def charge() -> str:
        calls.append("charge")
        return "receipt"

    @runs.handler(retry=Retry(limit=1, wait=0, from_start=True))
    async def pay(run: AsyncRun) -> str:
        seen.append(len(run.messages))
        run.messages.append("begun")
        output: str = await run.once("charge", charge)
        if run.attempt == 1:
            raise ValueError("later")
        return output

    bench.worker(runs)
    id = await bench.enqueue("pay")
    await bench.until(id, "delayed")
    await bench.make_due(id)
    await bench.until(id, "completed")
    assert (bench.result(id), calls, seen) == ("receipt", ["charge"], [0, 0])


@pytest.mark.parametrize("from_start", [False, True])
@pytest.mark.parametrize("forget", [False, True, ["charge"], ["mail"]])
async def test_revived_run_repeats_only_forgotten_effects(bench: Bench, from_start: bool, forget: Any) -> None:
    runs, calls = Registry[Any](), list[str]()

    @runs.handler
    async def pay(run: AsyncRun) -> None:
        await run.once("charge", lambda: calls.append("charge"))
        await run.once("mail", lambda: calls.append("mail"))
        if run.attempt == 1:
            raise ValueError("later")

    bench.worker(runs)
    id = await bench.enqueue("pay")
    await bench.until(id, "failed")
    await revive(bench, id, from_start=from_start, forget_effects=forget)
    await bench.until(id, "completed")
    again = ["charge", "mail"] if forget is True else forget or []
    assert calls == ["charge", "mail", *again]


async def test_effect_is_not_repeated_after_the_doctor_has_moved_damaged_effects_aside(bench: Bench) -> None:
    runs, calls = Registry[Any](), list[int]()

    @runs.handler
    async def pay(run: AsyncRun) -> None:
        await run.once("charge", lambda: calls.append(run.attempt))
        if run.attempt == 1:
            raise ValueError

    bench.worker(runs)
    id = await bench.enqueue("pay")
    await bench.until(id, "failed")
    key = bench.namespace.keys_of(id).effects(id)
    bench.admin.delete(key)
    bench.admin.set(key, "damaged")
    report = await bench.do(examine(bench.namespace, repair=True))
    assert [finding.outcome for finding in report.findings] == ["kept"]
    assert "--forget-effects" in report.findings[0].sentence
    await revive(bench, id)
    await bench.until(id, "delayed")
    assert calls == [1]
    await bench.cancel(id)
    await bench.until(id, "cancelled")
    await revive(bench, id, "r2", forget_effects=True)
    await bench.until(id, "completed")
    assert calls == [1, 3]


async def test_drain_waits_for_the_effect_and_saves_it(bench: Bench) -> None:
    calls, entered, may_end = list[int](), asyncio.Event(), asyncio.Event()
    runs = Registry[Any]()

    @runs.handler(throttle=3600)
    async def pay(run: AsyncRun) -> str:
        async def charge() -> str:
            calls.append(1)
            entered.set()
            await may_end.wait()
            return "receipt"

        return await run.once("charge", charge)

    worker, task = bench.worker(runs)
    id = await bench.enqueue("pay")
    await entered.wait()
    worker.stop()
    await eventually(lambda: all(attempt.stopping for attempt in worker.attempts.values()), "the drain to begin")
    may_end.set()
    assert await task == 0
    assert stored(bench, id) == {"done:charge"}
    bench.worker(runs)
    await bench.until(id, "completed")
    assert (bench.result(id), calls) == ("receipt", [1])


async def test_large_outputs_are_loaded_in_pages(bench: Bench) -> None:
    runs, calls = Registry[Any](), list[int]()

    def charge() -> str:
        calls.append(1)
        return "x" * 50_000

    @runs.handler
    async def pay(run: AsyncRun) -> int:
        size = 0
        for number in range(3):
            size += len(await run.once(f"charge {number}", charge))
        if run.attempt == 1:
            raise ValueError("later")
        return size

    bench.worker(runs)
    id = await bench.enqueue("pay")
    await bench.until(id, "failed")
    await revive(bench, id, from_start=True)
    await bench.until(id, "completed")
    assert (bench.result(id), len(calls)) == (150_000, 3)
