"""The contract of the client, on every store and with one or several partitions. The tests act as the worker by driving plans."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import pytest

from coordinator import (
    AsyncClient,
    BadName,
    BadOption,
    Changed,
    Client,
    Handle,
    Inputs,
    KeyConflict,
    NotFound,
    NotPlain,
    Refused,
    ResultTimeout,
    RunCancelled,
    RunDead,
    RunFailed,
    Status,
    TooLarge,
    Unreadable,
)
from coordinator.client.operations import lists as list_operations
from coordinator.client.parent import Parent, current_parent
from coordinator.client.reading.scan import Walk
from coordinator.config import address
from coordinator.encoding.codec import encode
from coordinator.model.names import parse_route
from coordinator.store.keys import Namespace
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.attempts import Delta
from coordinator.store.plans.workers import Claimed, WorkerRecord
from coordinator.store.replies import pairs
from coordinator.store.script import read
from coordinator.store.transport.wire import Plan, Wire, drive
from tests.unrest import LEVELS, UNREST
from tests.waiting import eventually, wait_until
from workers import Registry, Run

T = TypeVar("T")
ASK_AGAIN = 45.0  # seconds until a waiting client asks by itself; longer than a wake-up takes on a busy machine


class Shop:
    """A namespace with a client, and a worker whose calls the test makes itself."""

    def __init__(self, url: str, name: str, partitions: int) -> None:
        self.url, self.name = url, name
        self.wire = Wire(address(url))
        level = LEVELS.get(address(url).kind, "local") if UNREST else "local"
        self.space: Namespace = self.do(
            namespace_plans.create(name, birth="b", partitions=partitions, durability=level)
        )
        self.client = Client(url, name)
        self._numbers: dict[int, int] = {}

    def do(self, plan: Plan[T]) -> T:
        return drive(self.wire, plan)

    def join(self, *routes: str, worker: str = "w") -> None:
        member = WorkerRecord(worker, 15_000, "host", 7, "", "fleet", "v1", 10, routes)
        for keys in self.space.everywhere():
            word = self.do(worker_plans.join(keys, self.space.birth, member))
            if word == "mismatch":
                # The partition was unreachable when the namespace was created. A worker does the same.
                assert self.do(namespace_plans.create_missing_copies(self.name, self.space.birth))
                word = self.do(worker_plans.join(keys, self.space.birth, member))
            assert word == "ok"

    def claim(self, *routes: str, want: int = 500, worker: str = "w") -> dict[str, Claimed]:
        claimed: dict[str, Claimed] = {}
        for keys in self.space.everywhere():
            number = self._numbers[keys.partition] = self._numbers.get(keys.partition, 0) + 1
            plan = worker_plans.claim(keys, worker, number=number, want=want, routes=routes, alone=True)
            claimed |= {run.id: run for run in self.do(plan)[1]}
        return claimed

    def start(self, *handles: Handle[Any], route: str = "default:work@0") -> dict[str, Claimed]:
        """Let the worker claim these runs, and check that no other run was waiting."""
        self.join(route)
        claimed = self.claim(route)
        assert claimed.keys() == {handle.id for handle in handles}
        return claimed

    def complete(self, run: Claimed, value: object = None) -> None:
        result = b"" if value is None else encode(value, "result")
        assert self.do(attempt_plans.complete(self.space.keys_of(run.id), run.id, run.token, result)) == "ok"

    def fail(self, run: Claimed, *error: str) -> None:
        assert (
            self.do(attempt_plans.fail(self.space.keys_of(run.id), run.id, run.token, encode(list(error), "error")))
            == "ok"
        )

    def due(self) -> None:
        for keys in self.space.everywhere():
            self.do(coordinator_plans.due(keys))

    def fields(self, id: str) -> dict[str, Any]:
        keys = self.space.keys_of(id)
        return pairs(self.wire.ask([read(keys.at, "HGETALL", keys.run(id))])[0])

    def all_keys(self) -> list[str]:
        found: list[str] = []
        cursor = "0"
        while True:
            reply = self.wire.ask([read("", "SCAN", cursor, "MATCH", f"{{{self.name}:*", "COUNT", 1000)])[0]
            found += [key.decode() for key in reply[1]]
            cursor = reply[0].decode()
            if cursor == "0":
                return sorted(found)


@pytest.fixture(params=[1, 4], ids=["P=1", "P=4"])
def shop(request: pytest.FixtureRequest, store_url: str, namespace: str) -> Iterator[Shop]:
    shop = Shop(store_url, namespace, request.param)
    yield shop
    shop.client.close()
    shop.wire.close()


@pytest.fixture
def client(shop: Shop) -> Client:
    return shop.client


def in_thread(action: Callable[[], T]) -> Callable[[], T]:
    """Start a function in a thread. The returned function waits for its result."""
    answers: list[Any] = []

    def act() -> None:
        try:
            answers.append(action())
        except BaseException as error:  # noqa: BLE001  # carried over to the test
            answers.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()

    def answer() -> Any:
        thread.join(60)
        assert not thread.is_alive()
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]

    return answer


def later_than(ms: int) -> bool:
    return time.time() * 1000 > ms + 1


def waits(shop: Shop, id: str) -> bool:
    keys = shop.space.keys_of(id)
    return bool(shop.wire.ask([read(keys.at, "SCARD", keys.waiters(id))])[0])


# ---- enqueue


def test_a_run_is_shown_as_it_was_enqueued(client, shop):
    before = datetime.now(UTC) - timedelta(seconds=5)
    handle = client.enqueue("work", {"topic": "tides", "when": (1, b"x")}, meta={"caller_id": "u1"}, priority=7)
    view = handle.view()
    assert handle.created
    assert (view.id, view.kind, view.queue, view.status) == (handle.id, "work", "default", Status.QUEUED)
    assert view.inputs == {"topic": "tides", "when": (1, b"x")}
    assert view.meta == {"caller_id": "u1"}
    assert view.counters.score < 0
    assert before < view.created < datetime.now(UTC) + timedelta(seconds=5)
    assert (view.attempt, view.iteration, view.phases, view.note, view.error, view.owner) == (
        0,
        0,
        (),
        None,
        None,
        None,
    )
    assert (view.parent, view.key, view.schema, view.cancelling) == (None, None, 0, False)


def test_inputs_of_a_handler_and_a_kind_by_name_are_the_same(client):
    a = client.enqueue(Inputs("work", {"n": 1})).view()
    b = client.enqueue("work", {"n": 1}).view()
    assert (a.kind, a.inputs) == (b.kind, b.inputs)
    assert client.enqueue("work").view().inputs == {}


def test_queue_and_schema_determine_the_route(client, shop):
    handle = client.enqueue("work", queue="slow", schema=3)
    assert parse_route(shop.fields(handle.id)["route"].decode()) == ("slow", "work", 3)
    assert handle.view().queue == "slow"
    assert handle.view().schema == 3


def test_higher_priority_runs_first(client):
    low, high, middle = (client.enqueue("work", priority=priority) for priority in (-5, 5, 0))
    assert [view.id for view in client.list("queued")] == [high.id, middle.id, low.id]


def test_a_delayed_run_waits_until_it_is_due(client, shop):
    handle = client.enqueue("work", delay=3600)
    view = handle.view()
    assert view.status is Status.DELAYED
    assert view.due is not None
    assert abs((view.due - datetime.now(UTC)).total_seconds() - 3600) < 60
    assert view.why == f"delayed until {view.due.isoformat(timespec='milliseconds')}"
    assert handle.position() is None


@pytest.mark.parametrize("as_datetime", [True, False])
def test_run_may_be_scheduled_for_a_time(client, as_datetime):
    at = datetime.now(UTC) + timedelta(hours=2)
    handle = client.enqueue("work", at=at if as_datetime else at.timestamp())
    due = handle.view().due
    assert due is not None
    assert abs(due - at) < timedelta(milliseconds=2)


def test_past_time_means_now(client):
    assert client.enqueue("work", at=1000.0).view().status is Status.QUEUED
    assert client.enqueue("work", delay=0).view().status is Status.QUEUED


def test_run_that_no_worker_takes_in_time_expires(client, shop):
    handle = client.enqueue("work", expires=0)
    shop.due()
    with pytest.raises(RunCancelled, match="expired"):
        handle.result(timeout=10)
    assert "expired" in handle.view().why


def test_retention_is_stored_with_the_run(client, shop):
    assert shop.fields(client.enqueue("work", retention=1.5).id)["retention"] == b"1500"


def test_discarded_result_is_not_mistaken_for_none(client, shop):
    handle = client.enqueue("work", retention=0)
    shop.complete(shop.start(handle)[handle.id], "text")
    assert handle.wait(timeout=10) is Status.COMPLETED
    with pytest.raises(NotFound, match="retention=0"):
        handle.result(timeout=10)
    assert handle.view().inputs == {}


def test_a_child_knows_its_parent(client, shop):
    parent = client.enqueue("work")
    child = client.enqueue("work", parent=parent.id)
    assert child.view().parent == parent.id
    keys = shop.space.keys_of(child.id)
    assert shop.wire.ask([read(keys.at, "SMEMBERS", keys.children(parent.id))])[0] == [child.id.encode()]


def test_parent_and_meta_are_inherited_inside_a_handler(client):
    parent = client.enqueue("work")
    token = current_parent.set(Parent(parent.id, {"caller_id": "u1", "channel_id": "c"}))
    try:
        child = client.enqueue("work", meta={"channel_id": "other"}).view()
        many = client.enqueue_many([("work", {})])[0].view()
        stranger = client.enqueue("work", parent=child.id).view()
        fresh = Client(client._settings.url, client._settings.namespace)
    finally:
        current_parent.reset(token)
    with fresh:
        assert fresh.enqueue("work").view().parent is None
    assert (child.parent, child.meta) == (parent.id, {"caller_id": "u1", "channel_id": "other"})
    assert (many.parent, many.meta) == (parent.id, {"caller_id": "u1", "channel_id": "c"})
    assert (stranger.parent, stranger.meta) == (child.id, {})


def test_unknown_option_is_a_type_error(client, shop):
    with pytest.raises(TypeError, match=r"there is no option 'prio': there are queue, priority, .*parent, meta"):
        client.enqueue("work", prio=1)


@pytest.mark.parametrize("kind", [None, 3, b"work", ""])
def test_kind_that_is_not_a_valid_name_is_refused(client, kind):
    """`str(None)` is a valid name, and such a run would wait forever for a handler called None."""
    with pytest.raises(BadName, match=r"kind .* is not a valid name"):
        client.enqueue(kind)
    assert client.list() == []


# ---- a refused call writes nothing


@pytest.mark.parametrize(
    ("kind", "inputs", "options", "error", "said"),
    [
        ("bad kind", {}, {}, BadName, "bad kind"),
        ("work", {"a": {"b": {1, 2}}}, {}, NotPlain, r"inputs\.a\.b is a set"),
        ("work", {1: 2}, {}, NotPlain, "names of inputs are text"),
        ("work", [1], {}, NotPlain, "inputs must be a dict"),
        ("work", {"a": "x" * 2**20}, {}, TooLarge, r"inputs has 1,048,58\d bytes, and the limit is 1,048,576"),
        ("work", {}, {"meta": {"a": "x" * 2**17}}, TooLarge, "meta has"),
        ("work", {}, {"meta": {"a": {}}}, BadOption, "flat"),
        ("work", {}, {"queue": "a b"}, BadName, "queue"),
        ("work", {}, {"priority": 101}, BadOption, "priority"),
        ("work", {}, {"priority": 1.5}, BadOption, "priority 1.5 is not a whole number"),
        ("work", {}, {"priority": True}, BadOption, "priority True is not a whole number"),
        ("work", {}, {"priority": "5"}, BadOption, "priority '5' is not a whole number"),
        ("work", {}, {"schema": 1.5}, BadOption, "schema 1.5 is not a whole number"),
        ("work", {}, {"delay": "5"}, BadOption, "delay '5' is not a time"),
        ("work", {}, {"expires": timedelta(hours=-1)}, BadOption, "expires .* is not a time of 0 seconds or more"),
        ("work", {}, {"meta": [1]}, BadOption, "meta must be a dict of names and values, not list"),
        ("work", {}, {"queue": None}, BadName, "queue None is not a valid name"),
        ("work", {}, {"delay": 1, "at": 5}, BadOption, "delay and at exclude each other: give one of them"),
        ("work", {}, {"delay": -1}, BadOption, "delay"),
        ("work", {}, {"delay": float("nan")}, BadOption, "delay"),
        ("work", {}, {"at": datetime(2030, 1, 1)}, BadOption, "zone"),  # noqa: DTZ001  # the point of it
        ("work", {}, {"expires": float("inf")}, BadOption, "expires"),
        ("work", {}, {"schema": 100}, BadOption, "schema"),
        ("work", {}, {"key": ""}, BadOption, "key"),
        ("work", {}, {"key": "\ud800"}, BadOption, "surrogates"),
        ("work", {}, {"key": 5}, BadOption, "key"),
        ("work", {}, {"parent": "me"}, BadOption, "parent"),
        ("work", {}, {"id": "me"}, Refused, "me"),
    ],
)
def test_refused_enqueue_writes_nothing(store_url, namespace, kind, inputs, options, error, said):
    with Client(store_url, namespace) as client:
        client.status()
        wire = Wire(address(store_url))
        before = wire.ask([read("", "KEYS", f"{{{namespace}:*")])[0]
        with pytest.raises(error, match=said):
            client.enqueue(kind, inputs, **options)
        many = {field: value for field, value in options.items() if field not in ("key", "id")}
        if "key" in options:
            many["key"] = lambda _: options["key"]
        if "id" in options:
            many["ids"] = [options["id"]]
        with pytest.raises(error, match=said):
            client.enqueue_many([(kind, inputs)], **many)
        assert wire.ask([read("", "KEYS", f"{{{namespace}:*")])[0] == before
        wire.close()


def test_refused_enqueue_does_not_even_create_the_namespace(store_url, namespace):
    with Client(store_url, namespace) as client, pytest.raises(NotPlain):
        client.enqueue("work", {"a": object()})
    wire = Wire(address(store_url))
    assert wire.ask([read("", "KEYS", f"{{{namespace}:*")])[0] == []
    wire.close()


# ---- keys


def test_key_finds_its_run(client):
    first = client.enqueue("work", {"a": 1, "b": [2]}, key="today")
    again = client.enqueue("work", {"b": [2], "a": 1}, key="today")
    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert first.view().key == "today"
    assert client.enqueue("other", {"a": 9}, key="today").created  # a key is unique within its kind


def test_key_with_different_inputs_is_a_conflict(client):
    first = client.enqueue("work", {"a": 1}, key="today")
    with pytest.raises(KeyConflict, match=first.id):
        client.enqueue("work", {"a": 2}, key="today")
    with pytest.raises(KeyConflict):
        client.enqueue("work", {"a": 1.0}, key="today")


def test_key_finds_its_run_even_after_the_run_ended(client, shop):
    handle = client.enqueue("work", key="today")
    shop.complete(shop.start(handle)[handle.id], 5)
    again = client.enqueue("work", key="today")
    assert (again.created, again.result(timeout=10)) == (False, 5)


def test_with_a_key_ttl_of_0_the_key_is_free_when_the_run_ends(client, shop):
    handle = client.enqueue("work", key="today", key_ttl=0)
    assert not client.enqueue("work", key="today").created
    shop.complete(shop.start(handle)[handle.id])
    assert client.enqueue("work", key="today").created


def test_run_with_a_key_that_is_free_at_its_end_exists_only_once(client, shop):
    """The guide of limits recommends this for a run that must exist only once, and with a delay instead of a debounce."""

    def enqueue(n: int, **options: Any) -> tuple[bool, str]:
        found = client.enqueue("work", {"n": n}, key="reindex", key_ttl=0, **options)
        return found.created, found.id

    _, first = enqueue(1)
    assert enqueue(1) == (False, first)
    run = shop.start(client.handle(first))[first]
    assert enqueue(1) == (False, first)
    with pytest.raises(KeyConflict):
        enqueue(2)
    shop.complete(run)
    created, second = enqueue(2, delay=60)
    assert (created, second == first) == (True, False)
    assert enqueue(2, delay=60) == (False, second)
    client.handle(second).cancel()
    assert enqueue(2)[0]


def test_key_ttl_applies_when_the_run_ends(client, shop):
    handle = client.enqueue("work", key="today", key_ttl=90)
    shop.complete(shop.start(handle)[handle.id])
    keys = shop.space.keys_of(handle.id)
    left = int(shop.wire.ask([read(keys.at, "PTTL", keys.once("work", "today"))])[0])
    assert 0 < left <= 90_000


# ---- many


def test_enqueue_many_keeps_the_order(client):
    handles = client.enqueue_many((("work", {"n": n}) for n in range(1234)), meta={"batch": "b"})
    assert len({handle.id for handle in handles}) == 1234
    assert all(handle.created for handle in handles)
    for n in (0, 499, 500, 1233):
        assert handles[n].view().inputs == {"n": n}
    assert client.status().counts[Status.QUEUED] == 1234
    assert client.status().queues == {"default:work@0": 1234}


def test_enqueue_many_reads_its_inputs_as_a_stream(client):
    """Each batch is sent before the next one is read from the iterable."""
    most = 0

    def endless() -> Iterator[Inputs[None]]:
        nonlocal most
        for n in range(1500):
            if n % 500 == 1:
                most = max(most, n - 1 - client.status().counts[Status.QUEUED])
            yield Inputs("work", {"n": n})

    assert len(client.enqueue_many(endless())) == 1500
    assert most <= 500


def test_large_inputs_are_sent_in_small_batches(client):
    handles = client.enqueue_many(("work", {"n": n, "text": "x" * 400_000}) for n in range(6))
    assert [handle.view().inputs["n"] for handle in handles] == list(range(6))


def test_enqueue_many_accepts_keys(client):
    texts = ["a", "b", "a", "c"]
    handles = client.enqueue_many((("work", {"text": text}) for text in texts), key=lambda inputs: inputs["text"])
    assert [handle.created for handle in handles] == [True, True, False, True]
    assert handles[0].id == handles[2].id
    again = client.enqueue_many((("work", {"text": text}) for text in texts), key=lambda inputs: inputs["text"])
    assert [handle.id for handle in again] == [handle.id for handle in handles]
    assert not any(handle.created for handle in again)


def test_enqueue_many_raises_a_conflict(client):
    with pytest.raises(KeyConflict) as caught:
        client.enqueue_many([("work", {"n": 1}), ("work", {"n": 2})], key=lambda _: "same")
    assert caught.value.__notes__ == ["1 runs of this call were enqueued before it"]


def test_enqueue_many_stops_at_a_bad_item_and_reports_how_many_were_enqueued(client):
    def some() -> Iterator[tuple[str, dict[str, Any]]]:
        yield from (("work", {"n": n}) for n in range(600))
        yield "work", {"n": object()}

    with pytest.raises(NotPlain, match=r"inputs\.n") as caught:
        client.enqueue_many(some())
    assert caught.value.__notes__ == ["500 runs of this call were enqueued before it"]
    assert client.status().counts[Status.QUEUED] == 500


def test_enqueue_many_without_inputs_creates_no_runs(client):
    assert client.enqueue_many([]) == []


def test_enqueue_many_refuses_an_item_that_is_neither_inputs_nor_a_pair(client):
    with pytest.raises(BadOption, match="neither"):
        client.enqueue_many(["work"])


def test_repeating_a_call_with_the_same_ids_creates_nothing_new(client):
    first = client.enqueue("work", {"n": 1})
    assert client.enqueue("work", {"n": 1}, id=first.id).id == first.id
    many = client.enqueue_many(("work", {"n": n}) for n in range(600))
    again = client.enqueue_many((("work", {"n": n}) for n in range(600)), ids=[handle.id for handle in many])
    assert [handle.id for handle in again] == [handle.id for handle in many]
    assert client.status().counts[Status.QUEUED] == 601


# ---- waiting for endings


def test_result_of_an_ended_run_is_returned_at_once(client, shop):
    handle = client.enqueue("work")
    shop.complete(shop.start(handle)[handle.id], {"answer": (42, b"x")})
    assert handle.result() == {"answer": (42, b"x")}
    assert handle.wait() is Status.COMPLETED
    assert client.handle(handle.id).result() == {"answer": (42, b"x")}
    assert handle.view().why == "the handler returned"


def test_ending_wakes_the_waiting_client(client, shop, monkeypatch):
    monkeypatch.setattr("coordinator.client.waiting.ending_tracker.ASK_AGAIN", ASK_AGAIN)
    handle = client.enqueue("work")
    run = shop.start(handle)[handle.id]
    answer = in_thread(lambda: (handle.result(timeout=2 * ASK_AGAIN), time.monotonic()))
    wait_until(lambda: waits(shop, handle.id), "the waiter to be noted")
    began = time.monotonic()
    shop.complete(run, None)
    result, at = answer()
    assert result is None
    assert at - began < ASK_AGAIN / 2  # earlier than the client would have asked by itself


def test_lost_hint_delays_the_result_by_seconds_only(client, shop, monkeypatch):
    monkeypatch.setattr("coordinator.client.waiting.ending_tracker.ASK_AGAIN", 0.05)
    handle = client.enqueue("work")
    run = shop.start(handle)[handle.id]
    monkeypatch.setattr("coordinator.client.waiting.mailboxes.Mailboxes.deliver", lambda *_: None)
    answer = in_thread(lambda: handle.result(timeout=30))
    wait_until(lambda: waits(shop, handle.id), "the waiter to be noted")
    shop.complete(run, 1)
    assert answer() == 1


def test_many_threads_wait_with_one_client(client, shop):
    before = set(threading.enumerate())  # the reader of a client that was just closed may not have ended yet
    handles = client.enqueue_many(("work", {"n": n}) for n in range(20))
    runs = shop.start(*handles)
    answers = [in_thread(partial(handle.result, timeout=30)) for handle in handles]
    readers = [thread for thread in set(threading.enumerate()) - before if thread.name == "coordinator-hints"]
    assert len(readers) <= 1
    for n, handle in enumerate(handles):
        shop.complete(runs[handle.id], n)
    assert [answer() for answer in answers] == list(range(20))


def test_handles_are_yielded_in_the_order_of_their_endings(client, shop):
    handles = client.enqueue_many(("work", {"n": n}) for n in range(4))
    runs = shop.start(*handles)
    shop.complete(runs[handles[2].id])
    ending = client.wait(handles, timeout=30)
    assert next(ending) is handles[2]
    for n in (3, 0, 1):
        shop.complete(runs[handles[n].id])
        assert next(ending) is handles[n]
    assert list(ending) == []


def test_handles_of_already_ended_runs_are_yielded_in_that_order_too(client, shop):
    handles = client.enqueue_many(("work", {"n": n}) for n in range(3))
    runs = shop.start(*handles)
    for n in (1, 2, 0):
        shop.complete(runs[handles[n].id])
        ended = int(shop.fields(handles[n].id)["ended"])
        wait_until(partial(later_than, ended), "the next millisecond")
    assert list(client.wait(handles)) == [handles[1], handles[2], handles[0]]
    assert list(client.wait([])) == []


def test_result_times_out_and_the_run_continues(client):
    handle = client.enqueue("work")
    with pytest.raises(ResultTimeout, match=r"has not ended within 0\.05 s"):
        handle.result(timeout=0.05)
    with pytest.raises(TimeoutError):
        handle.wait(timeout=0)
    with pytest.raises(ResultTimeout, match="2 runs"):
        list(client.wait([handle, client.enqueue("work")], timeout=0))
    assert handle.view().status is Status.QUEUED


def test_failure_is_raised_with_its_stored_details(client, shop):
    handle = client.enqueue("work")
    shop.fail(shop.start(handle)[handle.id], "ValueError", "no tides", "Traceback …")
    with pytest.raises(RunFailed, match=f"^run {handle.id} failed: ValueError: no tides$") as caught:
        handle.result()
    error = caught.value
    assert (error.run, error.type, error.message, error.traceback) == (
        handle.id,
        "ValueError",
        "no tides",
        "Traceback …",
    )
    view = handle.view()
    assert view.why == "ValueError: no tides"
    assert view.error is not None
    assert view.error.traceback == "Traceback …"


def test_dead_run_raises_dead(client, shop):
    handle = client.enqueue("work")
    keys = shop.space.keys_of(handle.id)
    error = encode(["ImportError", "no module", ""], "error")
    for _ in range(3):
        run = shop.start(handle)[handle.id]
        assert shop.do(attempt_plans.reject(keys, handle.id, run.token, proven=True, error=error)) in (
            "ok",
            "delayed",
            "dead",
        )
        view = handle.view()
        if view.status is Status.DEAD:
            break
        assert "ImportError: no module" in view.why
        shop.wire.ask([read(keys.at, "ZADD", keys.delayed(), 1, handle.id)])  # its back-off is over
        shop.due()
    with pytest.raises(RunDead, match=f"^run {handle.id} is dead: .*strikes"):
        handle.result()
    assert "strikes" in handle.view().why


def test_unknown_run_is_not_found(client, shop):
    ghost = client.handle(f"{'0' * 20}-00")
    for action in (ghost.view, ghost.result, ghost.wait, ghost.cancel, ghost.revive, ghost.position):
        with pytest.raises(NotFound, match="no run"):
            action()
    with pytest.raises(NotFound, match="partition 77"):
        client.handle(f"{'0' * 20}-77").view()


# ---- cancel, revive


def test_waiting_run_is_cancelled_at_once(client, shop):
    handle, delayed = client.enqueue("work"), client.enqueue("work", delay=60)
    answer = in_thread(lambda: handle.result(timeout=30))
    wait_until(lambda: waits(shop, handle.id), "the waiter to be noted")
    assert handle.cancel() is Status.CANCELLED
    assert delayed.cancel() is Status.CANCELLED
    with pytest.raises(RunCancelled):
        answer()
    assert handle.cancel() is Status.CANCELLED
    assert handle.view().why == "a cancel was requested"


def test_running_run_is_asked_to_stop(client, shop):
    handle = client.enqueue("work")
    run = shop.start(handle)[handle.id]
    assert handle.cancel(grace=0) is Status.RUNNING
    view = handle.view()
    assert view.cancelling
    assert "cancel requested" in view.why
    shop.due()
    with pytest.raises(RunCancelled, match="by force"):
        handle.result(timeout=10)
    assert not handle.view().cancelling
    assert shop.do(attempt_plans.complete(shop.space.keys_of(run.id), run.id, run.token, b"")) == "fenced"


def test_an_ended_run_is_not_cancelled(client, shop):
    handle = client.enqueue("work")
    shop.complete(shop.start(handle)[handle.id], 1)
    assert handle.cancel() is Status.COMPLETED
    assert handle.result() == 1


def test_failed_run_is_revived_and_continues(client, shop):
    handle = client.enqueue("work", {"n": 1}, key="today")
    shop.fail(shop.start(handle)[handle.id], "ValueError", "x", "")
    handle.revive()
    view = handle.view()
    assert (view.status, view.cause, view.counters.life) == (Status.QUEUED, "revive", 2)
    assert not client.enqueue("work", {"n": 1}, key="today").created
    shop.complete(shop.claim("default:work@0")[handle.id], 2)
    assert handle.result() == 2


def test_run_that_cannot_be_revived_says_why(client, shop):
    handle = client.enqueue("work", {"n": 1}, key="today", key_ttl=0)
    with pytest.raises(Changed, match="not ended"):
        handle.revive()
    handle.cancel()
    client.enqueue("work", {"n": 1}, key="today")
    with pytest.raises(KeyConflict, match="another run"):
        handle.revive()
    done = client.enqueue("once")
    shop.join("default:once@0", worker="v")
    shop.complete(shop.claim("default:once@0", worker="v")[done.id])
    with pytest.raises(Changed, match="has completed"):
        done.revive()
    forgotten = client.enqueue("work", retention=0)
    forgotten.cancel()
    with pytest.raises(NotFound, match="retention=0"):
        forgotten.revive()


# ---- views and lists


def test_position_counts_over_all_partitions(client, shop):
    handles = [client.enqueue("work") for _ in range(12)]
    others = [client.enqueue("other"), client.enqueue("work", queue="slow")]
    first = client.enqueue("work", priority=1)
    assert first.position() == 0
    positions = [handle.position() for handle in handles]
    assert all(a is not None for a in positions)
    assert positions[0] == 1
    assert all(1 <= (position or 0) <= n + 1 for n, position in enumerate(positions))  # equal scores count as equal
    assert [other.position() for other in others] == [0, 0]
    shop.join("default:work@0")
    shop.claim("default:work@0")
    assert first.position() is None


def test_a_view_says_why_a_run_waits(client, shop):
    handles = [client.enqueue("work") for _ in range(9)]
    assert handles[0].view().why == "no live worker handles kind 'work' in queue 'default'"
    shop.join("default:work@0")
    before: dict[int, list[str]] = {}
    for handle in handles:
        before.setdefault(shop.space.keys_of(handle.id).partition, []).append(handle.view().why)
    for whys in before.values():
        assert whys[:2] == ["next in its ready queue", "1 run is ahead of it"][: len(whys)]
        assert whys[2:] == [f"{n} runs are ahead of it" for n in range(2, len(whys))]
    for keys in shop.space.everywhere():
        shop.wire.ask([read(keys.at, "SADD", keys.paused(), "queue:default")])
    assert handles[0].view().why == "queue 'default' is paused"
    for keys in shop.space.everywhere():
        shop.wire.ask([read(keys.at, "DEL", keys.paused()), read(keys.at, "SADD", keys.paused(), "kind:work")])
    assert handles[0].view().why == "kind 'work' is paused"
    assert client.status().paused == ("kind:work",)


def test_checkpoint_that_no_worker_can_read_is_reported(client, shop):
    handle = client.enqueue("work")
    keys, run = shop.space.keys_of(handle.id), shop.start(handle)[handle.id]
    delta = Delta(
        1, 0, 1, 0, 0, b"", 3, 2, b"state", phases=(("phase:-:outline#0", b"x"),), note=encode(["half", 1, 2], "note")
    )
    assert shop.do(attempt_plans.checkpoint(keys, handle.id, run.token, delta))[0] == "ok"
    view = handle.view()
    assert (view.iteration, view.phases, view.schema, view.owner) == (3, ("outline",), 2, "w")
    assert view.note is not None
    assert (view.note.text, view.note.done, view.note.total) == ("half", 1, 2)
    assert view.why == "attempt 1 on worker w"
    assert view.checkpointed is not None
    assert shop.do(attempt_plans.release(keys, handle.id, run.token, mode="stopping")) == "ok"
    assert handle.view().why.startswith("no live worker can read the run's checkpoint: it has schema 2, and")
    assert handle.view().cause == "release"
    assert shop.do(worker_plans.leave(keys, "w")) == []
    assert handle.view().why == "no live worker handles kind 'work' in queue 'default'"


def test_runs_are_listed_by_status_kind_and_queue(client, shop):
    done, failed, running = client.enqueue_many(("work", {"n": n}) for n in range(3))
    runs = shop.start(done, failed, running)
    shop.complete(runs[done.id])
    shop.fail(runs[failed.id], "E", "m", "")
    queued = [client.enqueue("work", priority=5), client.enqueue("work", queue="slow"), client.enqueue("other")]
    delayed = client.enqueue("other", delay=60)
    gone = client.enqueue("other")
    gone.cancel()

    def ids(*args: Any, **options: Any) -> list[str]:
        return [view.id for view in client.list(*args, **options)]

    assert ids("completed") == [done.id]
    assert ids(Status.FAILED) == [failed.id]
    assert ids("running") == [running.id]
    assert ids("delayed") == ids("delayed", "other") == [delayed.id]
    assert ids("delayed", "work") == ids("waiting") == ids("dead") == []
    assert ids("cancelled", kind="other") == [gone.id]
    assert ids("cancelled", kind="work") == []
    assert ids("running", kind="work", queue="default") == [running.id]
    assert ids("running", queue="slow") == []
    assert set(ids("queued")) == {handle.id for handle in queued}
    assert ids("queued")[0] == queued[0].id
    assert ids("queued", "work") == [queued[0].id, queued[1].id]
    assert ids("queued", queue="slow") == [queued[1].id]
    everything = [done, failed, running, *queued, delayed, gone]
    assert ids() == [handle.id for handle in sorted(everything, key=lambda h: h.id[:20], reverse=True)]
    assert ids(limit=2) == ids()[:2]


SPOILT: dict[str, tuple[Any, ...]] = {
    "spec": ("HSET", "run", "spec", b"\xc1\xff\x00"),
    "spec of another shape": ("HSET", "run", "spec", b"\x93\x01\x02\x03"),
    "counters": ("HSET", "run", "counters", b"\xff\xff"),
    "route": ("HSET", "run", "route", b"nowhere"),
    "times": ("HSET", "run", "started", b"9" * 30),
    "head": ("HSET", "ckpt", "head", b"\xc1\xc1"),
    "a number in the head": ("HSET", "ckpt", "head", b"1 1 1 0 0 1 1 " + b"9" * 30 + b" 1 40"),
    "a checkpoint of another type": ("SET", "ckpt", b"text"),
    "a run of another type": ("SET", "run", b"text"),
}


def spoil(shop, id, how):
    command, which, *values = SPOILT[how]
    keys = shop.space.keys_of(id)
    key = getattr(keys, which)(id)
    shop.wire.ask([read(keys.at, "DEL", key)] if command == "SET" else [])
    shop.wire.ask([read(keys.at, command, key, *values)])


@pytest.mark.parametrize("how", SPOILT)
def test_damaged_run_hides_no_other_run_in_a_list(client, shop, how):
    ended = client.enqueue_many([("work", {})] * 3)
    for run in shop.start(*ended).values():
        shop.complete(run)
    running = client.enqueue_many([("work", {})] * 3)
    shop.claim("default:work@0")
    queued = client.enqueue_many([("work", {})] * 3)
    damaged = {handles[1].id for handles in (ended, running, queued)}
    for id in damaged:
        spoil(shop, id, how)
    for status, handles in ((Status.COMPLETED, ended), (Status.RUNNING, running), (Status.QUEUED, queued)):
        sound = {handle.id for handle in handles} - damaged
        for kind in (None, "work"):
            seen = {view.id: view for view in client.list(status, kind)}
            assert sound <= seen.keys(), "the others are there"
            assert not any(seen[id].unreadable for id in sound)
            assert all(seen[id].unreadable for id in seen.keys() - sound) or how == "a checkpoint of another type"
            # without a hash there is no run; a run of unknown kind is found by kind only in its ready queue
            lost = how == "a run of another type" or (how == "route" and kind and status is not Status.QUEUED)
            assert len(seen) == (2 if lost else 3)
            walk = Walk(status, kind)
            assert sound <= set(client._do(list_operations.list_ids, walk))


def test_entries_of_damaged_queues_stop_no_status_and_no_list(client, shop):
    """An entry may be any bytes, also bytes that are no text."""
    client.set_limit("plain", at_once=1, group="g")
    ids = [client.enqueue("work").id, *(client.enqueue("plain", group="g").id for _ in range(2))]
    for keys in shop.space.everywhere():
        for key in (keys.ready("default:work@0"), keys.ready("default:plain@0"), keys.line("plain:g"), keys.delayed()):
            shop.wire.ask([read(keys.at, "ZADD", key, 0, b"\xc1")])
    assert client.status().counts[Status.QUEUED] >= 3
    assert set(ids) <= {view.id for view in client.list(Status.QUEUED)}
    assert client.list(Status.DELAYED) == []


@pytest.mark.parametrize(("how", "said"), [("spec", "its inputs are damaged"), ("head", "its checkpoint is damaged")])
def test_run_with_a_damaged_part_is_shown_without_that_part(client, shop, how, said):
    """The reason of its death and its ending are stored apart from the damaged part."""
    handle = client.enqueue("work", {"n": 1})
    (run,) = shop.start(handle).values()
    spoil(shop, handle.id, how)
    shop.fail(run, "Unreadable", "the run can't be read", "")
    view = handle.view()
    assert (view.status, view.why) == (Status.FAILED, "Unreadable: the run can't be read")
    assert said in view.unreadable
    assert view.inputs == ({} if how == "spec" else {"n": 1})
    assert view.iteration == view.messages == 0


def test_damaged_run_is_listed_with_its_age_and_what_to_do(client, shop):
    handle = client.enqueue("work")
    sound = handle.view()
    spoil(shop, handle.id, "counters")
    (view,) = client.list("queued")
    assert (view.id, view.status) == (handle.id, Status.QUEUED)
    assert abs((view.created - sound.created).total_seconds()) < 60, "by its id"
    assert view.why == view.unreadable
    assert re.search(f"run {handle.id} can't be read .*'coordinator doctor' shows what is damaged", view.why)
    with pytest.raises(Unreadable, match=f"run {handle.id}"):
        handle.view()


def test_error_for_reviving_a_run_with_damaged_inputs_names_the_run(client, shop):
    handle = client.enqueue("work", key="k")
    handle.cancel()
    spoil(shop, handle.id, "spec")
    with pytest.raises(Unreadable, match=f"the spec of run {handle.id} can't be read"):
        handle.revive()


def test_list_is_limited_and_exact_below_its_limit(client, shop):
    handles = client.enqueue_many(("work", {"n": n}) for n in range(250))
    assert len(client.list("queued", limit=200)) == 200
    assert {view.id for view in client.list("queued", limit=1000)} == {handle.id for handle in handles}
    with pytest.raises(BadOption, match="limit"):
        client.list(limit=0)
    with pytest.raises(BadOption, match="status"):
        client.list(status="lost")
    with pytest.raises(BadName):
        client.list(kind="a b")


def test_list_of_ended_runs_is_searched_page_by_page(client, shop, monkeypatch):
    monkeypatch.setattr("coordinator.client.reading.listing.PAGE", 5)
    handles = client.enqueue_many(("other" if n % 7 == 0 else "work", {}) for n in range(40))
    for handle in handles:
        handle.cancel()
    wanted = {handle.id for handle in handles[::7]}
    assert {view.id for view in client.list("cancelled", kind="other")} == wanted


def test_workers_and_overview_are_shown(client, shop):
    handles = client.enqueue_many(("work", {"n": n}) for n in range(5))
    runs = shop.start(*handles)
    shop.complete(runs[handles[0].id])
    for keys in shop.space.everywhere():
        shop.do(coordinator_plans.judge(keys, "c1", tick=1))
    (worker,) = client.workers()
    assert (worker.id, worker.host, worker.pid, worker.fleet, worker.code) == ("w", "host", 7, "fleet", "v1")
    assert (worker.slots, worker.running, worker.condemned, worker.draining) == (10, 4, False, False)
    assert worker.lease == 15
    assert 0 <= worker.lease_age < 15
    assert not worker.expired
    status = client.status()
    assert (status.namespace, status.partitions, status.durability) == (
        shop.name,
        shop.space.partitions,
        shop.space.durability,
    )
    assert {status: count for status, count in status.counts.items() if count} == {
        Status.RUNNING: 4,
        Status.COMPLETED: 1,
    }
    assert status.queues == {}
    assert status.workers[0].id == "w"
    assert [coordinator.id for coordinator in status.coordinators] == ["c1"]
    assert status.coordinators[0].age < 10
    assert status.aside == 0


# ---- threads, forks, event loops, closing


def test_threads_share_a_client(client):
    def produce() -> list[str]:
        return [client.enqueue("work").id for _ in range(50)]

    answers = [in_thread(produce) for _ in range(8)]
    ids = {id for answer in answers for id in answer()}
    assert len(ids) == 400
    assert client.status().counts[Status.QUEUED] == 400


def test_closed_client_raises(client):
    handle = client.enqueue("work")
    client.close()
    client.close()
    for action in (handle.view, handle.result, lambda: client.enqueue("work")):
        with pytest.raises(Refused, match="closed"):
            action()


def test_closing_the_client_ends_its_reader(shop):
    with Client(shop.url, shop.name) as client, pytest.raises(ResultTimeout):
        client.enqueue("work").result(timeout=0.01)
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "coordinator-hints"], "the reader's end")


def test_waiting_leaves_nothing_behind(client, shop):
    handle = client.enqueue("work", retention=0)
    answer = in_thread(lambda: handle.wait(timeout=30))
    wait_until(lambda: waits(shop, handle.id), "the waiter to be noted")
    handle.cancel()
    answer()
    assert [key for key in shop.all_keys() if "wake" in key or "waiters" in key] == []


def has(things: list[Any], count: int) -> bool:
    return len(things) == count


async def test_async_client_does_the_same(shop, monkeypatch):
    monkeypatch.setattr("coordinator.client.waiting.ending_tracker.ASK_AGAIN", ASK_AGAIN)
    async with AsyncClient(shop.url, shop.name) as client:
        handle = await client.enqueue("work", {"n": 1}, key="k")
        again = await client.enqueue("work", {"n": 1}, key="k")
        assert (handle.created, again.created, handle.id == again.id) == (True, False, True)
        many = await client.enqueue_many(("work", {"n": n}) for n in range(3))
        handles = [handle, *many]
        assert len(await client.list("queued")) == 4
        assert (await client.status()).counts[Status.QUEUED] == 4
        assert await handle.position() == 0
        shop.join("default:work@0")
        runs = shop.claim("default:work@0")
        assert [worker.running for worker in await client.workers()] == [4]
        order: list[tuple[str, Any]] = []

        async def results() -> None:
            async for one in client.wait(handles, timeout=2 * ASK_AGAIN):
                order.append((one.id, await one.result()))  # noqa: PERF401  # looked at while it grows

        waiting = asyncio.create_task(results())
        for n, one in enumerate(reversed(handles)):
            await eventually(partial(waits, shop, one.id), "the waiter to be noted")
            began = time.monotonic()
            shop.complete(runs[one.id], n)
            await eventually(partial(has, order, n + 1), "the result")
            assert time.monotonic() - began < ASK_AGAIN / 2
        await waiting
        assert order == [(one.id, n) for n, one in enumerate(reversed(handles))]
        assert await handle.cancel() is Status.COMPLETED
        with pytest.raises(ResultTimeout):
            await (await client.enqueue("work")).result(timeout=0.01)
        assert (await client.handle(handle.id).view()).status is Status.COMPLETED
    with pytest.raises(Refused, match="closed"):
        await handle.view()


def test_forked_child_has_its_own_connections_and_ids(shop, client):
    if shop.url.startswith("memory"):
        pytest.skip("a store in memory is not shared by processes")
    mine = client.enqueue("work")
    with pytest.raises(ResultTimeout):
        mine.result(timeout=0.01)  # the client has a reader
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            handle = client.enqueue("work")
            try:
                handle.result(timeout=0.01)
            except ResultTimeout:
                os.write(theirs, handle.id.encode())
            client.close()
        finally:
            os._exit(0)
    os.close(theirs)
    id = os.read(ours, 100).decode()
    os.close(ours)
    os.waitpid(child, 0)
    assert client.handle(id).view().status is Status.QUEUED
    assert id != mine.id
    assert mine.view().status is Status.QUEUED


# ---- handlers, and types that are not plain data


@dataclass
class Order:
    id: UUID
    price: Decimal


@Registry().handler
def work(run: Run, order: Order) -> Order:
    return order


def test_a_handler_and_a_dict_enqueue_a_run_whose_result_is_the_annotated_object(client, shop):
    order = Order(UUID(int=7), Decimal("2.50"))
    one = client.enqueue(work, {"order": order})
    two, three = client.enqueue_many([(work, {"order": order}), ("work", {"order": {}})])
    assert one.view().inputs == {"order": {"id": str(order.id), "price": "2.50"}}
    for run in shop.start(one, two, three).values():
        shop.complete(run, {"id": str(order.id), "price": "2.50"})
    assert one.result() == two.result() == order
    assert three.result() == client.handle(one.id).result() == {"id": str(order.id), "price": "2.50"}
    with pytest.raises(Refused, match="input 'order' of kind 'work' does not fit"):
        client.enqueue(work, {"order": {"id": "x"}})


def test_a_type_that_can_not_be_stored_is_refused_with_the_way_out(client):
    with pytest.raises(NotPlain, match=r"inputs.order is an? UUID, .*handler\.inputs"):
        client.enqueue("work", {"order": UUID(int=7)})


def test_a_text_that_is_not_a_run_id_is_not_found(client):
    for text in ("nonsense", "", 7):
        with pytest.raises(NotFound, match="not a run id"):
            client.handle(text)


def test_an_own_name_instead_of_a_run_id_is_refused_with_the_way_out(client):
    for text in ("order-17", "", 7):
        with pytest.raises(BadOption, match=r"is not a run id: .*give key="):
            client.enqueue("work", id=text)
        with pytest.raises(BadOption, match=r"is not a run id: .*give key="):
            client.enqueue_many([("work", {})], ids=[text])
    assert client.list() == []


def test_a_lifetime_of_a_key_without_a_key_is_refused(client):
    with pytest.raises(BadOption, match="key_ttl has no effect without key"):
        client.enqueue("work", key_ttl=60)
    with pytest.raises(BadOption, match="key_ttl has no effect without key"):
        client.enqueue_many([("work", {})], key_ttl=60)
    assert client.enqueue("work", key="a", key_ttl=timedelta(minutes=1), delay=timedelta(days=1)).created
