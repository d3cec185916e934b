"""A slow line to the server delays large runs. It does not keep them from starting, loading or saving."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from coordinator.config import address
from coordinator.errors import Unconfirmed, Unreachable
from coordinator.store.script import read
from coordinator.store.scripts import LOAD
from coordinator.store.transport.wire import AsyncWire, Wire
from tests.integration.worker_harness import Bench, bench
from tests.proxy import Proxy, SlowLine, naming
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry

RATE = 2_000_000  # bytes per second
LARGE = 16_000_000  # takes 8 s on this line, longer than the limit of a silent trip


@pytest.fixture
def server(start_server: Any) -> Server:
    made: Server = start_server()
    return made


@pytest.fixture
def line(server: Server) -> Iterator[SlowLine]:
    made = SlowLine(server.port, RATE)
    yield made
    made.close()


@pytest.fixture
async def here(server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(server.url, namespace) as made:
        yield made


@pytest.mark.matrix("large numbers")
@pytest.mark.timeout(120)
async def test_large_inputs_start_over_a_slow_line_at_their_first_attempt(here: Bench, line: SlowLine) -> None:
    runs: Registry[None] = Registry()

    @runs.handler
    async def measure(run: AsyncRun[None], text: str) -> int:
        return len(text)

    ids = [await here.enqueue("measure", {"text": "x" * 900_000}) for _ in range(20)]
    here.worker(runs, url=line.url, concurrency=50)
    for id in ids:
        assert await here.until(id, "completed") == "completed"
    assert {here.counters(id).attempt for id in ids} == {1}
    assert line.carried["replies"] < 2 * 20 * 900_000, "no input was sent in vain"


@pytest.mark.matrix("large numbers")
@pytest.mark.timeout(120)
async def test_a_large_state_is_saved_and_loaded_over_a_slow_line(here: Bench, line: SlowLine) -> None:
    runs: Registry[None] = Registry()
    seen: list[int] = []

    @runs.handler(schema=1)
    async def agent(run: AsyncRun[None]) -> int:
        seen.append(len(run.state.get("text", "")))
        if not seen[-1]:
            run.state["text"] = "x" * LARGE
            await run.flush()
            await asyncio.Event().wait()
        return len(run.state["text"])

    id = await here.enqueue("agent")
    first, ended = here.worker(runs, url=line.url, grace=0.0)
    await eventually(lambda: here.state(id) is not None, "the state is saved", timeout=60)
    assert await here.end(first, ended) == 0
    here.worker(runs, url=line.url, lease=5.0)

    async def shown() -> bool:
        return (await here.view(id)).why.endswith("; the worker is loading its checkpoint")

    await eventually(shown, "the view to say that the checkpoint is being loaded", timeout=60)
    assert await here.until(id, "completed") == "completed"
    assert seen == [0, LARGE]
    assert line.carried["replies"] < 1.5 * LARGE, "the state was loaded once"


@pytest.mark.matrix("waits through a timeout")
async def test_an_answer_that_keeps_arriving_is_not_given_up(server: Server, line: SlowLine) -> None:
    wire = AsyncWire(address(line.url), timeout=0, trip_seconds=1.0)
    try:
        await wire.ask([read("{x}", "SET", "{x}:large", b"x" * 6_000_000)])
        [reply] = await wire.ask([read("{x}", "GET", "{x}:large")])
    finally:
        await wire.close()
    assert len(reply) == 6_000_000, reply


async def test_a_silent_server_is_given_up_in_time(server: Server) -> None:
    wire = AsyncWire(address(server.url), timeout=0, trip_seconds=1.0)
    try:
        assert await wire.ask([read("{x}", "PING")]) == [b"PONG"]
        server.pause()
        began = time.monotonic()
        [reply] = await wire.ask([read("{x}", "SET", "{x}:large", b"x" * 20_000_000)])
        assert isinstance(reply, Unreachable | Unconfirmed), reply
        assert time.monotonic() - began < 30
    finally:
        server.resume()
        await wire.close()


@pytest.mark.matrix("waits through a timeout")
def test_a_thread_sends_a_large_request_over_a_slow_line(server: Server, line: SlowLine) -> None:
    wire = Wire(address(line.url), timeout=1.0)
    try:
        [reply] = wire.ask([read("{x}", "SET", "{x}:large", b"x" * 6_000_000)])
    finally:
        wire.close()
    assert reply == b"OK"


@pytest.mark.matrix("waits through a timeout")
@pytest.mark.timeout(120)
async def test_a_load_that_fails_is_logged_shown_and_repeated(here: Bench, server: Server, caplog: Any) -> None:
    runs: Registry[None] = Registry()

    @runs.handler(schema=1)
    async def agent(run: AsyncRun[None]) -> int:
        if not run.state:
            run.state["text"] = "x" * 100_000
            await run.flush()
            await asyncio.Event().wait()
        return len(run.state["text"])

    proxy = Proxy(server.port)
    try:
        id = await here.enqueue("agent")
        first, ended = here.worker(runs)
        await eventually(lambda: here.state(id) is not None, "the state is saved")
        assert await here.end(first, ended) == 0
        cuts = [proxy.cut_next_reply(naming(LOAD.sha.encode())) for _ in range(1000)]
        here.worker(runs, url=proxy.url, lease=2.0)

        async def shown() -> bool:
            why = (await here.view(id)).why
            return "; loading its checkpoint failed " in why and why.endswith(" times, and the worker tries again")

        await eventually(shown, "the view to say that the load fails")
        assert f"loading the checkpoint of run {id} failed 2 times" in caplog.text
        for cut in cuts:
            proxy.call_off(cut)
        assert await here.until(id, "completed") == "completed"
        assert "loading" not in (await here.view(id)).why
    finally:
        for worker, task in list(here.workers):
            if not task.done():
                await here.end(worker, task)
        proxy.close()
