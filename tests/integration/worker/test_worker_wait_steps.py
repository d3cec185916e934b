"""Waits as steps of a handler, on a real server: their order, and what other tasks and stops do to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from coordinator.errors import Refused
from coordinator.model.run import Status
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans.attempts import Condition
from tests.integration import worker_harness
from tests.integration.worker.test_worker_waits import checkpointed, ended, send
from tests.integration.worker_harness import Bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry, RetryLater, Signal, Stopped, WaitTimeout
from workers.attempt.waits import waiting
from workers.handlers.checkpoint import draft


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        coordinator = asyncio.create_task(_wake_runs(made))
        yield made
        coordinator.cancel()


async def _wake_runs(bench: Bench) -> None:
    """Do the part of a coordinator that wakes runs."""
    while True:
        await bench.do(coordinator_plans.due(bench.namespace.keys(0)))
        await asyncio.sleep(0.05)  # a coordinator in miniature: it looks again and again


async def _has(received: list[int], number: int) -> None:
    await eventually(lambda: number in received, f"signal {number}")


async def test_wait_that_the_handler_gives_up_keeps_its_place_for_the_next_one(bench: Bench) -> None:
    runs, given_up = Registry(), list[int]()

    @runs.handler(linger=1)
    async def impatient(run: AsyncRun) -> list[int]:
        while run.attempt == 1 and len(given_up) < 3:
            try:
                async with asyncio.timeout(0.05):
                    await run.receive("a")
            except TimeoutError:
                given_up.append(run.attempt)
        first = await run.receive("a")
        return [first.number, (await run.receive("b")).number]

    bench.worker(runs)
    id = await bench.enqueue("impatient")
    await eventually(lambda: len(given_up) == 3, "three waits that were given up")
    await send(bench, id, "a")
    await bench.until(id, Status.WAITING)
    await send(bench, id, "b")
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert bench.result(id) == [1, 1]


async def test_signal_is_received_once_where_a_task_looks_beside_a_wait(bench: Bench) -> None:
    runs, received = Registry(), list[int]()

    @runs.handler(linger=60)
    async def both(run: AsyncRun) -> None:
        async def look() -> None:
            while True:
                if (signal := await run.receive("a", timeout=0, default=None)) is not None:
                    received.append(signal.number)

        looking = asyncio.create_task(look())
        try:
            while (signal := await run.receive("a", "end")).topic == "a":
                received.append(signal.number)
        finally:
            looking.cancel()

    bench.worker(runs)
    id = await bench.enqueue("both")
    for number in range(1, 11):
        await send(bench, id, "a")
        await _has(received, number)
    await send(bench, id, "end")
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert received == list(range(1, 11))


async def test_drain_at_a_wait_saves_what_the_turn_has_appended(bench: Bench) -> None:
    runs, called, asked, answer = Registry(), list[int](), asyncio.Event(), asyncio.Event()

    @runs.handler(linger=0)
    async def chat(run: AsyncRun) -> int:
        async for _ in run.loop(1):
            if not run.messages:
                called.append(run.attempt)
                asked.set()
                await answer.wait()
                run.messages.append({"role": "assistant", "content": "may I?"})
            await run.receive("approval")
        return len(run.messages)

    worker, task = bench.worker(runs)
    id = await bench.enqueue("chat")
    await asked.wait()
    (attempt,) = worker.attempts.values()
    worker.stop()
    await eventually(lambda: attempt.stopping is not None, "the drain to ask the handler")
    answer.set()
    await task
    bench.worker(runs)
    await send(bench, id, "approval")
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert (called, bench.result(id)) == ([1], 1)


async def test_run_with_as_many_waits_as_allowed_can_be_resumed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "MOST_WAITS", 3)
    runs = Registry()

    @runs.handler(linger=0)
    async def patient(run: AsyncRun) -> list[int]:
        numbers = [(await run.receive("a")).number for _ in range(3)]
        await run.flush()
        if run.attempt == 1:
            raise RetryLater("again", after=0)
        return numbers

    bench.worker(runs)
    id = await bench.enqueue("patient")
    for _ in range(3):
        await send(bench, id, "a")
    view = await ended(bench, id)
    assert (view.status, bench.result(id)) == (Status.COMPLETED, [1, 2, 3]), view.error


async def test_wait_that_timed_out_is_progress_so_that_short_sleeps_are_not_delayed(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=0)
    async def restless(run: AsyncRun) -> None:
        for _ in range(5):
            await run.sleep(0.001)
        for _ in range(5):
            await run.receive("a", timeout=0.001, default=None)

    bench.worker(runs, concurrency=1)
    id = await bench.enqueue("restless")
    await bench.until(id, Status.COMPLETED, Status.DELAYED)
    assert bench.status(id) == Status.COMPLETED


async def test_waits_that_timed_out_count_against_the_limit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "MOST_WAITS", 3)
    runs = Registry()

    @runs.handler(linger=5)
    async def restless(run: AsyncRun) -> None:
        for _ in range(4):
            await run.sleep(0)

    bench.worker(runs)
    id = await bench.enqueue("restless")
    view = await ended(bench, id)
    assert view.error is not None
    assert view.error.message.startswith("a run can wait or enqueue 3 times outside of run.loop")


async def test_look_that_finds_nothing_and_fails_the_run_keeps_the_waits_before_it(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=5)
    async def strict(run: AsyncRun) -> list[int]:
        first = await run.receive("a")
        return [first.number, (await run.receive("b", timeout=0)).number]

    bench.worker(runs)
    id = await bench.enqueue("strict")
    await send(bench, id, "a")
    assert (await ended(bench, id)).status is Status.FAILED
    assert bench.admin.hexists(bench.namespace.keys_of(id).ckpt(id), "wait:-:receive a#0")


async def test_wait_ends_at_a_drain_whose_stop_another_task_has_got(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the worker while the wait lingers. A wait that asks the server at this moment may get the stop itself."""
    runs, taken, lingers, linger = Registry(), asyncio.Event(), asyncio.Event(), waiting.WaitingAttempt.linger

    async def noted(attempt: waiting.WaitingAttempt, condition: Condition, now: int) -> None:
        lingers.set()
        await linger(attempt, condition, now)

    monkeypatch.setattr(waiting, "LOOK_SECONDS", 3.0)
    monkeypatch.setattr(waiting.WaitingAttempt, "linger", noted)

    @runs.handler(linger=600, grace=300)
    async def shared(run: AsyncRun) -> None:
        async def save() -> None:
            try:
                while True:
                    run.checkpoint()
                    await asyncio.sleep(0)  # lets the other task run once
            except Stopped:
                taken.set()

        saving = asyncio.create_task(save())
        try:
            await run.receive("a")
        finally:
            saving.cancel()

    worker, task = bench.worker(runs)
    id = await bench.enqueue("shared")
    async with asyncio.timeout(30):  # far less than the grace
        await lingers.wait()
        assert await bench.end(worker, task) == 0
    assert taken.is_set()
    assert bench.status(id) == Status.QUEUED


async def test_phase_that_would_run_beside_a_wait_is_refused(bench: Bench) -> None:
    runs, said, called = Registry(), list[str](), list[int]()

    @runs.handler(linger=60)
    async def beside(run: AsyncRun) -> int:
        async def work() -> None:
            called.append(run.attempt)

        async def start_late() -> None:
            await checkpointed(bench, run.id)  # the wait has begun
            try:
                await run.phase("work", work)
            except Refused as error:
                said.append(str(error))

        late = asyncio.create_task(start_late())
        number = (await run.receive("a")).number
        await late
        return number

    bench.worker(runs)
    id = await bench.enqueue("beside")
    await eventually(lambda: bool(said or called), "the phase to be refused")
    await send(bench, id, "a")
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert (called, said[0].partition(":")[0]) == ([], "phase 'work' can't begin while the run waits")


async def test_look_that_is_under_way_when_its_turn_ends_gets_its_signal(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=60)
    async def looking(run: AsyncRun) -> int:
        looks = list[asyncio.Task[Signal]]()
        await run.receive("go")
        async for turn in run.loop(2):
            if turn == 0:
                looks.append(asyncio.create_task(run.receive("a", timeout=0)))
                await asyncio.sleep(0)  # the look begins, and has no answer yet
        return (await looks[0]).number

    bench.worker(runs)
    id = await bench.enqueue("looking")
    for topic in ("a", "go"):
        await send(bench, id, topic)
    view = await ended(bench, id)
    assert (view.status, bench.result(id)) == (Status.COMPLETED, 1), view.error


async def test_phase_that_is_called_again_after_an_error_gets_the_same_signals(bench: Bench) -> None:
    runs, numbers = Registry(), list[int]()

    @runs.handler(linger=60)
    async def repeating(run: AsyncRun) -> None:
        async def work() -> None:
            numbers.append((await run.receive("a", timeout=0)).number)
            if len(numbers) == 1:
                raise ValueError

        await run.receive("go")
        with contextlib.suppress(ValueError):
            await run.phase("work", work)
        await run.phase("work", work)

    bench.worker(runs)
    id = await bench.enqueue("repeating")
    for topic in ("a", "a", "go"):
        await send(bench, id, topic)
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert numbers == [1, 1]


async def test_sleep_until_a_time_before_1970_ends_at_once(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=60)
    async def late(run: AsyncRun) -> None:
        await run.sleep(until=datetime(1950, 1, 1, tzinfo=UTC))

    bench.worker(runs)
    id = await bench.enqueue("late")
    view = await ended(bench, id)
    assert view.status is Status.COMPLETED, view.error


async def test_run_that_failed_because_of_a_timeout_waits_again_when_it_is_revived(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=60)
    async def waiting(run: AsyncRun) -> int:
        try:
            return (await run.receive("go", timeout=0.5)).number
        except WaitTimeout as error:
            raise LookupError("nobody has approved it") from error

    bench.worker(runs)
    id = await bench.enqueue("waiting")
    assert (await ended(bench, id)).status is Status.FAILED
    await bench.do(client_plans.revive(bench.namespace.keys_of(id), id, operation="r"))
    await send(bench, id, "go")
    assert (await ended(bench, id)).status is Status.COMPLETED
