"""What is closed leaves no connection behind: not where the server hangs, nor where who closes is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from coordinator import AsyncClient
from coordinator.config import Settings
from coordinator.errors import Unreachable
from coordinator.model.address import address
from coordinator.services.daemon import Coordinator
from coordinator.store.keys import Keys
from coordinator.store.script import Request, read
from coordinator.store.transport.wire import AsyncBell, AsyncWire
from tests.certificates import Certificates
from tests.conftest import StartServer
from tests.integration.worker_harness import bench
from tests.servers import Server, free_port
from tests.waiting import eventually, next_turn
from workers import AsyncRun, Registry


def connections(server: Server) -> int:
    """How many the server has, but for the one that asks."""
    return len(server.admin.client_list()) - 1


async def none_left(server: Server) -> None:
    await eventually(lambda: connections(server) == 0, "no connection is left")


async def cancelled_again_and_again(work: Coroutine[Any, Any, Any], begun: Callable[[], Awaitable[Any]]) -> None:
    """Begins it, and then cancels it in every turn of the loop until it has ended."""
    task = asyncio.create_task(work)
    await begun()
    while not task.done():
        task.cancel()
        await next_turn()
    await asyncio.gather(task, return_exceptions=True)


def at_work(*names: str) -> list[str]:
    """The tasks of some classes that have not ended."""
    return [text for text in map(repr, asyncio.all_tasks()) if any(f"coro=<{name}." in text for name in names)]


def question(keys: Keys) -> Request:
    return read(keys.at, "HGET", keys.namespace(), "birth")


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server()


async def test_a_wire_that_is_closed_on_a_server_that_hangs_makes_no_more_connections(
    server: Server, namespace: str
) -> None:
    """Those who wait until a trip has ended would begin another one, after all connections were closed."""
    wire, keys = AsyncWire(address(server.url), trip_seconds=2.0), Keys(namespace, 0)
    server.pause()
    try:
        futures = []
        for _ in range(5):  # two trips under way, and three wait
            futures.append(wire.submit(question(keys)))
            await next_turn()
        await wire.close()
        answers = await asyncio.gather(*futures)
    finally:
        server.resume()
    assert [type(answer).__name__ for answer in answers[2:]] == ["Unreachable"] * 3
    await none_left(server)


async def test_who_asks_a_wire_that_is_closed_is_told_at_once(server: Server, namespace: str) -> None:
    wire = AsyncWire(address(server.url), timeout=60)
    await wire.close()
    async with asyncio.timeout(30):
        (answer,) = await wire.ask([question(Keys(namespace, 0))])
    assert isinstance(answer, Unreachable)
    assert connections(server) == 0


async def test_a_wire_whose_closing_is_cancelled_is_closed(server: Server, namespace: str) -> None:
    wire, keys = AsyncWire(address(server.url)), Keys(namespace, 0)
    await wire.ask([question(keys)])
    assert connections(server) == 1
    wire.submit(question(keys))  # under way
    await cancelled_again_and_again(wire.close(), next_turn)
    await none_left(server)


async def test_a_bell_whose_closing_is_cancelled_is_closed(server: Server, namespace: str) -> None:
    bell, keys = AsyncBell(address(server.url)), Keys(namespace, 0)
    waiting = asyncio.create_task(bell.wait([keys.wake("c1")], 60.0))
    await eventually(lambda: connections(server) == 1, "the bell waits")
    await cancelled_again_and_again(bell.close(), next_turn)
    await none_left(server)
    with pytest.raises(Unreachable):
        await waiting


@pytest.mark.parametrize("turns", range(12))
async def test_a_bell_that_is_closed_while_it_connects_waits_for_nothing(
    server: Server, namespace: str, turns: int
) -> None:
    """At every turn of the loop from the first one on; the server would hold it for a minute."""
    bell, keys = AsyncBell(address(server.url)), Keys(namespace, 0)
    waiting = asyncio.create_task(bell.wait([keys.wake("c1")], 60.0))
    for _ in range(turns):
        await next_turn()
        connections(server)  # time in which the server takes the call, and the loop does not notice
    await bell.close()
    async with asyncio.timeout(30):
        with pytest.raises(Unreachable):
            await waiting
    await none_left(server)


async def test_with_tls_nobody_waits_for_a_good_bye_of_a_server_that_hangs(
    start_server: StartServer, tmp_path: Any, namespace: str
) -> None:
    certificates, port = Certificates(tmp_path / "certificates"), free_port()
    server = start_server("redis", {"tls-port": str(port), **certificates.settings()})
    wire = AsyncWire(address(f"rediss://127.0.0.1:{port}/0?{certificates.options()}"))
    await wire.ask([question(Keys(namespace, 0))])
    assert connections(server) == 1
    (connection,) = (one for pool in wire._pools.values() for one in pool._idle)
    connection.socket_connect_timeout = 60  # after which redis-py would give up, with an error
    server.pause()
    try:
        async with asyncio.timeout(20):
            await wire.close()
    finally:
        server.resume()
    await none_left(server)


async def test_a_worker_that_is_cancelled_leaves_no_connection(server: Server, namespace: str) -> None:
    async with bench(server.url, namespace, partitions=2) as made:
        await eventually(lambda: connections(server) == 1, "the wire of the bench is connected")
        made.admin.close()
        registry: Registry[Any] = Registry()

        @registry.handler
        async def nothing(run: AsyncRun[Any]) -> None:
            return

        worker, task = made.worker(registry)
        await worker.ready.wait()
        await eventually(lambda: connections(server) > 2, "its bells wait")
        task.cancel()
        await asyncio.wait({task})
        await eventually(lambda: connections(server) <= 1, "only the bench is connected")
        await eventually(lambda: not at_work("Worker", "Claimer", "Inbox"), "nothing of it goes on")


async def test_a_coordinator_that_is_cancelled_leaves_no_connection(server: Server, namespace: str) -> None:
    coordinator = Coordinator(Settings(server.url, namespace))

    async def begun() -> None:
        await eventually(lambda: not coordinator.health().not_ready, "it is ready")

    await cancelled_again_and_again(coordinator.run(), begun)
    await none_left(server)


async def test_a_client_whose_closing_is_cancelled_is_closed(server: Server, namespace: str) -> None:
    client = AsyncClient(server.url, namespace)
    handle = await client.enqueue("k", {})
    waiting = asyncio.create_task(handle.wait(60))
    await eventually(lambda: connections(server) == 2, "the reader of its hints waits")
    waiting.cancel()
    await asyncio.wait({waiting})
    await cancelled_again_and_again(client.close(), next_turn)
    await none_left(server)
