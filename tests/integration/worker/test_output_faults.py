"""Outputs under faults: cut connections, lost and late requests, full memory, outages, slow readers and many readers."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from coordinator import AsyncClient, Client, Event, Gap, Refused, Rewind
from coordinator.client.output import async_feed, subscriptions
from coordinator.client.output.subscriptions import Subscription
from coordinator.model import features
from coordinator.store import scripts
from tests.conftest import StartServer
from tests.faults.lab.cutter import Cutter, Direction
from tests.integration import worker_harness
from tests.integration.worker_harness import Bench
from tests.proxy import Proxy, naming
from tests.servers import Server
from tests.waiting import eventually, next_turn, work_for
from workers import AsyncRun, Registry, Run

# Places in the traffic at which a connection is cut; RUNS_TEST_CUTS=100000 cuts it after every byte, of a shorter text.
CUTS = int(os.environ.get("RUNS_TEST_CUTS", "25"))
WORDS = 30 if CUTS < 1000 else 8
CONNECTING_BYTES = 1200  # the first bytes of a new client, within which its connection is cut

# The newest tenacity deprecates how the wire builds its back-off.
pytestmark = pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")

EMIT = naming(scripts.EMIT.sha.encode())
SAVE = naming(scripts.CHECKPOINT.sha.encode())


@pytest.fixture
async def bench(valkey_server: Server, proxy: Proxy, cutter: Cutter, namespace: str) -> AsyncIterator[Bench]:
    """Yield a bench. The proxies outlive the workers, because the workers leave through them."""
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        for script in scripts.SCRIPTS:
            made.admin.script_load(script.text)  # Each call is then one EVALSHA.
        yield made


@pytest.fixture
async def client(valkey_server: Server, namespace: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(valkey_server.url, namespace) as made:
        yield made


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    made = Proxy(valkey_server.port)
    yield made
    made.close()


@pytest.fixture
def cutter(valkey_server: Server) -> Iterator[Cutter]:
    made = Cutter(valkey_server.port)
    yield made
    made.close()


async def read(client: AsyncClient, id: str, **options: Any) -> list[Any]:
    """Read to the end, and return the values that are left after all rewinds. A gap is returned as an item."""
    text: list[Any] = []
    async with asyncio.timeout(60):
        async for item in client.handle(id).stream(**options):
            match item:
                case Event(value=value):
                    text.append(value)
                case Rewind(to=to):
                    del text[to:]
                case Gap():
                    text.append(item)
    return text


async def first_event(client: AsyncClient, id: str) -> None:
    """Wait until the server has stored the first event of the run."""
    async with asyncio.timeout(60), aclosing(client.handle(id).stream()) as items:
        await anext(items)


def talking(words: int = WORDS, enough: Callable[[], bool] = lambda: True) -> Registry[Any]:
    """Return a handler that says so many words, and more until there are enough."""
    runs = Registry()

    @runs.handler(throttle=0)
    async def talk(run: AsyncRun) -> list[str]:
        text = run.state.setdefault("text", [])
        while len(text) < words or not enough():
            text.append(f"{run.attempt}/{len(text)}")
            run.emit(text[-1])
            await next_turn()
            if len(text) % 7 == 0:
                run.checkpoint()
                await work_for(0.005)
        return list(text)

    return runs


# ---- cuts


def places(traffic: int, count: int) -> list[int]:
    """Return the numbers of bytes after which a connection is cut: every number, or `count` of them at random."""
    if count >= traffic:
        return list(range(1, traffic + 1))
    dice = random.Random(traffic)
    return [1 + traffic * part // count + dice.randrange(traffic // count) for part in range(count)]


async def traffic_of(cutter: Cutter, direction: Direction, work: Callable[[], Awaitable[Any]]) -> int:
    """Return the number of bytes that some work sends through the proxy. The work is done twice, because the first one connects."""
    await work()
    before = cutter.carried[direction]
    await work()
    return cutter.carried[direction] - before


both_directions = pytest.mark.parametrize("direction", ["request", "reply"])
many_cuts = pytest.mark.timeout(300 + CUTS)


@pytest.mark.quick_cases(1)
@many_cuts
@both_directions
async def test_connection_of_the_worker_that_is_cut_at_any_byte_changes_no_text(
    bench: Bench, client: AsyncClient, cutter: Cutter, direction: Direction
) -> None:
    bench.worker(talking(enough=lambda: not cutter.armed), url=cutter.url, concurrency=4)

    async def talk() -> None:
        id = await bench.enqueue("talk")
        plain, settled = await asyncio.gather(read(client, id), read(client, id, settled=True))
        await bench.until(id, "completed")
        assert plain == settled == bench.result(id)

    for place in places(await traffic_of(cutter, direction, talk), CUTS):
        cutter.arm(direction, place)
        await talk()
        assert not cutter.armed, f"the handler ends after the cut after {place} bytes"


@pytest.mark.quick_cases(1)
@many_cuts
@both_directions
async def test_connection_of_the_worker_that_is_cut_at_any_byte_of_the_ending_changes_no_text(
    bench: Bench, client: AsyncClient, cutter: Cutter, direction: Direction
) -> None:
    runs, place, before = Registry(), 0, 0

    @runs.handler(throttle=0)
    async def talk(run: AsyncRun) -> str:
        nonlocal before
        run.emit("saved")
        await run.flush()
        before = cutter.carried[direction]
        if place:
            cutter.arm(direction, place)
        run.emit("last")
        return "done"

    async def end() -> None:
        id = await bench.enqueue("talk")
        plain, settled = await asyncio.gather(read(client, id), read(client, id, settled=True))
        await bench.until(id, "completed")
        await eventually(lambda: not worker.attempts, "the answer to the ending")
        assert plain == settled == ["saved", "last"], f"cut after {place} bytes"

    worker, _ = bench.worker(runs, url=cutter.url, concurrency=4)
    traffic = []
    for _ in range(6):
        await end()
        traffic.append(cutter.carried[direction] - before)
    places_of_ending, cuts = (
        places(min(traffic), CUTS),
        0,
    )  # sometimes the worker also sends a claim, or gets an answer to one
    for place in places_of_ending:  # noqa: B007  # the handler reads it
        await end()
        cuts += not cutter.armed
        cutter.disarm()
    assert cuts > len(places_of_ending) / 2


@pytest.mark.quick_cases(1)
@many_cuts
@both_directions
async def test_connection_of_the_reader_that_is_cut_at_any_byte_changes_no_text(
    bench: Bench, cutter: Cutter, namespace: str, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_feed, "AFTER_TROUBLE", 0.01)
    bench.worker(talking(enough=lambda: not cutter.armed), concurrency=4)
    async with AsyncClient(cutter.url, namespace) as client:

        async def talk() -> None:
            id = await bench.enqueue("talk")
            plain, settled = await asyncio.gather(read(client, id), read(client, id, settled=True))
            assert plain == settled == bench.result(id)

        for place in places(await traffic_of(cutter, direction, talk), CUTS):
            cutter.arm(direction, place)
            await talk()
            assert not cutter.armed, f"the handler ends after the cut after {place} bytes"


@many_cuts
@both_directions
async def test_connection_of_a_new_reader_that_is_cut_at_any_byte_changes_no_text(
    bench: Bench, cutter: Cutter, namespace: str, direction: Direction
) -> None:
    bench.worker(talking(enough=lambda: not cutter.armed), concurrency=4)
    for place in places(CONNECTING_BYTES, max(1, CUTS // 5)):
        cutter.arm(direction, place)
        async with AsyncClient(cutter.url, namespace) as client:
            id = await bench.enqueue("talk")
            plain, settled = await asyncio.gather(read(client, id), read(client, id, settled=True))
            assert plain == settled == bench.result(id), f"cut after {place} bytes"


@pytest.mark.parametrize("matching", [EMIT, SAVE], ids=["emit", "save"])
async def test_lost_reply_neither_doubles_nor_loses_an_event(
    bench: Bench, client: AsyncClient, proxy: Proxy, matching: Any
) -> None:
    faults = [proxy.cut_next_reply(matching) for _ in range(2)]
    bench.worker(talking(30, lambda: all(fault.happened.is_set() for fault in faults)), url=proxy.url, lease=600.0)
    id = await bench.enqueue("talk")
    assert await read(client, id) == bench.result(id)


async def test_events_that_arrive_after_the_run_has_another_owner_are_refused(
    bench: Bench, client: AsyncClient, proxy: Proxy
) -> None:
    runs, parked = Registry(), asyncio.Event()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        run.emit(run.attempt)
        if run.attempt == 1:
            await parked.wait()

    proxy.hold_requests(EMIT)
    first, _ = bench.worker(runs, url=proxy.url, lease=600.0)
    id = await bench.enqueue("talk")
    await eventually(lambda: proxy.held > 0, "the events to be on their way")
    await bench.abandon(first)
    bench.worker(runs)
    assert await read(client, id) == [2]
    proxy.release_requests()
    await eventually(lambda: proxy.late_replies, "the late events")
    assert any(b"fenced" in reply for reply in proxy.late_replies)
    assert await read(client, id) == [2]
    parked.set()


# ---- outages and full memory


async def test_events_wait_while_the_memory_of_the_server_is_full(start_server: StartServer, namespace: str) -> None:
    server = start_server(settings={"appendonly": "yes", "maxmemory-policy": "noeviction"})
    runs, full, freed = Registry(), asyncio.Event(), asyncio.Event()

    @runs.handler
    async def talk(run: AsyncRun, lost: bool) -> str:
        run.emit("before")
        await full.wait()
        for number in range(12 if lost else 3):
            run.emit([number, "x" * (200_000 if lost else 10)])
        await freed.wait()
        return "done"

    async with (
        worker_harness.bench(server.url, namespace) as bench,
        AsyncClient(server.url, namespace) as client,
    ):
        worker, _ = bench.worker(runs)
        few, many = await bench.enqueue("talk", {"lost": False}), await bench.enqueue("talk", {"lost": True})
        for id in (few, many):
            await first_event(client, id)
        server.admin.config_set("maxmemory", "1")
        full.set()
        await eventually(
            lambda: sum(a.outbox is not None and a.outbox.waiting for a in worker.attempts.values()) == 2, "events"
        )
        server.admin.config_set("maxmemory", "0")
        freed.set()
        assert [value if value == "before" else value[0] for value in await read(client, few)] == ["before", 0, 1, 2]
        first, gap, *rest = await read(client, many)
        assert (first, gap.count) == ("before", 7)
        assert [value[0] for value in rest] == [7, 8, 9, 10, 11]


async def test_run_that_ends_while_the_memory_is_full_stores_its_last_events(
    start_server: StartServer, namespace: str
) -> None:
    server = start_server(settings={"appendonly": "yes", "maxmemory-policy": "noeviction"})
    runs, full = Registry(), asyncio.Event()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        run.emit("before")
        await full.wait()
        run.emit("last")

    async with (
        worker_harness.bench(server.url, namespace) as bench,
        AsyncClient(server.url, namespace) as client,
    ):
        bench.worker(runs)
        id = await bench.enqueue("talk")
        await first_event(client, id)
        server.admin.config_set("maxmemory", "1")
        full.set()
        assert await bench.outcome(id) == "completed"
        server.admin.config_set("maxmemory", "0")
        assert await read(client, id) == ["before", "last"]


async def test_reader_continues_after_a_restart_of_the_server(start_server: StartServer, namespace: str) -> None:
    server = start_server(settings={"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"})
    runs, restarted = Registry(), asyncio.Event()

    @runs.handler(throttle=0)
    async def talk(run: AsyncRun) -> None:
        run.emit("before")
        await run.flush()
        await restarted.wait()
        run.emit("after")

    async with (
        worker_harness.bench(server.url, namespace) as bench,
        AsyncClient(server.url, namespace) as client,
    ):
        bench.worker(runs, lease=600.0)
        id = await bench.enqueue("talk")
        items: list[Any] = []

        async def collect() -> None:
            async for item in client.handle(id).stream():
                items.append(item)  # noqa: PERF401  # the test looks at the items meanwhile

        reading = asyncio.create_task(collect())
        await eventually(lambda: len(items) == 1, "the first event")
        server.kill()
        server.restart()
        restarted.set()
        async with asyncio.timeout(60):
            await reading
        assert [item.value for item in items] == ["before", "after"]


# ---- readers


async def test_slow_reader_gets_every_event_that_the_server_keeps(
    bench: Bench, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MOST_ENTRIES", 50)
    runs, go, count = Registry(), asyncio.Event(), 3_000

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        run.emit(0)
        await go.wait()
        for number in range(1, count):
            run.emit(number)
            if number % 100 == 0:
                await work_for(0.01)

    id = await bench.enqueue("talk")
    bench.worker(runs)
    stream = client.handle(id).stream(timeout=30)
    values = [(await anext(stream)).value]  # type: ignore[union-attr]
    go.set()
    await bench.until(id, "completed")
    async for item in stream:
        assert isinstance(item, Event)
        values.append(item.value)
    assert values == list(range(count))


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_late_reader_reads_the_stored_events_once(
    bench: Bench, client: AsyncClient, valkey_server: Server, namespace: str, kind: str
) -> None:
    runs, go, stored = Registry(), asyncio.Event(), asyncio.Event()

    @runs.handler(throttle=0)
    async def talk(run: AsyncRun) -> None:
        for number in range(50):
            run.emit(number)
        await run.flush()
        stored.set()
        await go.wait()
        run.emit("late")

    taken: list[int] = []
    put = Subscription.put

    def count(inbox: Subscription, entries: list[Any]) -> bool:
        taken.append(len(entries))
        return put(inbox, entries)

    bench.worker(runs)
    id = await bench.enqueue("talk")
    await stored.wait()
    plain, values = Client(valkey_server.url, namespace), list[Any]()

    def read_plain() -> None:
        for item in plain.handle(id).stream(timeout=30):
            assert isinstance(item, Event)
            values.append(item.value)

    async def read_async() -> None:
        async for item in client.handle(id).stream(timeout=30):
            assert isinstance(item, Event)
            values.append(item.value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Subscription, "put", count)
        reading = asyncio.create_task(asyncio.to_thread(read_plain) if kind == "plain" else read_async())
        await eventually(lambda: len(values) == 50, "the stored events")
        go.set()
        await reading
    assert values == [*range(50), "late"]
    assert sum(taken) <= 3, "the feed reads only what is new: the last event, its settled position and the end"
    await asyncio.to_thread(plain.close)


async def test_many_readers_share_one_connection(bench: Bench, client: AsyncClient) -> None:
    runs, go = Registry(), asyncio.Event()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        await go.wait()
        run.emit(run.id)

    ids = [await bench.enqueue("talk") for _ in range(40)]
    readers = [asyncio.create_task(read(client, id)) for id in ids for _ in range(3)]

    def blocked() -> int:
        return sum(one["cmd"] == "xread" for one in bench.admin.client_list())

    part = lambda: next(iter(client._open().feed._parts.values()), None)  # noqa: E731
    await eventually(lambda: (found := part()) is not None and len(found.streams.wanted()[0]) == 41, "all readers")
    await eventually(lambda: blocked() == 1, "one connection that blocks")
    bench.worker(runs, concurrency=40)
    go.set()
    assert await asyncio.gather(*readers) == [[id] for id in ids for _ in range(3)]


async def test_readers_that_wait_send_nothing(start_server: StartServer, namespace: str) -> None:
    server = start_server()

    def commands() -> int:
        return int(server.admin.info("stats")["total_commands_processed"])

    async with AsyncClient(server.url, namespace) as client:
        handles = [await client.enqueue("talk") for _ in range(40)]
        readers = [asyncio.create_task(read(client, handle.id)) for handle in handles]
        part = lambda: next(iter(client._open().feed._parts.values()), None)  # noqa: E731
        await eventually(lambda: (found := part()) is not None and len(found.streams.wanted()[0]) == 41, "all readers")
        await eventually(lambda: _is_quiet(commands), "the last reader to wait")
        before = commands()
        await work_for(2.0)
        assert commands() - before == 1, "only the question itself"
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


def _is_quiet(commands: Callable[[], int]) -> bool:
    return -commands() + commands() == 1


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_reader_gets_events_while_another_reader_of_its_client_gets_none(
    bench: Bench, client: AsyncClient, valkey_server: Server, namespace: str, kind: str
) -> None:
    runs = Registry()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        run.emit("heard")

    silent, talking = await bench.enqueue("nobody"), await bench.enqueue("talk")
    plain = Client(valkey_server.url, namespace)

    def values(id: str) -> list[Any]:
        return [item.value for item in plain.handle(id).stream(timeout=15) if isinstance(item, Event)]

    def start(id: str) -> asyncio.Task[list[Any]]:
        return asyncio.create_task(asyncio.to_thread(values, id) if kind == "plain" else read(client, id, timeout=15))

    def blocked() -> bool:
        return any(one["cmd"] == "xread" for one in bench.admin.client_list())

    waiting = start(silent)
    await eventually(blocked, "the first reader to block")
    second = start(talking)
    await eventually(lambda: "beside" in bench.run(talking), "the second reader to listen")
    bench.worker(runs)
    assert await second == ["heard"]
    await bench.cancel(silent)
    assert await waiting == []
    await asyncio.to_thread(plain.close)


async def test_closed_client_ends_its_readers(bench: Bench, valkey_server: Server, namespace: str) -> None:
    id = await bench.enqueue("nobody")
    client = AsyncClient(valkey_server.url, namespace)
    reading = asyncio.create_task(read(client, id))
    await eventually(lambda: client._open().feed._parts, "the reader to subscribe")
    await client.close()
    with pytest.raises(Refused, match="closed"):
        await reading

    plain = Client(valkey_server.url, namespace)
    waiting = asyncio.create_task(asyncio.to_thread(lambda: list(plain.handle(id).stream())))
    await eventually(lambda: plain._open().feed._parts, "the reader to subscribe")
    await asyncio.to_thread(plain.close)
    with pytest.raises(Refused, match="closed"):
        await waiting


# ---- older processes


async def test_events_are_not_stored_while_a_process_of_an_older_version_lives(
    bench: Bench, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    runs, go, keys = Registry(), asyncio.Event(), bench.namespace.keys(0)

    @runs.handler(throttle=0)
    def talk(run: Run) -> None:
        run.emit("early")
        run.flush()

    bench.admin.zadd(keys.coordinators(), {f"old+{features.WAITS}": 2**50})
    bench.worker(runs)
    id = await bench.enqueue("talk")
    await bench.until(id, "completed")
    assert bench.admin.exists(keys.output(id)) == 0
    assert "does not support events" in caplog.text
    assert "coordinator old" in caplog.text
    bench.admin.zrem(keys.coordinators(), f"old+{features.WAITS}")
    go.set()
    later = await bench.enqueue("talk")
    assert await read(client, later) == ["early"]


async def test_events_that_no_save_could_carry_are_stored_when_the_process_of_an_older_version_is_gone(
    bench: Bench, client: AsyncClient
) -> None:
    runs, saved, go, keys = Registry(), asyncio.Event(), asyncio.Event(), bench.namespace.keys(0)

    @runs.handler(throttle=0)
    async def talk(run: AsyncRun) -> None:
        run.emit("early")
        await run.flush()
        saved.set()
        await go.wait()
        run.emit("late")

    old = f"old+{features.WAITS}"
    bench.admin.zadd(keys.coordinators(), {old: 2**50})
    bench.worker(runs)
    id = await bench.enqueue("talk")
    await asyncio.wait_for(saved.wait(), 30)
    assert bench.admin.exists(keys.output(id)) == 0
    bench.admin.zrem(keys.coordinators(), old)
    go.set()
    assert await read(client, id) == ["early", "late"]
