"""A closed object leaves no connection behind, even if the server hangs or the task that closes it is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from coordinator import AsyncClient, Client, Handle
from coordinator.client.output.feed import Inbox
from coordinator.client.waiting import ending_tracker
from coordinator.config import Settings
from coordinator.errors import CoordinatorError, Refused, Unreachable
from coordinator.model.address import address
from coordinator.services.daemon import Coordinator
from coordinator.store.keys import Keys
from coordinator.store.script import Request, read
from coordinator.store.transport.wire import AsyncBell, AsyncWire
from tests.certificates import Certificates
from tests.conftest import StartServer
from tests.integration.worker_harness import bench
from tests.servers import Server, free_port
from tests.waiting import eventually, next_turn, wait_until
from workers import AsyncRun, Registry


def connections(server: Server) -> int:
    """Return the number of connections of the server, without the one that asks."""
    return len(server.admin.client_list()) - 1


async def wait_for_no_connections(server: Server) -> None:
    await eventually(lambda: connections(server) == 0, "no connection is left")


async def cancel_repeatedly(work: Coroutine[Any, Any, Any], begun: Callable[[], Awaitable[Any]]) -> None:
    """Start it, and then cancel it in every turn of the loop until it has ended."""
    task = asyncio.create_task(work)
    await begun()
    while not task.done():
        task.cancel()
        await next_turn()
    await asyncio.gather(task, return_exceptions=True)


def unfinished_tasks(*names: str) -> list[str]:
    """Return the tasks of some classes that have not ended."""
    return [text for text in map(repr, asyncio.all_tasks()) if any(f"coro=<{name}." in text for name in names)]


def question(keys: Keys) -> Request:
    return read(keys.at, "HGET", keys.namespace(), "birth")


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server()


async def test_closed_wire_on_a_hanging_server_opens_no_more_connections(server: Server, namespace: str) -> None:
    """Check that requests that wait for the end of a trip do not begin another one after all connections were closed."""
    wire, keys = AsyncWire(address(server.url), trip_seconds=2.0), Keys(namespace, 0)
    server.pause()
    try:
        futures = []
        for _ in range(5):  # Two trips are in progress, and three wait.
            futures.append(wire.submit(question(keys)))
            await next_turn()
        await wire.close()
        answers = await asyncio.gather(*futures)
    finally:
        server.resume()
    assert [type(answer).__name__ for answer in answers[2:]] == ["Unreachable"] * 3
    await wait_for_no_connections(server)


async def test_request_on_a_closed_wire_fails_immediately(server: Server, namespace: str) -> None:
    wire = AsyncWire(address(server.url), timeout=60)
    await wire.close()
    async with asyncio.timeout(30):
        (answer,) = await wire.ask([question(Keys(namespace, 0))])
    assert isinstance(answer, Unreachable)
    assert connections(server) == 0


async def test_wire_is_closed_if_its_close_is_cancelled(server: Server, namespace: str) -> None:
    wire, keys = AsyncWire(address(server.url)), Keys(namespace, 0)
    await wire.ask([question(keys)])
    assert connections(server) == 1
    wire.submit(question(keys))  # The request is in progress.
    await cancel_repeatedly(wire.close(), next_turn)
    await wait_for_no_connections(server)


async def test_bell_is_closed_if_its_close_is_cancelled(server: Server, namespace: str) -> None:
    bell, keys = AsyncBell(address(server.url)), Keys(namespace, 0)
    waiting = asyncio.create_task(bell.wait([keys.wake("c1")], 60.0))
    await eventually(lambda: connections(server) == 1, "the bell waits")
    await cancel_repeatedly(bell.close(), next_turn)
    await wait_for_no_connections(server)
    with pytest.raises(Unreachable):
        await waiting


@pytest.mark.parametrize("turns", range(12))
async def test_bell_closed_while_it_connects_does_not_wait(server: Server, namespace: str, turns: int) -> None:
    """Close it at every turn of the loop from the first one on. The server would hold the bell for a minute."""
    bell, keys = AsyncBell(address(server.url)), Keys(namespace, 0)
    waiting = asyncio.create_task(bell.wait([keys.wake("c1")], 60.0))
    for _ in range(turns):
        await next_turn()
        connections(server)  # In this time the server receives the call, and the loop does not notice.
    await bell.close()
    async with asyncio.timeout(30):
        with pytest.raises(Unreachable):
            await waiting
    await wait_for_no_connections(server)


async def test_close_does_not_wait_for_the_tls_shutdown_of_a_hanging_server(
    start_server: StartServer, tmp_path: Any, namespace: str
) -> None:
    certificates, port = Certificates(tmp_path / "certificates"), free_port()
    server = start_server("redis", {"tls-port": str(port), **certificates.settings()})
    wire = AsyncWire(address(f"rediss://127.0.0.1:{port}/0?{certificates.options()}"))
    await wire.ask([question(Keys(namespace, 0))])
    assert connections(server) == 1
    (connection,) = (one for pool in wire._pools.values() for one in pool._idle)
    connection.socket_connect_timeout = 60  # After this time redis-py would stop waiting with an error.
    server.pause()
    try:
        async with asyncio.timeout(20):
            await wire.close()
    finally:
        server.resume()
    await wait_for_no_connections(server)


async def test_cancelled_worker_leaves_no_connection(server: Server, namespace: str) -> None:
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
        await eventually(lambda: not unfinished_tasks("Worker", "Claimer", "Inbox"), "all its tasks have ended")


async def test_cancelled_coordinator_leaves_no_connection(server: Server, namespace: str) -> None:
    coordinator = Coordinator(Settings(server.url, namespace))

    async def begun() -> None:
        await eventually(lambda: not coordinator.health().not_ready, "it is ready")

    await cancel_repeatedly(coordinator.run(), begun)
    await wait_for_no_connections(server)


async def test_client_is_closed_if_its_close_is_cancelled(server: Server, namespace: str) -> None:
    client = AsyncClient(server.url, namespace)
    handle = await client.enqueue("k", {})
    waiting = asyncio.create_task(handle.wait(60))
    await eventually(lambda: connections(server) == 2, "the reader of its hints waits")
    waiting.cancel()
    await asyncio.wait({waiting})
    await cancel_repeatedly(client.close(), next_turn)
    await wait_for_no_connections(server)


def test_reader_ends_if_its_thread_saw_first_that_the_client_closes(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(f"memory://{namespace}")
    id, ended = client.enqueue("nobody", {}).id, threading.Event()

    def read() -> None:
        with contextlib.suppress(CoordinatorError):
            list(client.handle(id).stream())
        ended.set()

    wait, waits = Inbox.wait, threading.Event()

    def wait_and_tell(inbox: Inbox, seconds: float | None) -> bool:
        waits.set()
        return wait(inbox, seconds)

    monkeypatch.setattr(Inbox, "wait", wait_and_tell)
    threading.Thread(target=read, daemon=True).start()
    assert waits.wait(30)
    feed = client._open().feed
    flag = feed._closed
    set_flag = flag.set

    def set_and_let_the_thread_end() -> None:
        set_flag()
        wait_until(lambda: not any(part.thread for part in feed._parts.values()), "the thread to end")

    monkeypatch.setattr(flag, "set", set_and_let_the_thread_end)
    client.close()
    assert ended.wait(10)


of_a_thread = pytest.mark.parametrize(
    ("name", "call"),
    [
        ("coordinator-output", lambda handle: list(handle.stream())),
        ("coordinator-hints", lambda handle: handle.wait(30)),
    ],
    ids=["output", "hints"],
)
Call = Callable[[Handle[Any]], object]


@of_a_thread
def test_client_can_be_closed_while_a_thread_of_it_starts(
    namespace: str, monkeypatch: pytest.MonkeyPatch, name: str, call: Call
) -> None:
    monkeypatch.setattr(ending_tracker, "ASK_AGAIN", 0.2)
    client = Client(f"memory://{namespace}")
    handle, created, may_start = client.enqueue("nobody", {}), threading.Event(), threading.Event()
    start = threading.Thread.start

    def start_late(thread: threading.Thread) -> None:
        if thread.name == name:
            created.set()
            assert may_start.wait(30)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    with ThreadPoolExecutor(2) as pool:
        calling = pool.submit(call, handle)
        assert created.wait(30)
        try:
            pool.submit(client.close).result(30)
        finally:
            may_start.set()
        with pytest.raises(Refused, match="closed"):
            calling.result(30)
    wait_until(lambda: all(thread.name != name for thread in threading.enumerate()), "the thread to end")


@of_a_thread
def test_client_continues_after_a_thread_could_not_be_started(
    namespace: str, monkeypatch: pytest.MonkeyPatch, name: str, call: Call
) -> None:
    monkeypatch.setattr(ending_tracker, "ASK_AGAIN", 0.2)
    client = Client(f"memory://{namespace}")
    handle, start = client.enqueue("nobody", {}), threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="start new thread"):
            call(handle)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call, handle)
        wait_until(lambda: any(thread.name == name for thread in threading.enumerate()), "the thread to start")
        client.close()
        with pytest.raises(Refused, match="closed"):
            calling.result(30)


def test_signal_handler_can_close_a_client_whose_thread_has_its_locks(namespace: str) -> None:
    """A signal handler runs in the main thread, between any two instructions of it."""
    client = Client(f"memory://{namespace}")
    client.enqueue("nobody", {})
    session = client._open()

    def close_like_a_signal_handler() -> None:
        with session.hints._boxes.lock, session.feed._lock:
            client.close()

    closing = threading.Thread(target=close_like_a_signal_handler, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
