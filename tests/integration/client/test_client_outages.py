"""The errors of a client whose server is wrong, gone, or does not answer; and what the client survives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from coordinator import AsyncClient, Client, Inputs, NotConfigured, ResultTimeout, Status, Unconfirmed, Unreachable
from coordinator.config import address
from coordinator.encoding.codec import encode
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.workers import WorkerRecord
from coordinator.store.transport.connections.sync_pool import _is_silent
from coordinator.store.transport.wire import Wire, drive
from tests.impatience import impatient, wire_of
from tests.proxy import Proxy, naming
from tests.servers import Server, free_port
from tests.waiting import eventually, wait_until

SCRIPTS = naming(b"EVAL")


@pytest.fixture
def proxy(real_server: Server) -> Iterator[Proxy]:
    proxy = Proxy(real_server.port)
    yield proxy
    proxy.close()


def cut_all(proxy: Proxy) -> None:
    for _ in range(200):
        proxy.cut_next_reply(SCRIPTS)


def uncut(proxy: Proxy) -> None:
    proxy._cuts.clear()


# ---- the server is not suitable


@pytest.mark.parametrize(
    ("settings", "mends"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "CONFIG SET maxmemory-policy noeviction"),
        ({"appendonly": "no"}, "CONFIG SET appendonly yes"),
    ],
)
def test_server_that_may_lose_runs_is_rejected_and_nothing_is_written(start_server, namespace, settings, mends):
    server = start_server(settings=settings)
    with Client(server.url, namespace) as client:
        with pytest.raises(NotConfigured, match=mends):
            client.enqueue("work")
        assert server.admin.keys("*") == []
        command = mends.removeprefix("CONFIG SET ").split()
        server.admin.config_set(*command)
        assert client.enqueue("work").created  # The same client works after the server is fixed.


def test_replica_is_rejected(start_server, namespace):
    primary = start_server(settings={"repl-diskless-sync-delay": "0"})
    replica = start_server(settings={"replicaof": f"127.0.0.1 {primary.port}"})
    wait_until(lambda: replica.admin.info("replication")["master_link_status"] == "up", "the replica's link")
    with (
        Client(replica.url, namespace) as client,
        pytest.raises(NotConfigured, match=f"replica of 127.0.0.1:{primary.port}"),
    ):
        client.enqueue("work")


def test_namespace_without_durability_accepts_a_server_without_persistence(start_server, namespace):
    server = start_server(settings={"appendonly": "no"})
    wire = Wire(address(server.url))
    drive(wire, namespace_plans.create(namespace, birth="b", durability="none"))
    wire.close()
    with Client(server.url, namespace) as client:
        assert client.enqueue("work").created


def test_server_that_hides_its_settings_causes_a_warning(start_server, namespace, caplog):
    server = start_server()
    server.admin.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info", "-config")
    url = server.url.replace("redis://", "redis://app:secret@")
    with caplog.at_level(logging.WARNING), Client(url, namespace) as client:
        assert client.enqueue("work").created
    assert "INFO" in caplog.text
    assert "secret" not in caplog.text


def test_wrong_password_is_not_retried_and_not_shown(real_server, namespace):
    url = real_server.url.replace("redis://", "redis://app:hidden@")
    with Client(url, namespace) as client, pytest.raises(NotConfigured) as caught:
        client.enqueue("work")
    assert "hidden" not in str(caught.value)


def test_namespace_is_created_again_on_a_flushed_server(start_server, namespace, caplog):
    server = start_server()
    with Client(server.url, namespace) as client:
        client.enqueue("work")
        server.admin.flushall()
        handles = client.enqueue_many(("work", {"n": n}) for n in range(3))
        assert "was created again" in caplog.text
        assert [handle.view().inputs["n"] for handle in handles] == [0, 1, 2]
        server.admin.flushall()
        assert client.enqueue("work").view().status is Status.QUEUED


# ---- the server is gone


def test_missing_server_is_unreachable():
    with Client(f"redis://127.0.0.1:{free_port()}/0", timeout=0.1) as client:
        for action in (lambda: client.enqueue("work"), client.status, lambda: client.enqueue_many([("work", {})])):
            with pytest.raises(Unreachable):
                action()


async def test_missing_server_is_unreachable_async():
    async with AsyncClient(f"redis://127.0.0.1:{free_port()}/0", timeout=0.1) as client:
        with pytest.raises(Unreachable):
            await client.enqueue("work")


@pytest.mark.matrix("waits through a timeout")
def test_server_that_stopped_since_the_last_call_is_unreachable(start_server, namespace):
    """Check that nothing is written to a connection that has ended with the server.

    Otherwise the result of that write would be unknown.
    """
    server = start_server()
    with Client(server.url, namespace, timeout=1) as client, ThreadPoolExecutor() as threads:
        list(threads.map(lambda _: client.enqueue("k", {}), range(20)))
        server.kill()
        for _ in range(3):
            with pytest.raises(Unreachable):
                client.enqueue("k", {})
        server.restart()
        assert client.enqueue("k", {}).view().status is Status.QUEUED


@pytest.mark.matrix("waits through a timeout")
async def test_server_that_stopped_since_the_last_call_is_unreachable_async(start_server, namespace):
    server = start_server()
    async with AsyncClient(server.url, namespace, timeout=1) as client:
        await asyncio.gather(*(client.enqueue("k", {}) for _ in range(20)))
        await asyncio.to_thread(server.kill)
        for _ in range(3):
            with pytest.raises(Unreachable):
                await client.enqueue("k", {})
        await asyncio.to_thread(server.restart)
        assert (await (await client.enqueue("k", {})).view()).status is Status.QUEUED


def test_unexpected_data_on_a_connection_is_not_taken_for_an_answer(proxy, namespace):
    """Drop the connection.

    Otherwise the data would be taken for the next request's answer, and every later answer would be off by one.
    """
    with Client(proxy.url, namespace) as client:
        client.enqueue("k", {})
        at_hand = [connection for pool in wire_of(client)._pools.values() for connection in pool._idle]
        proxy.say(b"-ERR idle for too long\r\n")
        wait_until(lambda: not any(_is_silent(connection._sock) for connection in at_hand), "it was heard")
        assert client.enqueue("k", {}).view().status is Status.QUEUED


async def test_unexpected_data_on_a_connection_is_not_taken_for_an_answer_async(proxy, namespace):
    async with AsyncClient(proxy.url, namespace) as client:
        await client.enqueue("k", {})
        at_hand = [connection for pool in wire_of(client)._pools.values() for connection in pool._idle]
        proxy.say(b"-ERR idle for too long\r\n")
        await eventually(lambda: all(connection._reader._buffer for connection in at_hand), "it was heard")
        assert (await (await client.enqueue("k", {})).view()).status is Status.QUEUED


def test_connection_closed_by_another_thread_during_its_check_is_replaced(real_server, namespace):
    """Replace the connection: the other thread clears the socket and then closes it, so its number may be reused already."""
    with Client(real_server.url, namespace) as client:
        client.enqueue("k", {})
        for pool in wire_of(client)._pools.values():
            for connection in pool._idle:
                connection._sock.close()
        assert client.enqueue("k", {}).view().status is Status.QUEUED


def test_request_with_a_lost_reply_is_sent_again(proxy, namespace):
    with Client(proxy.url, namespace) as client:
        client.status()
        cut = proxy.cut_next_reply(SCRIPTS)
        handle = client.enqueue("work", {"n": 1})
        assert cut.happened.is_set()
        assert handle.created
        cut = proxy.cut_next_reply(SCRIPTS)
        assert len(client.enqueue_many(("work", {"n": n}) for n in range(700))) == 700
        assert cut.happened.is_set()
        assert client.status().counts[Status.QUEUED] == 701


def test_unanswered_enqueue_is_unconfirmed_and_can_be_repeated_with_its_id(proxy, namespace):
    with Client(proxy.url, namespace) as client:
        client.status()
        cut_all(proxy)
        with impatient(wire_of(client)), pytest.raises(Unconfirmed) as caught:
            client.enqueue("work", {"n": 1})
        uncut(proxy)
        (id,) = caught.value.ids
        assert caught.value.acknowledged == ()
        again = client.enqueue("work", {"n": 1}, id=id)
        assert again.id == id
        assert client.status().counts[Status.QUEUED] == 1


@pytest.mark.parametrize("partitions", [1, 4])
def test_unanswered_enqueue_many_says_which_runs_are_acknowledged(proxy, namespace, partitions):
    wire = Wire(address(proxy.url))
    drive(wire, namespace_plans.create(namespace, birth="b", partitions=partitions))
    wire.close()

    def some(patience: ExitStack | None = None) -> Iterator[Inputs[None]]:
        for n in range(1200):
            if n == 600 and patience is not None:
                cut_all(proxy)
                patience.enter_context(impatient(wire_of(client)))
            yield Inputs("work", {"n": n})

    with Client(proxy.url, namespace) as client:
        client.status()
        with ExitStack() as patience, pytest.raises(Unconfirmed) as caught:
            client.enqueue_many(some(patience))
        uncut(proxy)
        error = caught.value
        assert error.acknowledged == error.ids[:500]
        assert len(error.ids) == 1000
        handles = client.enqueue_many(some(), ids=error.ids)
        assert [handle.id for handle in handles[:1000]] == list(error.ids)
        assert client.status().counts[Status.QUEUED] == 1200


def test_started_enqueue_many_is_unconfirmed_if_the_server_is_gone(proxy, namespace):
    def some() -> Iterator[Inputs[None]]:
        for n in range(1200):
            if n == 600:
                proxy.refuse()
                proxy.drop()
                patience.enter_context(impatient(wire_of(client)))
            yield Inputs("work", {"n": n})

    with Client(proxy.url, namespace) as client:
        client.status()
        with ExitStack() as patience, pytest.raises(Unconfirmed) as caught:
            client.enqueue_many(some())
    assert len(caught.value.acknowledged) == 500
    proxy.accept()


@pytest.mark.matrix("waits through a timeout")
def test_unanswered_read_is_unreachable_and_not_unconfirmed(proxy, namespace):
    with Client(proxy.url, namespace, timeout=2) as client:
        handle = client.enqueue("work")
        cut_all(proxy)
        for action in (handle.view, handle.result):
            with pytest.raises(Unreachable, match=r"can't be reached"):
                action()
        with pytest.raises(ResultTimeout):
            handle.result(timeout=0.05)
        uncut(proxy)
        assert handle.view().status is Status.QUEUED


# ---- waits survive


def finish(server: Server, namespace: str, id: str) -> None:
    """Claim and complete the run with a worker that does not use the proxy."""
    wire = Wire(address(server.url))
    space = drive(wire, namespace_plans.create(namespace, birth="b"))
    keys = space.keys_of(id)
    routes = ("default:work@0",)
    drive(wire, worker_plans.join(keys, space.birth, WorkerRecord("w", 15_000, "h", 1, "", "f", "c", 1, routes)))
    _, (run,) = drive(wire, worker_plans.claim(keys, "w", number=1, want=1, routes=routes, alone=True))
    assert drive(wire, attempt_plans.complete(keys, id, run.token, encode("done", "result"))) == "ok"
    wire.close()


def blocked(server: Server) -> int:
    return sum(client["cmd"] == "blpop" for client in server.admin.client_list())


def test_wait_survives_a_lost_connection(start_server, namespace):
    server = start_server()
    proxy = Proxy(server.port)
    answers: list[Any] = []
    with contextlib.closing(proxy), Client(proxy.url, namespace) as client:
        handle = client.enqueue("work")
        waiting = threading.Thread(target=lambda: answers.append(handle.result(timeout=60)), daemon=True)
        waiting.start()
        wait_until(lambda: blocked(server) == 1, "the reader to wait")
        proxy.drop()
        wait_until(lambda: blocked(server) == 1, "the reader to wait again")
        finish(server, namespace, handle.id)
        waiting.join(30)
    assert answers == ["done"]


async def test_wait_survives_a_lost_connection_async(start_server, namespace):
    server = start_server()
    proxy = Proxy(server.port)
    with contextlib.closing(proxy):
        async with AsyncClient(proxy.url, namespace) as client:
            handle = await client.enqueue("work")
            waiting = asyncio.create_task(handle.result(timeout=60))
            await eventually(lambda: blocked(server) == 1, "the reader to wait")
            proxy.drop()
            await eventually(lambda: blocked(server) == 1, "the reader to wait again")
            finish(server, namespace, handle.id)
            assert await waiting == "done"


def test_wait_survives_a_restart_of_the_server(start_server, namespace):
    server = start_server()
    answers: list[Any] = []
    with Client(server.url, namespace) as client:
        handle = client.enqueue("work")
        waiting = threading.Thread(target=lambda: answers.append(handle.result(timeout=60)), daemon=True)
        waiting.start()
        wait_until(lambda: blocked(server) == 1, "the reader to wait")
        server.kill()
        server.start()
        finish(server, namespace, handle.id)
        waiting.join(30)
    assert answers == ["done"]
