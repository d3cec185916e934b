"""Handlers that emit events, and the readers of these events, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator import (
    AsyncClient,
    BadOption,
    Client,
    Event,
    Gap,
    Note,
    NotFound,
    NotPlain,
    ResultTimeout,
    Rewind,
    TooLarge,
)
from coordinator.client.output import async_feed, feed
from coordinator.store.plans.attempts import Output
from tests.integration import worker_harness
from tests.integration.worker_harness import Bench, performing
from tests.servers import Server
from tests.waiting import eventually, next_turn
from workers import AsyncRun, Registry, Retry, Run
from workers.attempt.output.emitter import MOST_EVENTS


@pytest.fixture
async def bench(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with worker_harness.bench(valkey_server.url, namespace) as made:
        yield made


@pytest.fixture
async def client(valkey_server: Server, namespace: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(valkey_server.url, namespace) as made:
        yield made


class Reader:
    """A reader in a task, which applies each rewind to the events that it has."""

    def __init__(self, client: AsyncClient, id: str, **options: Any) -> None:
        self.items: list[Event | Rewind | Gap] = []
        self.events: list[Event] = []
        self.task = asyncio.create_task(self._read(client, id, options))

    async def _read(self, client: AsyncClient, id: str, options: dict[str, Any]) -> None:
        async for item in client.handle(id).stream(**options):
            self.items.append(item)
            if isinstance(item, Event):
                self.events.append(item)
            elif isinstance(item, Rewind):
                self.events = [event for event in self.events if event.number <= item.to]

    @property
    def values(self) -> list[Any]:
        return [event.value for event in self.events]

    async def end(self) -> list[Any]:
        async with asyncio.timeout(30):
            await self.task
        return self.values


async def test_reader_gets_the_events_of_an_async_handler_and_ends_with_the_run(
    bench: Bench, client: AsyncClient
) -> None:
    runs, go = Registry(), asyncio.Event()

    @runs.handler
    async def talk(run: AsyncRun) -> str:
        run.emit({"delta": "a"})
        await go.wait()
        run.emit({"delta": "b"})
        return "ab"

    id = await bench.enqueue("talk")
    reader = Reader(client, id)
    bench.worker(runs)
    await eventually(lambda: reader.values == [{"delta": "a"}], "the first event")
    go.set()
    assert await reader.end() == [{"delta": "a"}, {"delta": "b"}]
    assert [event.number for event in reader.events] == [1, 2]
    assert await client.handle(id).result() == "ab"
    late = Reader(client, id)
    assert await late.end() == reader.values
    assert late.items == reader.items
    after = Reader(client, id, after=reader.events[0].id)
    assert await after.end() == [{"delta": "b"}]
    settled = Reader(client, id, settled=True)
    assert await settled.end() == reader.values


async def test_plain_handler_emits_from_its_thread(bench: Bench, client: AsyncClient) -> None:
    runs = Registry()

    @runs.handler
    def talk(run: Run) -> None:
        for i in range(500):
            run.emit(i)

    id = await bench.enqueue("talk")
    bench.worker(runs)
    assert await Reader(client, id).end() == list(range(500))


async def test_reader_in_a_thread_gets_the_same_events(bench: Bench, valkey_server: Server, namespace: str) -> None:
    runs = Registry()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        for i in range(100):
            run.emit(i)
            await next_turn()

    id = await bench.enqueue("talk")

    def read() -> list[Any]:
        with Client(valkey_server.url, namespace) as client:
            return [item.value for item in client.handle(id).stream(timeout=30) if isinstance(item, Event)]

    reading = asyncio.create_task(asyncio.to_thread(read))
    bench.worker(runs)
    assert await reading == list(range(100))


async def test_reader_of_a_run_that_emits_nothing_ends_with_the_run(bench: Bench, client: AsyncClient) -> None:
    runs, go = Registry(), asyncio.Event()

    @runs.handler
    async def silent(run: AsyncRun) -> None:
        await go.wait()

    id = await bench.enqueue("silent")
    reader = Reader(client, id)
    worker, _ = bench.worker(runs)
    await performing(worker)
    go.set()
    assert await reader.end() == []
    assert await Reader(client, id).end() == []


async def test_run_that_nobody_reads_and_that_emits_nothing_has_no_output(bench: Bench) -> None:
    runs = Registry()

    @runs.handler
    async def silent(run: AsyncRun) -> None:
        run.note("halfway")

    id = await bench.enqueue("silent")
    bench.worker(runs)
    await bench.outcome(id)
    assert "beside" not in bench.run(id)
    assert "output" not in bench.run(id)
    assert bench.admin.exists(bench.namespace.keys_of(id).output(id)) == 0


async def test_resumed_run_continues_after_the_events_of_its_checkpoint(bench: Bench, client: AsyncClient) -> None:
    runs, stuck, begun = Registry(), asyncio.Event(), list[int]()

    @runs.handler(throttle=0)
    async def talk(run: AsyncRun) -> None:
        begun.append(run.attempt)
        async for turn in run.loop(3):
            run.emit(f"{turn}: begins in attempt {run.attempt}")
            if turn == 1 and run.attempt == 1:
                await stuck.wait()
            run.emit(f"{turn}: ends in attempt {run.attempt}")

    id = await bench.enqueue("talk")
    plain, settled = Reader(client, id), Reader(client, id, settled=True)
    first, _ = bench.worker(runs)
    lost = ["0: begins in attempt 1", "0: ends in attempt 1", "1: begins in attempt 1"]
    await eventually(lambda: plain.values == lost, "the events of the first attempt")
    await eventually(lambda: settled.values == lost[:2], "the settled events")
    bench.worker(runs)
    await bench.abandon(first)
    final = [
        *lost[:2],
        *(f"{turn}: {what} in attempt 2" for turn in (1, 2) for what in ("begins", "ends")),
    ]
    assert await plain.end() == final
    assert [item.to for item in plain.items if isinstance(item, Rewind)] == [2]
    assert await settled.end() == final
    assert [item.number for item in settled.items if isinstance(item, Event)] == [1, 2, 3, 4, 5, 6]
    late = Reader(client, id)
    assert await late.end() == final
    assert not [item for item in late.items if not isinstance(item, Event)]
    seen = next(item for item in plain.items if isinstance(item, Event) and item.value == lost[2])
    away = Reader(client, id, after=seen.id)
    await away.end()
    assert isinstance(away.items[0], Rewind)
    assert away.items[0].to == 2
    assert away.values == final[2:]
    stuck.set()


async def test_late_event_of_a_former_owner_never_reaches_a_reader(bench: Bench, client: AsyncClient) -> None:
    runs, stuck = Registry(), asyncio.Event()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        if run.attempt == 1:
            await stuck.wait()
            for _ in range(10):
                run.emit("late")
        run.emit(run.attempt)
        await run.flush()

    id = await bench.enqueue("talk")
    first, _ = bench.worker(runs)
    await performing(first)
    lost = next(iter(first.attempts.values()))
    await bench.abandon(first)
    lost.emit(b"e", b"\x07")
    bench.worker(runs)
    assert await Reader(client, id).end() == [2]
    stuck.set()
    await eventually(lambda: lost.outbox is not None and lost.outbox.closed, "the refusal of the late events")
    assert await Reader(client, id).end() == [2]


async def test_note_of_a_run_that_emits_is_an_event(bench: Bench, client: AsyncClient) -> None:
    runs = Registry()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        run.note("before")
        run.emit("first")
        run.note("halfway", 1, 2)

    id = await bench.enqueue("talk")
    bench.worker(runs)
    assert await Reader(client, id).end() == ["first", Note("halfway", 1, 2)]


async def test_value_that_cannot_be_stored_is_refused_at_once(bench: Bench, client: AsyncClient) -> None:
    runs = Registry()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        with pytest.raises(NotPlain):
            run.emit(object())
        with pytest.raises(TooLarge):
            run.emit("x" * 300_000)
        run.emit("fits")

    id = await bench.enqueue("talk")
    bench.worker(runs)
    assert await Reader(client, id).end() == ["fits"]
    assert await bench.outcome(id) == "completed"


async def test_events_that_do_not_fit_the_buffer_are_told_as_a_gap(bench: Bench, client: AsyncClient) -> None:
    runs = Registry()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        for i in range(12):
            run.emit([i, "x" * 200_000])

    id = await bench.enqueue("talk")
    bench.worker(runs)
    reader = Reader(client, id)
    await reader.end()
    assert reader.items[0] == Gap(reader.items[0].id, 7)
    assert [value[0] for value in reader.values] == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("ends", ["completed", "failed"])
async def test_save_and_outcome_carry_few_events_after_a_burst(
    bench: Bench, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    runs, count, sizes, write = Registry(), 4_000, list[int](), Output.wire

    def wire(output: Output) -> bytes:
        sizes.append(len(output.events))
        return write(output)

    @runs.handler(throttle=0, retry=Retry(limit=0))
    async def talk(run: AsyncRun) -> None:
        for number in range(count):
            run.emit(number)
        await run.flush()
        for number in range(count, 2 * count):
            run.emit(number)
        if ends == "failed":
            raise ValueError("as asked")

    monkeypatch.setattr(Output, "wire", wire)
    id = await bench.enqueue("talk")
    bench.worker(runs)
    await bench.until(id, ends)
    assert max(sizes) <= MOST_EVENTS, "a larger request would keep the server from answering others"
    reader = Reader(client, id)
    assert await reader.end() == list(range(2 * count))


async def test_reader_raises_if_nothing_comes_in_time(bench: Bench, client: AsyncClient) -> None:
    id = await bench.enqueue("nobody")
    with pytest.raises(ResultTimeout, match=r"emitted nothing within 0\.1 s"):
        await Reader(client, id, timeout=0.1).end()


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_reader_raises_in_time_although_it_asks_for_the_status_meanwhile(
    bench: Bench, client: AsyncClient, valkey_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for module in (async_feed, feed):
        monkeypatch.setattr(module, "BLOCK", 0.2)  # a silent reader asks for the status of its run after such a time
    id = await bench.enqueue("nobody")
    plain = Client(valkey_server.url, namespace)
    reading = (
        Reader(client, id, timeout=0.7).end()
        if kind == "async"
        else asyncio.to_thread(lambda: list(plain.handle(id).stream(timeout=0.7)))
    )
    with pytest.raises(ResultTimeout, match=r"emitted nothing within 0\.7 s"):
        await asyncio.wait_for(reading, 30)
    await asyncio.to_thread(plain.close)


async def test_run_that_does_not_exist_has_no_output(bench: Bench, client: AsyncClient) -> None:
    id = await bench.enqueue("nobody")
    with pytest.raises(NotFound):
        await Reader(client, id[:-5] + "zz" + id[-3:]).end()


# ---- messages


async def test_saved_messages_are_read_while_the_run_works_and_deleted_when_it_completes(
    bench: Bench, client: AsyncClient
) -> None:
    runs, go = Registry(), asyncio.Event()

    @runs.handler
    async def talk(run: AsyncRun) -> None:
        run.messages.append({"number": 0})
        run.messages.append({"number": 1})
        await run.flush()
        run.messages.append({"number": 2})
        await run.flush()
        run.messages.append("not saved")
        await go.wait()

    id = await bench.enqueue("talk")
    handle = client.handle(id)
    assert [message async for message in handle.messages()] == []
    bench.worker(runs)
    await eventually(lambda: bench.admin.hlen(bench.namespace.keys_of(id).messages(id, "1")) == 2, "two saves")
    for start in range(5):
        assert [message["number"] async for message in handle.messages(start)] == [0, 1, 2][start:]
    go.set()
    await bench.outcome(id)
    assert [message async for message in handle.messages()] == []


async def test_messages_of_a_completed_run_are_kept_if_its_handler_says_so(
    bench: Bench, client: AsyncClient, valkey_server: Server, namespace: str
) -> None:
    runs = Registry()

    @runs.handler(keep_messages=True)
    async def talk(run: AsyncRun) -> None:
        for number in range(100):
            run.messages.append([number, "x" * 50_000])
            if number % 10 == 0:
                await run.flush()

    id = await bench.enqueue("talk")
    bench.worker(runs)
    assert await bench.outcome(id) == "completed"
    assert [message[0] async for message in client.handle(id).messages(7)] == list(range(7, 100))
    keys = bench.namespace.keys_of(id)
    for key in (keys.ckpt(id), keys.messages(id, "1")):
        assert abs(bench.admin.pttl(key) - bench.admin.pttl(keys.run(id))) < 60_000, "it expires with the run"

    def read() -> list[Any]:
        with Client(valkey_server.url, namespace) as plain:
            return [message[0] for message in plain.handle(id).messages(95)]

    assert await asyncio.to_thread(read) == [95, 96, 97, 98, 99]
    await client.handle(id).discard()
    assert bench.admin.exists(keys.ckpt(id), keys.messages(id, "1"), keys.output(id)) == 0


async def test_run_whose_messages_were_never_saved_keeps_them(bench: Bench, client: AsyncClient) -> None:
    runs = Registry()

    @runs.handler(keep_messages=True)
    def talk(run: Run) -> None:
        run.messages.append("only")

    id = await bench.enqueue("talk")
    bench.worker(runs)
    assert await bench.outcome(id) == "completed"
    assert [message async for message in client.handle(id).messages()] == ["only"]


async def test_messages_of_a_run_that_does_not_exist_are_not_found(bench: Bench, client: AsyncClient) -> None:
    id = await bench.enqueue("nobody")
    with pytest.raises(NotFound):
        [message async for message in client.handle(id[:-5] + "zz" + id[-3:]).messages()]
    with pytest.raises(BadOption):
        client.handle(id).messages(-1)
