"""A thread that waits alone for one run registers, blocks at the server itself, and gets the ending, in one round trip."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator import Client, NotFound, Refused, ResultTimeout, RunCancelled, Unreachable
from coordinator.client.parent import ChildWatch, Parent, current_parent
from coordinator.client.waiting import direct_wait, ending_tracker
from coordinator.client.waiting.direct_wait import DirectWait
from coordinator.config import address
from coordinator.encoding.codec import encode
from coordinator.errors import CoordinatorError
from coordinator.model.run_id import RunIds
from coordinator.store.keys import Keys
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.workers import Claimed, WorkerRecord
from coordinator.store.script import read
from coordinator.store.transport.connections import exchange
from coordinator.store.transport.wire import Wire, drive
from tests.certificates import Certificates
from tests.servers import Server, free_port
from tests.waiting import wait_until

ROUTES = ("default:work@0",)
LONG = 60.0


class Bench:
    """A server, a client, a pool of threads, and a worker whose runs end when the test says so."""

    def __init__(self, server: Server, namespace: str, pool: ThreadPoolExecutor) -> None:
        self.server, self.pool = server, pool
        self.client = Client(server.url, namespace)
        self.wire = Wire(address(server.url))
        self._claims = 0
        self.client.status()  # reads the facts of the namespace
        facts = self.client._open().namespace.facts
        assert facts is not None
        self.keys: Keys = facts.keys(0)
        record = WorkerRecord("w", 60_000, "h", 1, "", "f", "c", 100, ROUTES)
        drive(self.wire, worker_plans.join(self.keys, facts.birth, record))

    @property
    def direct(self) -> DirectWait:
        return self.client._open().direct

    @property
    def wake_list(self) -> str:
        return self.keys.wake(self.direct.client)

    def start(self) -> Claimed:
        """Enqueue a run and claim it."""
        handle = self.client.enqueue("work", {})
        self._claims += 1
        plan = worker_plans.claim(self.keys, "w", number=self._claims, want=1, routes=ROUTES, alone=False)
        _, (run,) = drive(self.wire, plan)
        assert run.id == handle.id
        return run

    def complete(self, run: Claimed, result: Any) -> None:
        plan = attempt_plans.complete(self.keys, run.id, run.token, encode(result, "the result"))
        assert drive(self.wire, plan) == "ok"

    def result(self, run: Claimed, timeout: float = LONG) -> Future[Any]:
        """Wait for a run in a thread. Return when the thread is blocked at the server, or has ended."""
        before = self.blocked()
        waiting = self.pool.submit(self.client.handle(run.id).result, timeout)
        wait_until(lambda: waiting.done() or len(self.blocked()) > len(before), "the thread to block at the server")
        return waiting

    def blocked(self) -> list[dict[str, str]]:
        """Return the connections that are blocked on a wake list."""
        listed = self.server.admin.client_list()
        return [client for client in listed if client["cmd"] == "blpop" and "b" in client["flags"]]

    def close(self) -> None:
        self.client.close()
        self.wire.close()


@pytest.fixture
def bench(start_server: Callable[..., Server], namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    # The client must not learn of an ending by asking on its own.
    monkeypatch.setattr(ending_tracker, "ASK_AGAIN", LONG)
    with ThreadPoolExecutor(4) as pool, closing(Bench(start_server(), namespace, pool)) as made:
        yield made


def readers() -> int:
    return sum(thread.name == "coordinator-hints" for thread in threading.enumerate())


@pytest.fixture
def _direct_if_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let also short waits use the direct wait."""
    monkeypatch.setattr(direct_wait, "LEAST_SECONDS", 0.0)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the methods of Wire that send requests, in the order of their calls."""
    calls: list[str] = []
    for name in ("ask", "ask_after_token"):
        method = getattr(Wire, name)

        def count(wire: Wire, *args: Any, name: str = name, method: Any = method) -> Any:
            calls.append(name)
            return method(wire, *args)

        monkeypatch.setattr(Wire, name, count)
    return calls


def test_a_wait_is_one_round_trip(bench: Bench, trips: list[str]) -> None:
    run = bench.start()
    trips.clear()
    waiting = bench.result(run)
    bench.complete(run, {"answer": 42})
    assert waiting.result(LONG / 2) == {"answer": 42}
    assert trips == ["ask_after_token", "ask"]  # the last one is the request of the worker
    assert readers() == 0


def test_result_of_an_ended_run_arrives_in_one_round_trip(bench: Bench, trips: list[str]) -> None:
    run = bench.start()
    bench.complete(run, {"answer": 42})
    trips.clear()
    waiting = bench.pool.submit(bench.client.handle(run.id).result, LONG)
    assert waiting.result(LONG / 2) == {"answer": 42}
    assert trips == ["ask_after_token"]
    assert bench.server.admin.llen(bench.wake_list) == 0


def test_run_that_does_not_exist_is_not_waited_for(bench: Bench) -> None:
    run = bench.start()
    bench.server.admin.delete(bench.keys.run(run.id))
    waiting = bench.pool.submit(bench.client.handle(run.id).result, LONG)
    with pytest.raises(NotFound):
        waiting.result(LONG / 2)


def test_timeout_of_zero_asks_once(bench: Bench) -> None:
    run = bench.start()
    with pytest.raises(ResultTimeout):
        bench.client.handle(run.id).result(0)
    bench.complete(run, 1)
    assert bench.client.handle(run.id).result(0) == 1


def test_handler_is_warned_only_of_a_child_that_has_not_ended(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    ended, running = bench.start(), bench.start()
    bench.complete(ended, 1)
    token = current_parent.set(Parent("the-parent", {}, ChildWatch({ended.id, running.id})))
    try:
        assert bench.client.handle(ended.id).result(LONG) == 1
        assert not caplog.messages
        with pytest.raises(ResultTimeout):
            bench.client.handle(running.id).result(0.05)
    finally:
        current_parent.reset(token)
    assert f"its child {running.id}" in caplog.text


def test_error_of_a_run_arrives_with_the_hint(bench: Bench) -> None:
    handle = bench.client.enqueue("work", {})
    waiting = bench.pool.submit(handle.result, LONG)
    wait_until(bench.blocked, "the thread to block at the server")
    bench.client.handle(handle.id).cancel()
    with pytest.raises(RunCancelled):
        waiting.result(LONG / 2)
    assert readers() == 0


def test_largest_result_arrives_with_the_hint(bench: Bench) -> None:
    run, result = bench.start(), b"x" * (8 * 1024 * 1024 - 100)
    waiting = bench.result(run)
    bench.complete(run, result)
    assert waiting.result(LONG / 2) == result
    assert readers() == 0


@pytest.mark.usefixtures("_direct_if_short")
def test_next_call_waits_directly_after_a_timeout(bench: Bench) -> None:
    run = bench.start()
    with pytest.raises(ResultTimeout):
        bench.client.handle(run.id).result(0.05)
    waiting = bench.result(run)
    bench.complete(run, 1)
    assert waiting.result(LONG / 2) == 1
    assert readers() == 0


def test_second_thread_waits_with_the_reader(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    waiting = [bench.result(first), bench.result(second)]
    waiting.append(bench.pool.submit(bench.client.handle(first.id).result, LONG))
    wait_until(lambda: bench.server.admin.scard(bench.keys.waiters(first.id)) == 2, "the third thread to register")
    assert readers() == 1
    bench.complete(second, 2)
    assert waiting[1].result(LONG / 2) == 2
    bench.complete(first, 1)
    assert [waiting[0].result(LONG / 2), waiting[2].result(LONG / 2)] == [1, 1]


@pytest.mark.usefixtures("_direct_if_short")
def test_hints_about_runs_that_no_call_waits_for_are_removed_together(bench: Bench, trips: list[str]) -> None:
    left = [bench.start() for _ in range(30)]
    for run in left:
        with pytest.raises(ResultTimeout):
            bench.client.handle(run.id).result(0.005)
    for run in left:
        bench.complete(run, None)
    assert bench.server.admin.llen(bench.wake_list) == 30
    run = bench.start()
    trips.clear()
    waiting = bench.result(run)
    assert trips.count("ask_after_token") == 2
    bench.complete(run, 1)
    assert waiting.result(LONG / 2) == 1


def test_run_that_ends_beside_a_stale_hint_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends after the server has answered the stale hint. Its own hint is removed with the stale ones."""
    run = bench.start()
    send = Wire.ask_after_token

    def send_and_end_the_run(wire: Wire, *args: Any) -> Any:
        answer = send(wire, *args)
        monkeypatch.setattr(Wire, "ask_after_token", send)
        bench.complete(run, 1)
        return answer

    bench.server.admin.rpush(bench.wake_list, "stale")
    monkeypatch.setattr(Wire, "ask_after_token", send_and_end_the_run)
    waiting = bench.pool.submit(bench.client.handle(run.id).result, LONG)
    assert waiting.result(LONG / 2) == 1


def test_lost_hint_delays_a_direct_wait_by_seconds_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending_tracker, "ASK_AGAIN", 0.5)
    run = bench.start()
    waiting = bench.result(run)
    bench.server.admin.delete(bench.keys.waiters(run.id))
    bench.complete(run, 1)
    assert waiting.result(LONG / 2) == 1


def test_thread_whose_connection_is_lost_continues_with_the_reader(bench: Bench) -> None:
    run = bench.start()
    waiting = bench.result(run)
    (blocked,) = bench.blocked()
    bench.server.admin.client_kill(blocked["addr"])
    wait_until(lambda: readers() == 1, "the reader to start")
    bench.complete(run, 1)
    assert waiting.result(LONG / 2) == 1


def test_run_that_ended_while_the_connection_was_lost_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = bench.start()

    def end_the_run_and_fail(*_: Any) -> Any:
        bench.complete(run, 1)
        return False, Unreachable("the connection was lost")

    monkeypatch.setattr(Wire, "ask_after_token", end_the_run_and_fail)
    waiting = bench.pool.submit(bench.client.handle(run.id).result, LONG)
    assert waiting.result(LONG / 2) == 1


def test_refused_blocking_command_is_not_repeated(bench: Bench, trips: list[str]) -> None:
    """A server that refuses the command answers at once. The thread must not send it again and again."""
    run = bench.start()
    bench.server.admin.set(bench.wake_list, "no list")
    waiting = bench.result(run)
    wait_until(lambda: readers() == 1, "the reader to start")
    assert trips.count("ask_after_token") == 1
    bench.complete(run, 1)
    assert waiting.result(LONG / 2) == 1


def test_registration_needs_no_script_at_the_server(bench: Bench) -> None:
    run = bench.start()
    bench.server.admin.script_flush()
    waiting = bench.result(run)
    bench.complete(run, 1)
    assert waiting.result(LONG / 2) == 1
    assert readers() == 0


def test_thread_does_not_block_after_a_refused_registration(bench: Bench) -> None:
    run = bench.start()
    bench.server.admin.set(bench.keys.waiters(run.id), "no set")
    waiting = bench.pool.submit(bench.client.handle(run.id).result, LONG)
    with pytest.raises(CoordinatorError, match="WRONGTYPE"):
        waiting.result(LONG / 2)


def test_script_that_the_server_has_forgotten_is_sent_with_its_source(bench: Bench) -> None:
    run = bench.start()
    waiting = bench.result(run)
    bench.server.admin.script_flush()
    bench.complete(run, 1)
    assert waiting.result(LONG / 2) == 1
    assert readers() == 0


def test_run_that_is_removed_during_the_wait_is_not_found(bench: Bench) -> None:
    run = bench.start()
    waiting = bench.result(run)
    bench.server.admin.delete(bench.keys.run(run.id))
    bench.server.admin.rpush(bench.wake_list, run.id)
    with pytest.raises(NotFound):
        waiting.result(LONG / 2)


def test_closing_the_client_ends_a_direct_wait(bench: Bench) -> None:
    waiting = bench.result(bench.start())
    bench.client.close()
    with pytest.raises(Refused, match="closed"):
        waiting.result(LONG / 2)


def test_direct_wait_may_be_longer_than_a_trip(bench: Bench, namespace: str) -> None:
    run = bench.start()
    with Client(bench.server.url, namespace, timeout=0.2) as client:
        waiting = bench.pool.submit(client.handle(run.id).result, LONG)
        wait_until(bench.blocked, "the thread to block at the server")
        wait_until(lambda: any(int(blocked["idle"]) >= 1 for blocked in bench.blocked()), "a second to pass")
        assert readers() == 0
        bench.complete(run, 1)
        assert waiting.result(LONG / 2) == 1


def test_wait_of_no_time_does_not_block_for_ever(bench: Bench) -> None:
    registration = client_plans.register(bench.keys, bench.start().id, bench.direct.client)
    request = read(bench.keys.at, "EXISTS", bench.wake_list)
    asked = bench.pool.submit(bench.wire.ask_after_token, registration, bench.wake_list, 0.0, request)
    wait_until(asked.done, "the server to answer")
    assert asked.result() == (False, 0)


def test_timeout_is_kept_if_the_server_does_not_answer(bench: Bench, trips: list[str]) -> None:
    """After the timeout the thread waits one second longer for the server. It does not ask once more."""
    waiting = bench.result(bench.start(), timeout=1.0)
    trips.clear()
    bench.server.pause()
    began = time.monotonic()
    try:
        with pytest.raises(ResultTimeout):
            waiting.result(LONG / 2)
    finally:
        bench.server.resume()
    assert trips == []
    assert time.monotonic() - began < 4.0  # the time limit of a connection is 5 s


def test_timeout_is_kept_if_the_server_stops_after_a_stale_hint(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run, send = bench.start(), Wire.ask_after_token

    def send_and_stop_the_server(wire: Wire, *args: Any) -> Any:
        answer = send(wire, *args)
        bench.server.pause()
        return answer

    bench.server.admin.rpush(bench.wake_list, "stale")
    monkeypatch.setattr(Wire, "ask_after_token", send_and_stop_the_server)
    began = time.monotonic()
    try:
        with pytest.raises(ResultTimeout):
            bench.client.handle(run.id).result(1.0)
    finally:
        bench.server.resume()
    assert time.monotonic() - began < 15.0  # requests are repeated for 30 s if they have no other limit


def test_blocking_commands_have_no_floats(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """hiredis 3.5 crashes the process if a signal handler raises, as for Ctrl-C, while it packs a float."""
    sent: list[Any] = []
    encode_commands = exchange.encode_commands

    def record(commands: Any) -> bytes:
        sent.extend(argument for command in commands for argument in command)
        return encode_commands(commands)

    monkeypatch.setattr(exchange, "encode_commands", record)
    runs = [bench.start(), bench.start()]
    waiting = [bench.result(run) for run in runs]  # the second thread waits with the reader
    for run, waits in zip(runs, waiting, strict=True):
        bench.complete(run, 1)
        assert waits.result(LONG / 2) == 1
    assert sent.count("BLPOP") >= 2
    assert not [argument for argument in sent if isinstance(argument, float)]


def test_timeout_is_kept_if_no_server_can_be_reached(namespace: str) -> None:
    with Client(f"redis://127.0.0.1:{free_port()}/0", namespace, timeout=50.0) as client:
        began = time.monotonic()
        with pytest.raises(ResultTimeout):
            client.handle(RunIds().make(1, 0)).result(1.0)
        assert time.monotonic() - began < LONG / 2


def test_short_wait_uses_the_reader(bench: Bench, trips: list[str]) -> None:
    with pytest.raises(ResultTimeout):
        bench.client.handle(bench.start().id).result(0.05)
    assert "ask_after_token" not in trips


def test_interrupted_wait_does_not_keep_the_direct_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may raise at any line, also between the acquisition and the first line after it."""
    run, acquire = bench.start(), DirectWait.acquire

    def acquire_and_interrupt(*args: Any) -> bool:
        acquire(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(DirectWait, "acquire", acquire_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.client.handle(run.id).result(LONG)
    monkeypatch.setattr(DirectWait, "acquire", acquire)
    waiting = bench.result(run)
    bench.complete(run, 1)
    assert waiting.result(LONG / 2) == 1
    assert readers() == 0


def test_closed_wire_opens_no_connection(bench: Bench) -> None:
    """Another thread may close the client between two requests of a wait. A new connection would never be closed."""
    wire, request = Wire(address(bench.server.url), timeout=LONG), read(bench.keys.at, "EXISTS", bench.wake_list)
    registration = client_plans.register(bench.keys, bench.start().id, "client")
    assert wire.ask([request]) == [0]
    wire.close()
    connections = len(bench.server.admin.client_list())
    began = time.monotonic()
    (answer,) = wire.ask([request])
    taken, direct_answer = wire.ask_after_token(registration, bench.wake_list, LONG, request)
    assert time.monotonic() - began < LONG / 2  # a closed wire does not repeat its requests
    assert isinstance(answer, Unreachable)
    assert isinstance(direct_answer, Unreachable)
    assert not taken
    assert len(bench.server.admin.client_list()) <= connections


def test_new_tls_connection_may_block_longer_than_a_trip(
    start_server: Callable[..., Server], tmp_path: Path, namespace: str
) -> None:
    """The server sends session tickets first. They must not count as the reply to the blocking command."""
    certificates, port = Certificates(tmp_path / "certificates"), free_port()
    start_server("redis", {"tls-port": str(port), **certificates.settings()})
    url = f"rediss://127.0.0.1:{port}/0?{certificates.options()}"
    with Client(url, namespace) as client, closing(Wire(address(url), timeout=0.3)) as wire:
        id = client.enqueue("work", {}).id
        facts = client._open().namespace.facts
        assert facts is not None
        keys = facts.keys(0)
        registration, request = client_plans.register(keys, id, "client"), read(keys.at, "EXISTS", keys.run(id))
        assert wire.ask_after_token(registration, keys.wake("client"), 1.0, request) == (False, 1)
