"""run.limit in a real worker: external calls keep to their rate, and stops, cancels and losses give places back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from coordinator import AsyncClient
from coordinator.model.run_id import partition_for
from coordinator.store import scripts
from coordinator.store.keys import Keys
from coordinator.store.script import Script
from tests.integration import worker_harness
from tests.integration.worker_harness import Bench, performing
from tests.proxy import Proxy, naming
from tests.servers import Server
from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry, Run
from workers.attempt.waits.limits import ServerLimits

KINDS = pytest.mark.parametrize("kind", ["plain", "async"])


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace, partitions=2) as made:
        yield made


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(bench.url, bench.namespace.name) as made:
        yield made


class Outside:
    """The other side of the calls: counts them, and answers when the test lets it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.inside = self.most = 0
        self.answer = asyncio.Event()

    def enter(self, name: str) -> None:
        self.calls.append(name)
        self.inside += 1
        self.most = max(self.most, self.inside)

    def leave(self) -> None:
        self.inside -= 1


def callers(outside: Outside, loop: asyncio.AbstractEventLoop | None = None) -> Registry[Any]:
    """Return handlers, plain and async, that call the outside under a limit."""
    runs: Registry[Any] = Registry()
    running = loop or asyncio.get_running_loop()

    async def answered() -> None:
        await outside.answer.wait()

    @runs.handler(kind="plain")
    def plain(run: Run, name: str = "api", cost: int = 1, real: int | None = None, back_off: float = 0) -> str:
        with run.limit(name, cost=cost) as limit:
            outside.enter(run.id)
            try:
                asyncio.run_coroutine_threadsafe(answered(), running).result()
                if back_off:
                    limit.back_off(back_off)
                if real is not None:
                    limit.cost = real
            finally:
                outside.leave()
        return "called"

    @runs.handler(kind="async")
    async def asynchronous(
        run: AsyncRun, name: str = "api", cost: int = 1, real: int | None = None, back_off: float = 0
    ) -> str:
        async with run.limit(name, cost=cost) as limit:
            outside.enter(run.id)
            try:
                await outside.answer.wait()
                if back_off:
                    limit.back_off(back_off)
                if real is not None:
                    limit.cost = real
            finally:
                outside.leave()
        return "called"

    return runs


def level(bench: Bench, name: str = "api") -> float:
    keys = bench.namespace.keys(partition_for(name, 2))
    return float(bench.admin.hget(keys.bucket(name), "level") or 0)


def counts(bench: Bench, name: str = "api") -> tuple[int, int]:
    """Return the numbers of calls that are under way and that wait."""
    keys = bench.namespace.keys(partition_for(name, 2))
    return bench.admin.zcard(keys.holders(name)), bench.admin.zcard(keys.turns(name))


async def until(bench: Bench, held: int, waiting: int) -> None:
    await eventually(lambda: counts(bench) == (held, waiting), f"{held} calls are under way, and {waiting} wait")


@KINDS
async def test_no_more_calls_than_the_limit_are_under_way_and_all_finish(
    bench: Bench, client: AsyncClient, kind: str
) -> None:
    outside = Outside()
    await client.set_rate("api", at_once=2)
    ids = [await bench.enqueue(kind, partition=number % 2) for number in range(7)]
    bench.worker(callers(outside))
    bench.worker(callers(outside))
    await until(bench, 2, 5)
    await eventually(lambda: outside.inside == 2, "both places are used by handlers")
    outside.answer.set()
    for id in ids:
        assert await bench.outcome(id) == "completed"
    assert (outside.most, len(outside.calls)) == (2, 7)
    await until(bench, 0, 0)


@KINDS
async def test_limit_without_a_rate_fails_the_run_with_the_command_that_sets_one(
    bench: Bench, client: AsyncClient, kind: str
) -> None:
    id = await bench.enqueue(kind)
    bench.worker(callers(Outside()))
    assert await bench.outcome(id) == "failed"
    type, message, _ = bench.error(id)
    assert type.endswith("NotConfigured")
    assert "coordinator rate set api --rate" in message


@KINDS
async def test_cost_above_the_burst_fails_the_run(bench: Bench, client: AsyncClient, kind: str) -> None:
    await client.set_rate("api", "10/s", burst=5)
    id = await bench.enqueue(kind, {"cost": 6})
    bench.worker(callers(Outside()))
    assert await bench.outcome(id) == "failed"
    assert "cost 6 of limit 'api' is above its burst of 5" in bench.error(id)[1]


@KINDS
async def test_real_cost_is_settled_after_the_call(bench: Bench, client: AsyncClient, kind: str) -> None:
    await client.set_rate("api", "1/day", burst=1000)
    outside = Outside()
    outside.answer.set()
    id = await bench.enqueue(kind, {"cost": 900, "real": 50})
    bench.worker(callers(outside))
    assert await bench.outcome(id) == "completed"
    await eventually(lambda: 49 < level(bench) <= 50, "the real cost")


@KINDS
async def test_back_off_stops_every_process_until_it_is_over(bench: Bench, client: AsyncClient, kind: str) -> None:
    await client.set_rate("api", "1000/s", burst=1000)
    outside = Outside()
    outside.answer.set()
    first = await bench.enqueue(kind, {"back_off": 0.5})
    bench.worker(callers(outside))
    assert await bench.outcome(first) == "completed"
    keys = bench.namespace.keys(partition_for("api", 2))
    await eventually(lambda: int(bench.admin.hget(keys.bucket("api"), "pause") or 0) == 500, "the back-off")
    second = await bench.enqueue(kind)
    bench.worker(callers(outside))
    await until(bench, 0, 1)
    assert await bench.outcome(second) == "completed"


@KINDS
async def test_drain_ends_a_wait_and_gives_the_turn_back(bench: Bench, client: AsyncClient, kind: str) -> None:
    await client.set_rate("api", at_once=0)
    id = await bench.enqueue(kind)
    worker, task = bench.worker(callers(Outside()), grace=600.0)
    await until(bench, 0, 1)
    assert await bench.end(worker, task) == 0
    assert bench.status(id) == "queued"
    assert counts(bench) == (0, 0)


async def test_view_says_for_which_limit_a_run_waits_and_since_when(bench: Bench, client: AsyncClient) -> None:
    await client.set_rate("api", at_once=0)
    id = await bench.enqueue("async")
    bench.worker(callers(Outside()), lease=1.0)
    keys = bench.namespace.keys_of(id)
    (worker,) = await eventually(lambda: bench.admin.zrange(keys.workers(), 0, -1), "the worker has joined")
    await eventually(lambda: bench.admin.hget(keys.worker(worker.decode()), "limited"), "a heartbeat tells it")
    assert "; a call waits for limit 'api' since 20" in (await bench.view(id)).why
    await client.set_rate("api", at_once=1)
    await until(bench, 1, 0)
    await eventually(lambda: not bench.admin.hget(keys.worker(worker.decode()), "limited"), "the wait is over")
    assert "limit" not in (await bench.view(id)).why


@KINDS
async def test_cancel_ends_a_wait_and_gives_the_turn_back(bench: Bench, client: AsyncClient, kind: str) -> None:
    await client.set_rate("api", at_once=0)
    id = await bench.enqueue(kind)
    bench.worker(callers(Outside()))
    await until(bench, 0, 1)
    await bench.cancel(id)
    assert await bench.outcome(id) == "cancelled"
    await until(bench, 0, 0)


async def test_drain_does_not_wait_for_a_limit_in_the_middle_of_a_turn(bench: Bench, client: AsyncClient) -> None:
    await client.set_rate("api", at_once=0)
    runs: Registry[Any] = Registry()

    @runs.handler
    async def agent(run: AsyncRun) -> None:
        async for _ in run.loop(2):
            run.messages.append("work that a stop would repeat")
            async with run.limit("api"):
                raise AssertionError("the call started")

    id = await bench.enqueue("agent")
    worker, task = bench.worker(runs, grace=600.0)
    await until(bench, 0, 1)
    assert await bench.end(worker, task) == 0
    assert bench.status(id) == "queued"
    assert counts(bench) == (0, 0)


async def test_timeout_of_the_handler_ends_a_wait_and_gives_the_turn_back(bench: Bench, client: AsyncClient) -> None:
    await client.set_rate("api", at_once=0)
    runs: Registry[Any] = Registry()

    @runs.handler
    async def impatient(run: AsyncRun) -> str:
        try:
            async with asyncio.timeout(0.1), run.limit("api"):
                return "called"
        except TimeoutError:
            return "too late"

    id = await bench.enqueue("impatient")
    bench.worker(runs)
    assert await bench.outcome(id) == "completed"
    assert bench.result(id) == "too late"
    await until(bench, 0, 0)


async def test_place_of_an_abandoned_worker_is_free_and_its_run_gets_one_again(
    bench: Bench, client: AsyncClient
) -> None:
    outside = Outside()
    await client.set_rate("api", at_once=1)
    id = await bench.enqueue("async")
    worker, _ = bench.worker(callers(outside))
    await performing(worker)
    await until(bench, 1, 0)
    for partition in (0, 1):
        await bench.abandon(worker, partition)
    await bench.attempted(id, 2)
    await eventually(lambda: len(outside.calls) == 2, "the second attempt has the place")
    outside.answer.set()
    assert await bench.outcome(id) == "completed"


async def worker_after_a_call(bench: Bench, outside: Outside) -> tuple[str, Keys]:
    """Start a worker that makes one call. Return its id in the partition of the limit, and the keys of this partition."""
    worker, _ = bench.worker(callers(outside))
    outside.answer.set()
    assert await bench.outcome(await bench.enqueue("async")) == "completed"
    await until(bench, 0, 0)
    partition = partition_for("api", 2)
    return worker._membership.leases[partition].worker, bench.namespace.keys(partition)


async def test_call_whose_end_the_server_has_lost_frees_its_place(bench: Bench, client: AsyncClient) -> None:
    """Put an ended call back, as in a failover that loses the last writes. The call that is still open keeps its place."""
    outside = Outside()
    await client.set_rate("api", at_once=2)
    worker, keys = await worker_after_a_call(bench, outside)
    outside.answer.clear()
    await bench.enqueue("async")
    await until(bench, 1, 0)
    lost, holders = f"{worker}-1", keys.holders("api")
    bench.admin.zadd(holders, {lost: 1})
    await bench.enqueue("async")
    await eventually(lambda: outside.inside == 2, "the waiting call has the place")
    assert counts(bench) == (2, 0)
    assert bench.admin.zscore(holders, lost) is None
    outside.answer.set()
    await until(bench, 0, 0)


async def test_turns_whose_ends_the_server_has_lost_leave_the_line(bench: Bench, client: AsyncClient) -> None:
    """Put three requests before the first of the line. All of them leave it after one question."""
    outside = Outside()
    await client.set_rate("api", at_once=1)
    worker, keys = await worker_after_a_call(bench, outside)
    lost = {f"{worker}-{number}": -number for number in (901, 902, 903)}  # before any ticket that the server gives
    bench.admin.zadd(keys.turns("api"), lost)
    assert await bench.outcome(await bench.enqueue("async")) == "completed"
    await until(bench, 0, 0)


# -- calls that may start earlier than they were told


async def test_waiting_call_starts_as_soon_as_another_has_cost_less_than_it_reserved(
    bench: Bench, client: AsyncClient
) -> None:
    outside = Outside()
    await client.set_rate("api", "1/day", burst=10)
    first = await bench.enqueue("async", {"cost": 10, "real": 1})
    bench.worker(callers(outside))
    await until(bench, 1, 0)
    second = await bench.enqueue("async", {"cost": 9})
    await until(bench, 1, 1)
    outside.answer.set()
    for id in (first, second):
        assert await bench.outcome(id) == "completed"


async def test_waiting_calls_start_as_soon_as_the_rate_is_raised(bench: Bench, client: AsyncClient) -> None:
    outside = Outside()
    outside.answer.set()
    await client.set_rate("api", "1/day", burst=1)
    ids = [await bench.enqueue("async") for _ in range(3)]
    bench.worker(callers(outside))
    await until(bench, 0, 2)
    await client.set_rate("api", "1000/s", burst=1)
    for id in ids:
        assert await bench.outcome(id) == "completed"


async def test_waiting_call_starts_as_soon_as_the_call_before_it_is_lost_with_its_worker(
    bench: Bench, client: AsyncClient
) -> None:
    outside = Outside()
    outside.answer.set()
    await client.set_rate("api", "1/day", burst=10)
    bench.worker(callers(outside))
    assert await bench.outcome(await bench.enqueue("async", {"cost": 5})) == "completed"
    others: Registry[Any] = Registry()

    @others.handler
    async def large(run: AsyncRun) -> None:
        async with run.limit("api", cost=10):
            outside.enter(run.id)

    lost, _ = bench.worker(others)
    await bench.enqueue("large")
    await until(bench, 0, 1)
    small = await bench.enqueue("async", {"cost": 5})
    await until(bench, 0, 2)
    for partition in (0, 1):
        await bench.abandon(lost, partition)
    assert await bench.outcome(small) == "completed"


@KINDS
async def test_call_that_raises_has_cost_what_it_reserved_and_frees_its_place(
    bench: Bench, client: AsyncClient, kind: str
) -> None:
    await client.set_rate("api", "1/day", burst=100, at_once=1)
    runs: Registry[Any] = Registry()

    @runs.handler(kind="plain")
    def plain(run: Run) -> None:
        with run.limit("api", cost=40):
            raise ConnectionError("the other side is gone")

    @runs.handler(kind="async")
    async def asynchronous(run: AsyncRun) -> None:
        async with run.limit("api", cost=40):
            raise ConnectionError("the other side is gone")

    id = await bench.enqueue(kind)
    bench.worker(runs)
    assert await bench.outcome(id) == "failed"
    await until(bench, 0, 0)
    assert 39 < level(bench) <= 40


async def test_limits_work_inside_phases_and_in_tasks_of_the_handler(bench: Bench, client: AsyncClient) -> None:
    await client.set_rate("api", "1000/s", burst=1000, at_once=2)
    runs: Registry[Any] = Registry()

    @runs.handler
    async def agent(run: AsyncRun) -> list[int]:
        async def ask(number: int) -> int:
            async with run.limit("api", cost=number):
                return number

        async def all_three() -> list[int]:
            return await asyncio.gather(*(ask(number) for number in (1, 2, 3)))

        return await run.phase("ask", all_three)

    id = await bench.enqueue("agent")
    bench.worker(runs)
    assert await bench.outcome(id) == "completed"
    assert bench.result(id) == [1, 2, 3]
    await until(bench, 0, 0)


# -- lost replies and late requests


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    made = Proxy(valkey_server.port)
    yield made
    made.close()


@pytest.mark.parametrize("script", [scripts.ACQUIRE, scripts.FINISH, scripts.BACK_OFF], ids=lambda s: s.name)
async def test_lost_reply_reserves_and_settles_once(
    bench: Bench, client: AsyncClient, proxy: Proxy, script: Script
) -> None:
    await client.set_rate("api", "1/day", burst=1000, at_once=1)
    bench.admin.script_load(script.text)  # each call is then one EVALSHA
    outside = Outside()
    outside.answer.set()
    cut = proxy.cut_next_reply(naming(b"EVALSHA", script.sha.encode()))
    id = await bench.enqueue("async", {"cost": 900, "real": 50, "back_off": 0.1})
    serving = bench.worker(callers(outside), url=proxy.url)
    assert await bench.outcome(id) == "completed"
    await until(bench, 0, 0)
    await eventually(cut.happened.is_set, "the cut")
    assert 49 < level(bench) <= 50
    assert len(outside.calls) == 1
    await bench.end(*serving)  # the worker leaves through the proxy


async def test_late_request_of_a_call_that_was_stopped_reserves_nothing(
    bench: Bench, client: AsyncClient, proxy: Proxy
) -> None:
    await client.set_rate("api", "1/day", burst=1000, at_once=1)
    bench.admin.script_load(scripts.ACQUIRE.text)
    bench.admin.script_load(scripts.FINISH.text)
    bucket = bench.namespace.keys(partition_for("api", 2)).bucket("api")
    delay = proxy.delay_next_request(60.0, naming(b"EVALSHA", scripts.ACQUIRE.sha.encode()))
    id = await bench.enqueue("async", {"cost": 900})
    serving = bench.worker(callers(Outside()), url=proxy.url)
    await eventually(delay.happened.is_set, "the request is on its way")
    await bench.cancel(id)
    assert await bench.outcome(id) == "cancelled"
    await eventually(lambda: bench.admin.exists(bucket), "the call was given back")
    assert not proxy.late_replies
    delay.over.set()
    await eventually(lambda: proxy.late_replies, "the late request was carried out")
    assert (counts(bench), level(bench)) == ((0, 0), 0)
    await bench.end(*serving)  # the worker leaves through the proxy


async def test_drain_waits_until_the_server_knows_the_real_cost_of_a_call(
    bench: Bench, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.set_rate("api", "1/day", burst=1000)
    outside = Outside()
    outside.answer.set()
    repeat = ServerLimits._repeat

    async def repeat_later(limits: ServerLimits, *request: Any) -> None:
        """Send the request late, as after a connection that was cut."""
        await work_for(0.5)
        await repeat(limits, *request)

    monkeypatch.setattr(ServerLimits, "_repeat", repeat_later)
    id = await bench.enqueue("async", {"cost": 900, "real": 50})
    serving = bench.worker(callers(outside))
    assert await bench.outcome(id) == "completed"
    assert await bench.end(*serving) == 0
    assert 49 < level(bench) <= 50
