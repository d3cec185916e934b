"""An AsyncClient has one session in each event loop, and closes it when the loop ends."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator import AsyncClient
from coordinator.errors import Refused
from tests.servers import DURABLE, Server
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
Runner = Callable[[Coroutine[Any, Any, Any]], Any]


def run_with_uvloop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


RUNNERS = pytest.mark.parametrize("run", [asyncio.run, run_with_uvloop], ids=["asyncio", "uvloop"])


def connections(server: Server) -> int:
    """Return the number of connections that clients have open at the server, without the one that asks."""
    with redis.Redis.from_url(server.url, protocol=2) as admin:
        return len(admin.client_list()) - 1


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server that no other test has connections to: these tests count them."""
    server = Server("valkey", tmp_path_factory.mktemp("valkey"), DURABLE)
    yield server
    server.close()


@RUNNERS
def test_fifty_event_loops_leave_no_connection_and_no_file_behind(own_server: Server, run: Runner) -> None:
    client = AsyncClient(own_server.url, "loops")

    async def use() -> None:
        handle = await client.enqueue("greet")
        with pytest.raises(TimeoutError):
            await handle.result(0.01)  # the reader of hints has a connection of its own

    run(use())
    wait_until(lambda: connections(own_server) == 0, "the first loop's connections to be closed")
    before = open_files()
    for _ in range(50):
        run(use())
        assert len(client._sessions) == 1, "sessions of ended loops are forgotten"
    assert open_files() <= before
    wait_until(lambda: connections(own_server) == 0, "the connections to be closed")


async def test_a_client_that_is_dropped_without_being_closed_closes_its_connections(own_server: Server) -> None:
    client = AsyncClient(own_server.url, "loops")
    await client.enqueue("greet")
    assert connections(own_server) == 1
    del client
    gc.collect()
    await asyncio.to_thread(wait_until, lambda: connections(own_server) == 0, "the connection to be closed")


async def test_two_event_loops_at_the_same_time_keep_their_own_sessions(own_server: Server) -> None:
    client = AsyncClient(own_server.url, "loops")
    inside, leave = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    async def use() -> None:
        try:
            await client.enqueue("greet")
            mine = client._sessions[asyncio.get_running_loop()]
            inside.set()
            assert await asyncio.to_thread(leave.wait, 60)
            assert client._open() is mine, "a call in the other loop has not replaced the session"
            await client.enqueue("greet")
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=lambda: asyncio.run(use()))
    thread.start()
    assert await asyncio.to_thread(inside.wait, 60)
    await client.enqueue("greet")
    mine = client._open()
    assert len(client._sessions) == 2
    leave.set()
    await asyncio.to_thread(thread.join, 60)
    assert not failed
    assert client._open() is mine
    await client.close()
    wait_until(lambda: connections(own_server) == 0, "the connections to be closed")


async def test_closing_a_client_closes_its_sessions_in_other_loops(own_server: Server) -> None:
    client = AsyncClient(own_server.url, "loops")
    inside, leave = threading.Event(), threading.Event()
    used = []  # a call that is under way keeps its session

    async def use() -> None:
        await client.enqueue("greet")
        used.append(client._open())
        inside.set()
        await asyncio.to_thread(leave.wait, 60)

    thread = threading.Thread(target=lambda: asyncio.run(use()))
    thread.start()
    assert await asyncio.to_thread(inside.wait, 60)
    await client.close()
    wait_until(lambda: connections(own_server) == 0, "the other loop's connection to be closed")
    leave.set()
    await asyncio.to_thread(thread.join, 60)


PROGRAM = """
import asyncio, sys
from coordinator import AsyncClient
client = AsyncClient(sys.argv[1], "loops")
for _ in range(3):
    asyncio.run(client.enqueue("greet"))
async def leave_a_wait_behind():
    handle = await client.enqueue("greet")
    asyncio.get_running_loop().create_task(handle.result())
    await asyncio.sleep(0.1)  # the program must end in the middle of the wait
asyncio.run(leave_a_wait_behind())
"""


def test_a_program_that_never_closes_its_client_has_no_warnings(own_server: Server) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, own_server.url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_an_event_loop_of_asyncio_one_sentence_says_so(own_server: Server) -> None:
    """Under trio a coroutine runs, and no event loop of asyncio does."""
    client = AsyncClient(own_server.url, "loops")
    with pytest.raises(Refused, match="event loop of asyncio, and none is running here: under trio, call Client"):
        client.enqueue("greet").send(None)
    with pytest.raises(StopIteration):
        client.close().send(None)
