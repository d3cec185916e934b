"""Handlers that wait: signals, timeouts and sleeps, lingering and suspended, on a real server."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from coordinator.encoding.codec import encode
from coordinator.errors import BadOption, Refused, Unreadable
from coordinator.model.run import RunView, Status
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import workers as worker_plans
from tests.integration import worker_harness
from tests.integration.worker_harness import Bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, BadSignal, Registry, Run, Stopped, WaitTimeout

ANY_LINGER = pytest.mark.parametrize("linger", [0.0, 30.0], ids=["suspended", "lingering"])
operations = itertools.count()


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        coordinator = asyncio.create_task(_coordinate(made))
        yield made
        coordinator.cancel()


async def _coordinate(bench: Bench) -> None:
    """Do the part of a coordinator that wakes runs."""
    while True:
        await bench.do(coordinator_plans.due(bench.namespace.keys(0)))
        await asyncio.sleep(0.05)  # a coordinator in miniature: it looks again and again


async def send(bench: Bench, id: str, topic: str, payload: Any = None) -> list[str]:
    plan = client_plans.send(
        bench.namespace.keys_of(id), id, topic=topic, payload=encode(payload, "p"), operation=f"o{next(operations)}"
    )
    return await bench.do(plan)


async def ended(bench: Bench, id: str) -> RunView:
    """Return the run when it has ended."""
    await bench.until(id, Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.DEAD)
    return await bench.view(id)


async def checkpointed(bench: Bench, id: str) -> None:
    keys = bench.namespace.keys_of(id)
    await eventually(lambda: bench.admin.exists(keys.ckpt(id)) == 1, f"a checkpoint of {id}")


@ANY_LINGER
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_handler_receives_signals_in_order_and_gets_them_again_when_it_is_resumed(
    bench: Bench, linger: float, plain: bool
) -> None:
    runs, seen = Registry(), list[Any]()

    if plain:

        @runs.handler(kind="chat", linger=linger)
        def plain_chat(run: Run) -> list[Any]:
            seen.append(run.resumed.cause if run.resumed else "first")
            return [run.receive("word").payload for _ in range(3)]
    else:

        @runs.handler(kind="chat", linger=linger)
        async def chat(run: AsyncRun) -> list[Any]:
            seen.append(run.resumed.cause if run.resumed else "first")
            return [(await run.receive("word")).payload for _ in range(3)]

    bench.worker(runs)
    id = await bench.enqueue("chat")
    for number in range(3):
        assert await send(bench, id, "word", number) == ["sent"]
        await asyncio.sleep(0.1)  # some signals come while the handler waits, and some while it does not
    view = await ended(bench, id)
    assert (view.status, bench.result(id)) == (Status.COMPLETED, [0, 1, 2])
    assert view.story == ()
    assert (view.counters.recoveries, view.counters.failures, view.counters.releases) == (0, 0, 0)
    assert set(seen[1:]) <= {"wake"}


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_suspended_run_holds_no_slot_thread_lease_or_connection(bench: Bench, plain: bool) -> None:
    runs = Registry()
    if plain:  # a worker with one slot has one thread for its handlers

        @runs.handler(kind="waiting", linger=0)
        def plain_waiting(run: Run) -> str:
            return str(run.receive("go").payload)

        @runs.handler(kind="quick")
        def plain_quick(run: Run) -> str:
            return "done"

    else:

        @runs.handler(linger=0)
        async def waiting(run: AsyncRun) -> str:
            return str((await run.receive("go")).payload)

        @runs.handler
        async def quick(run: AsyncRun) -> str:
            return "done"

    worker, _ = bench.worker(runs, concurrency=1)
    assert (await ended(bench, await bench.enqueue("quick"))).status is Status.COMPLETED
    connections = len(bench.admin.client_list())
    waiters = [await bench.enqueue("waiting") for _ in range(50)]
    for id in waiters:
        await bench.until(id, Status.WAITING)
    await eventually(lambda: not worker.attempts, "the worker to hold no run")
    assert len(bench.admin.client_list()) < connections + 10, "the pools of a worker may have grown a little"
    for id in waiters:
        assert not bench.admin.hexists(bench.namespace.keys_of(id).run(id), "token"), (
            "a run without an owner has no lease"
        )
    other = await bench.enqueue("quick")
    assert (await ended(bench, other)).status is Status.COMPLETED
    for id in waiters:
        await send(bench, id, "go", id)
    for id in waiters:
        await ended(bench, id)
        assert bench.result(id) == id


async def test_wait_in_the_last_free_slot_does_not_linger(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=600)
    async def waiting(run: AsyncRun) -> str:
        return str((await run.receive("go")).payload)

    worker, _ = bench.worker(runs, concurrency=2)
    first = await bench.enqueue("waiting")
    await checkpointed(bench, first)
    assert (await bench.view(first)).status is Status.RUNNING, "it lingers beside a free slot"
    second = await bench.enqueue("waiting")
    await eventually(lambda: len(worker.attempts) < 2, "a free slot")
    await eventually(
        lambda: sorted(bench.status(id) for id in (first, second))[-1] == "waiting", "a run that is suspended"
    )
    for id in (first, second):
        await send(bench, id, "go", "there")
        await ended(bench, id)
        assert bench.result(id) == "there"


@ANY_LINGER
async def test_timeout_raises_or_gives_the_default(bench: Bench, linger: float) -> None:
    runs = Registry()

    @runs.handler(linger=linger)
    async def waiting(run: AsyncRun) -> list[Any]:
        first = await run.receive("a", timeout=0.2, default="nothing")
        try:
            await run.receive("a", "b", timeout=timedelta(milliseconds=200))
        except WaitTimeout as error:
            return [first, str(error), isinstance(error, TimeoutError)]
        return []

    bench.worker(runs)
    id = await bench.enqueue("waiting")
    assert (await ended(bench, id)).status is Status.COMPLETED
    assert bench.result(id) == ["nothing", "no signal of topic 'a' or 'b' arrived within 0.2 s", True]


@ANY_LINGER
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_sleep_ends_when_its_time_has_come(bench: Bench, linger: float, plain: bool) -> None:
    runs = Registry()

    if plain:

        @runs.handler(kind="sleepy", linger=linger)
        def plain_sleepy(run: Run) -> str:
            run.sleep(0.3)
            run.sleep(until=datetime.now(UTC) + timedelta(seconds=0.1))
            run.sleep(until=datetime(2020, 1, 1, tzinfo=UTC))
            return "awake"
    else:

        @runs.handler(kind="sleepy", linger=linger)
        async def sleepy(run: AsyncRun) -> str:
            await run.sleep(0.3)
            await run.sleep(until=datetime.now(UTC) + timedelta(seconds=0.1))
            await run.sleep(until=datetime(2020, 1, 1, tzinfo=UTC))
            return "awake"

    bench.worker(runs)
    id = await bench.enqueue("sleepy")
    view = await ended(bench, id)
    assert (view.status, bench.result(id)) == (Status.COMPLETED, "awake")
    assert view.ended is not None
    assert (view.ended - view.created) >= timedelta(seconds=0.4)


async def test_interrupted_sleep_continues_and_does_not_restart(bench: Bench) -> None:
    runs, ends = Registry(), list[str]()

    @runs.handler(linger=60)
    async def sleepy(run: AsyncRun) -> None:
        ends.append(str(run._draft.bookkeeping.deadlines))
        await run.sleep(1.5)

    worker, _ = bench.worker(runs)
    id = await bench.enqueue("sleepy")
    await checkpointed(bench, id)
    await bench.abandon(worker)
    view = await ended(bench, id)
    assert view.ended is not None
    assert ends[0] == "{}"
    assert "wait:-:sleep#0" in ends[1]
    assert timedelta(seconds=1.4) < view.ended - view.created < timedelta(seconds=2.9)


async def test_what_was_appended_before_a_wait_is_saved(bench: Bench) -> None:
    runs, found = Registry(), list[int]()

    @runs.handler(linger=0, throttle=60)
    async def talk(run: AsyncRun) -> int:
        found.append(len(run.messages))
        if not run.messages:
            run.messages.append({"role": "user", "content": "hello"})
            run.checkpoint()
            run.messages.append({"role": "assistant", "content": "may I?"})
        await run.receive("approval")
        return len(run.messages)

    bench.worker(runs)
    id = await bench.enqueue("talk")
    await bench.until(id, Status.WAITING)
    await send(bench, id, "approval")
    await ended(bench, id)
    assert (found, bench.result(id)) == ([0, 2], 2)


async def test_look_without_waiting_finds_what_is_there_inside_phases_too(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=0)
    async def looking(run: AsyncRun) -> list[Any]:
        async def inside() -> Any:
            return (await run.receive("a", timeout=0)).payload

        await run.receive("go")
        first = await run.phase("look", inside)
        await run.receive("go")
        second = (await run.receive("a", timeout=0)).payload
        return [first, second, await run.receive("a", timeout=0, default="nothing")]

    bench.worker(runs)
    id = await bench.enqueue("looking")
    await bench.until(id, Status.WAITING)
    await send(bench, id, "a", 1)
    await send(bench, id, "a", 2)
    await send(bench, id, "go", 1)
    await bench.until(id, Status.WAITING)
    await send(bench, id, "go", 2)
    await ended(bench, id)
    assert bench.result(id) == [1, 2, "nothing"]


async def test_waits_in_wrong_places_and_with_wrong_times_are_refused(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=0)
    async def wrong(run: AsyncRun) -> list[str]:
        async def in_phase() -> None:
            await run.receive("a")

        async def in_task() -> None:
            await asyncio.create_task(run.receive("a"))

        said = []
        for attempt in (
            lambda: run.phase("wait", in_phase),
            in_task,
            lambda: run.sleep(-1),
            lambda: run.sleep(float("nan")),
            lambda: run.sleep(1e12),
            run.sleep,
            lambda: run.sleep(until=datetime(2030, 1, 1)),  # noqa: DTZ001  # without a time zone
            lambda: run.receive("a", timeout=-1),
            run.receive,
            lambda: run.receive("not valid"),
        ):
            try:
                await attempt()
            except (Refused, BadOption) as error:
                said.append(str(error).split(":")[0])
        return said

    bench.worker(runs)
    id = await bench.enqueue("wrong")
    await ended(bench, id)
    said = bench.result(id)
    assert len(said) == 10, said
    assert said[0].startswith(
        "run.receive can't be called inside a phase or an effect, because the run would hold its slot"
    )
    assert (
        said[1]
        == "a run can wait and enqueue only in its handler's own task or thread, not in one that the handler started"
    )


async def test_absurd_or_unclear_sleep_is_refused(bench: Bench) -> None:
    runs = Registry()

    @runs.handler
    async def sleeper(run: AsyncRun) -> list[str]:
        said = []
        for arguments in (
            {"seconds": -5}, {"seconds": 1e300}, {"seconds": math.nan}, {"seconds": "10"}, {"seconds": timedelta(-1)}, {},
            {"until": datetime(9999, 1, 1, tzinfo=UTC)}, {"until": datetime(2030, 1, 1)},  # noqa: DTZ001  # that is the mistake
        ):  # fmt: skip
            try:
                await run.sleep(**cast("Any", arguments))
            except BadOption as error:
                said.append(str(error))
        return said

    bench.worker(runs)
    id = await bench.enqueue("sleeper")
    await eventually(lambda: bench.status(id) not in ("queued", "running"), "an end or a wait")
    assert bench.result(id) == [
        "seconds=-5 is not a number of seconds, or a timedelta, from 0 to 100 years",
        "seconds=1e+300 is not a number of seconds, or a timedelta, from 0 to 100 years",
        "seconds=nan is not a number of seconds, or a timedelta, from 0 to 100 years",
        "seconds='10' is not a number of seconds, or a timedelta, from 0 to 100 years",
        "seconds=datetime.timedelta(days=-1) is not a number of seconds, or a timedelta, from 0 to 100 years",
        "run.sleep needs a number of seconds or until=, and not both",
        "run.sleep(until=…) names a time that is more than 100 years away",
        "run.sleep(until=datetime.datetime(2030, 1, 1, 0, 0)) needs a datetime with a time zone",
    ]


async def test_handler_that_swallows_the_stop_of_a_wait_is_suspended_anyway(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    runs, raised = Registry(), list[str]()

    @runs.handler(linger=0)
    async def stubborn(run: AsyncRun) -> str:
        try:
            return str((await run.receive("go")).payload)
        except Stopped as stop:
            raised.append(stop.why)
        try:
            await run.sleep(1)
        except Stopped as stop:
            raised.append(stop.why)
        return "wrong"

    bench.worker(runs)
    id = await bench.enqueue("stubborn")
    await bench.until(id, Status.WAITING)
    assert raised == ["wait", "wait"]
    assert "its result is discarded" in caplog.text
    await send(bench, id, "go", "right")
    await ended(bench, id)
    assert bench.result(id) == "right"


async def test_cancel_ends_a_waiting_run_and_a_lingering_one(bench: Bench) -> None:
    runs, cleaned = Registry(), list[str]()

    @runs.handler(linger=0)
    async def suspended(run: AsyncRun) -> None:
        await run.receive("go")

    @runs.handler(linger=60)
    async def lingering(run: AsyncRun) -> None:
        try:
            await run.receive("go")
        finally:
            cleaned.append(run.stopping.why if run.stopping else "")

    bench.worker(runs)
    first, second = await bench.enqueue("suspended"), await bench.enqueue("lingering")
    await bench.until(first, Status.WAITING)
    await checkpointed(bench, second)
    for id in (first, second):
        await bench.cancel(id)
        assert (await ended(bench, id)).status is Status.CANCELLED
    assert cleaned == ["cancel"]


async def test_drain_releases_a_lingering_run_which_waits_on_the_next_worker(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=60)
    async def lingering(run: AsyncRun) -> str:
        return str((await run.receive("go")).payload)

    worker, task = bench.worker(runs)
    id = await bench.enqueue("lingering")
    await checkpointed(bench, id)
    assert await bench.end(worker, task) == 0
    assert (await bench.view(id)).status is Status.QUEUED
    bench.worker(runs)
    await send(bench, id, "go", "there")
    await ended(bench, id)
    assert bench.result(id) == "there"


async def test_run_that_failed_with_a_timeout_waits_again_when_it_is_revived(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=60)
    async def waiting(run: AsyncRun) -> str:
        return str((await run.receive("go", timeout=0.5)).payload)

    bench.worker(runs)
    id = await bench.enqueue("waiting")
    view = await ended(bench, id)
    assert view.error is not None
    assert (view.status, view.error.type.rpartition(".")[2]) == (Status.FAILED, "WaitTimeout")
    await bench.do(client_plans.revive(bench.namespace.keys_of(id), id, operation="r"))
    await send(bench, id, "go", "late")
    await ended(bench, id)
    assert bench.result(id) == "late"


@pytest.mark.parametrize("timeout", [None, 0], ids=["wait", "look"])
async def test_run_that_failed_with_a_bad_signal_receives_the_next_one_when_it_is_revived(
    bench: Bench, timeout: float | None
) -> None:
    runs = Registry()

    @runs.handler(linger=60, topics={"approval": Approval})
    async def typed(run: AsyncRun) -> str:
        await run.receive("go")
        return str((await run.receive("approval", timeout=timeout)).payload.by)

    bench.worker(runs)
    id = await bench.enqueue("typed")
    await send(bench, id, "approval", "nonsense")
    await send(bench, id, "approval", {"by": "ada", "granted": True})
    await send(bench, id, "go")
    view = await ended(bench, id)
    assert view.error is not None
    assert (view.status, view.error.type.rpartition(".")[2]) == (Status.FAILED, "BadSignal")
    assert view.error.message.endswith("; if the run is revived, it waits for the next signal")
    await bench.do(client_plans.revive(bench.namespace.keys_of(id), id, operation="r"))
    await ended(bench, id)
    assert bench.result(id) == "ada"


async def test_bad_signal_that_a_handler_has_caught_is_not_awaited_again_when_the_run_is_revived(bench: Bench) -> None:
    runs, failures = Registry(), [True]

    async def work() -> None:
        if failures:
            failures.pop()
            raise RuntimeError("the work fails once")

    @runs.handler(linger=60, topics={"approval": Approval})
    async def typed(run: AsyncRun) -> str:
        try:
            signal = await run.receive("approval")
        except BadSignal:
            signal = await run.receive("approval")
            await run.phase("work", work)
        return str(signal.payload.by)

    bench.worker(runs)
    id = await bench.enqueue("typed")
    await send(bench, id, "approval", "nonsense")
    await send(bench, id, "approval", {"by": "ada", "granted": True})
    assert (await ended(bench, id)).status is Status.FAILED
    await bench.do(client_plans.revive(bench.namespace.keys_of(id), id, operation="r"))
    await ended(bench, id)
    assert bench.result(id) == "ada"


async def test_run_keeps_its_slot_while_an_older_process_is_alive(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Registry()

    @runs.handler(linger=0)
    async def waiting(run: AsyncRun) -> str:
        return str((await run.receive("go")).payload)

    keys = bench.namespace.keys(0)
    old = worker_plans.WorkerRecord("w-old", 60_000, "host", 7, "", "fleet", "-", 1, (), knows=())
    await bench.do(worker_plans.join(keys, "", old))
    worker, _ = bench.worker(runs)
    id = await bench.enqueue("waiting")
    said = "worker w-old (process 7 on host) was started with an older version"
    await eventually(lambda: said in caplog.text, "the warning about the older process")
    assert len(worker.attempts) == 1
    await bench.do(worker_plans.leave(keys, "w-old"))
    await bench.until(id, Status.WAITING)


@dataclass
class Approval:
    """A payload that is not plain data."""

    by: str
    granted: bool


async def test_declared_topic_gives_typed_payloads_and_refuses_others(bench: Bench) -> None:
    runs = Registry()

    @runs.handler(linger=60, topics={"approval": Approval})
    async def typed(run: AsyncRun) -> list[Any]:
        signal = await run.receive("approval")
        try:
            await run.receive("approval")
        except Unreadable as error:
            return [type(signal.payload).__name__, signal.payload.by, "approval" in str(error)]
        return []

    assert typed.write_signal("approval", Approval("ada", True)) == {"by": "ada", "granted": True}
    bench.worker(runs)
    id = await bench.enqueue("typed")
    await send(bench, id, "approval", {"by": "ada", "granted": True})
    await send(bench, id, "approval", "nonsense")
    await ended(bench, id)
    assert bench.result(id) == ["Approval", "ada", True]
