"""The proxy loses exactly one reply, delivers requests late, and is invisible otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.proxy import Proxy, naming
from tests.servers import Server
from tests.waiting import wait_until

Connect = Callable[..., redis.Redis]


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    proxy = Proxy(valkey_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Connect]:
    """Return clients that send each command once."""
    clients: list[redis.Redis] = []

    def make(timeout: float | None = None) -> redis.Redis:
        clients.append(redis.Redis(port=proxy.port, socket_timeout=timeout, retry=Retry(NoBackoff(), 0), protocol=2))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_proxy_without_a_fault_changes_nothing(connect: Connect, namespace: str) -> None:
    client = connect()
    pipe = client.pipeline(transaction=False)
    for number in range(500):
        pipe.rpush(namespace, f"{number}-".encode() * 100)
    assert pipe.execute() == list(range(1, 501))
    assert client.lrange(namespace, 499, -1) == [b"499-" * 100]
    assert client.set(f"{namespace}:large", b"\r\n" * 1_000_000)
    assert client.get(f"{namespace}:large") == b"\r\n" * 1_000_000


def test_command_with_a_lost_reply_was_executed(
    proxy: Proxy, connect: Connect, valkey_server: Server, namespace: str
) -> None:
    client = connect()
    fault = proxy.cut_next_reply()
    with pytest.raises(redis.ConnectionError):
        client.incr(namespace)
    assert fault.happened.is_set()
    assert valkey_server.admin.get(namespace) == b"1"
    assert client.incr(namespace) == 2


def test_fault_in_a_pipeline_hits_the_chosen_command(
    proxy: Proxy, connect: Connect, valkey_server: Server, namespace: str
) -> None:
    pipe = connect().pipeline(transaction=False)
    for key in "abc":
        pipe.set(f"{namespace}:{key}", 1)
    proxy.cut_next_reply(naming(f"{namespace}:b".encode()))
    with pytest.raises(redis.ConnectionError):
        pipe.execute()
    assert valkey_server.admin.exists(f"{namespace}:a", f"{namespace}:b") == 2
    assert not valkey_server.admin.exists(f"{namespace}:c"), "what came after the cut was not delivered"


def test_held_request_is_delivered_after_its_client_is_gone(
    proxy: Proxy, connect: Connect, valkey_server: Server, namespace: str
) -> None:
    client = connect(timeout=1.0)
    proxy.hold_requests(naming(b"SET", namespace.encode()))
    with pytest.raises(redis.TimeoutError):
        client.set(namespace, "late")
    client.close()
    assert proxy.held == 1
    assert connect().set(f"other:{namespace[::-1]}", "in time"), "only what matches is held"
    valkey_server.admin.set(namespace, "newer")
    proxy.release_requests()
    wait_until(lambda: valkey_server.admin.get(namespace) == b"late", "the late request to overtake the newer one")
    wait_until(lambda: proxy.late_replies == [b"+OK\r\n"], "the reply that no client reads")
    assert proxy.held == 0


def test_dropped_connection_does_not_drop_the_held_request(
    proxy: Proxy, connect: Connect, valkey_server: Server, namespace: str
) -> None:
    client = connect()
    proxy.hold_requests()
    failures: list[Exception] = []

    def write() -> None:
        try:
            client.set(namespace, "late")
        except redis.ConnectionError as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: proxy.held, "the request to be held")
    proxy.drop()
    writer.join()
    assert len(failures) == 1
    proxy.release_requests()
    wait_until(lambda: valkey_server.admin.get(namespace), "the late request")


@pytest.mark.matrix("waits through a timeout")
def test_delayed_request_arrives_late_and_delays_no_other(
    proxy: Proxy, connect: Connect, valkey_server: Server, namespace: str
) -> None:
    client = connect(timeout=1.0)
    fault = proxy.delay_next_request(4.0)
    with pytest.raises(redis.TimeoutError):
        client.set(namespace, "late")
    assert fault.happened.is_set()
    assert valkey_server.admin.get(namespace) is None
    wait_until(lambda: valkey_server.admin.get(namespace), "the delayed request")
    assert client.set(namespace, "in time"), "only one was delayed"


def test_refused_connections_are_accepted_again_on_the_same_port(proxy: Proxy, connect: Connect) -> None:
    old = connect()
    old.ping()
    proxy.refuse()
    with pytest.raises(redis.ConnectionError, match="refused"):
        connect().ping()
    assert old.ping(), "open connections continue"
    proxy.accept()
    assert connect().ping()


def test_disconnect_of_a_client_ends_its_blocking_command(
    proxy: Proxy, connect: Connect, valkey_server: Server, namespace: str
) -> None:
    client = connect(timeout=1.0)
    with pytest.raises(redis.TimeoutError):
        client.blpop([namespace], timeout=60)
    client.close()
    wait_until(lambda: not valkey_server.admin.info("clients")["blocked_clients"], "the server to notice")
    assert valkey_server.admin.rpush(namespace, "kept") == 1
    assert valkey_server.admin.llen(namespace) == 1
