"""Sending signals to runs, and what is shown of runs that wait, on every store and with one or several partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from coordinator import (
    AsyncClient,
    BadName,
    BadOption,
    Ended,
    Full,
    Handle,
    Inputs,
    NotFound,
    NotPlain,
    Refused,
    Status,
    TooLarge,
    Unreadable,
)
from coordinator.client.operations import lists as list_operations
from coordinator.client.reading.scan import Walk
from coordinator.encoding.codec import decode
from coordinator.model import limits
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans.attempts import Condition, Received
from coordinator.store.plans.workers import Claimed
from coordinator.store.script import read
from tests.contract.test_client import Shop

MISSING = f"{'0' * 20}-00"


@pytest.fixture(params=[1, 4], ids=["P=1", "P=4"])
def shop(request: pytest.FixtureRequest, store_url: str, namespace: str) -> Iterator[Shop]:
    shop = Shop(store_url, namespace, request.param)
    yield shop
    shop.client.close()
    shop.wire.close()


def receive(shop: Shop, run: Claimed, topic: str = "approval", after: int = 0) -> Received:
    keys = shop.space.keys_of(run.id)
    return shop.do(attempt_plans.receive(keys, run.id, run.token, Condition(None, {topic: after})))


def payload(received: Received) -> Any:
    assert received.word == "signal"
    return decode(received.payload, "payload")


def suspend_claimed(shop: Shop, run: Claimed, condition: Condition) -> None:
    keys = shop.space.keys_of(run.id)
    assert shop.do(attempt_plans.suspend(keys, run.id, run.token, condition=condition)) == "waiting"


def suspend(shop: Shop, handle: Handle[Any], *topics: str, deadline: int | None = None) -> None:
    run = shop.start(handle)[handle.id]
    suspend_claimed(shop, run, Condition(deadline, dict.fromkeys(topics or ("approval",), 0)))


def test_signal_that_is_sent_before_the_run_starts_is_received(shop: Shop) -> None:
    handle = shop.client.enqueue("work")
    assert handle.send("approval", {"ok": True, "by": ("ann", 7)})
    run = shop.start(handle)[handle.id]
    assert payload(receive(shop, run)) == {"ok": True, "by": ("ann", 7)}


def test_signal_needs_no_payload(shop: Shop) -> None:
    handle = shop.client.enqueue("work")
    assert handle.send("approval")
    assert payload(receive(shop, shop.start(handle)[handle.id])) is None


def test_signal_wakes_a_run_that_waits_for_it(shop: Shop) -> None:
    handle = shop.client.enqueue("work")
    suspend(shop, handle)
    assert handle.send("other", 1)
    assert handle.view().status is Status.WAITING
    assert shop.client.handle(handle.id).send("approval", 2)
    assert handle.view().status is Status.QUEUED


def test_key_names_one_signal_of_a_run(shop: Shop) -> None:
    one, other = shop.client.enqueue("work"), shop.client.enqueue("work")
    assert one.send("approval", 1, key="k")
    assert not one.send("approval", 2, key="k")
    assert other.send("approval", 3, key="k")
    runs = shop.start(one, other)
    assert [payload(receive(shop, runs[run.id])) for run in (one, other)] == [1, 3]
    assert receive(shop, runs[one.id], after=1).word == "none"


def test_signal_to_an_ended_run_raises_ended_with_its_status(shop: Shop) -> None:
    completed, failed, cancelled = (shop.client.enqueue("work") for _ in range(3))
    cancelled.cancel()
    runs = shop.start(completed, failed)
    shop.complete(runs[completed.id])
    shop.fail(runs[failed.id], "ValueError", "no", "")
    for handle, status, said in (
        (completed, "completed", r"has ended as completed, so it can't receive signal 'approval'$"),
        (failed, "failed", "has ended as failed, .*; revive it first"),
        (cancelled, "cancelled", "has ended as cancelled, .*; revive it first"),
    ):
        with pytest.raises(Ended, match=f"run {handle.id} {said}") as raised:
            handle.send("approval")
        assert raised.value.status == status
        assert isinstance(raised.value, Refused)


def test_key_of_a_signal_is_known_after_the_end_of_the_run(shop: Shop) -> None:
    handle = shop.client.enqueue("work")
    assert handle.send("approval", key="k")
    shop.complete(shop.start(handle)[handle.id])
    assert not handle.send("approval", key="k")


def test_full_box_is_refused_with_its_limits(shop: Shop) -> None:
    handle = shop.client.enqueue("work")
    large = b"x" * (limits.SIGNAL_PAYLOAD - 5)
    for _ in range(limits.SIGNAL_BYTES // limits.SIGNAL_PAYLOAD):
        handle.send("approval", large)
    with pytest.raises(Full, match=r"did not get signal 'approval': .* 1,000 signals or 16 MiB; send again when"):
        handle.send("approval", large)


def test_unknown_run_is_not_found(shop: Shop) -> None:
    with pytest.raises(NotFound, match=f"there is no run {MISSING}"):
        shop.client.handle(MISSING).send("approval")


@pytest.mark.parametrize(
    ("topic", "value", "key", "error", "said"),
    [
        ("", None, None, BadName, "topic '' is not a valid name"),
        ("a b", None, None, BadName, "topic 'a b' is not a valid name"),
        ("t" * 101, None, None, BadName, "is not a valid name"),
        (7, None, None, BadName, "topic 7 is not a valid name"),
        ("t", {"ok": object()}, None, NotPlain, "the payload of signal 't'.ok is an object"),
        (
            "t",
            b"x" * 2**20,
            None,
            TooLarge,
            r"the payload of signal 't' has 1,048,581 bytes, and the limit is 1,048,576",
        ),
        ("coordinator.grant", [10**9, 0, 0], None, BadName, r"topic 'coordinator.grant' is reserved for grants"),
        ("t", None, "", BadOption, "key '' is not text of 1 to 512 characters"),
        ("t", None, "k" * 513, BadOption, "is not text of 1 to 512 characters"),
        ("t", None, "\ud800", BadOption, "lone surrogates"),
        ("t", None, b"k", BadOption, "is not text"),
    ],
)
def test_bad_signal_is_refused_and_nothing_is_stored(
    shop: Shop, topic: Any, value: Any, key: Any, error: type[Exception], said: str
) -> None:
    handle = shop.client.enqueue("work")
    before = shop.all_keys()
    with pytest.raises(error, match=said):
        handle.send(topic, value, key=key)
    assert shop.all_keys() == before


def test_damaged_signals_of_a_run_are_named(shop: Shop) -> None:
    handle = shop.client.enqueue("work")
    keys = shop.space.keys_of(handle.id)
    shop.wire.ask([read(keys.at, "SET", keys.signals(handle.id), "spoilt")])
    with pytest.raises(
        Unreadable, match=f"run {handle.id} did not get signal 'approval': .* 'coordinator doctor' finds"
    ):
        handle.send("approval")


@dataclass
class Approval:
    amount: Decimal


class Handler:
    """A handler that declares the type of a topic, as a client sees it."""

    kind = "work"
    read_result = None

    def inputs(self) -> Inputs[Any]:
        return Inputs("work", {}, self)

    def write_signal(self, topic: str, value: Any) -> Any:
        return {"amount": str(value.amount)} if topic == "approval" else value


async def test_payload_is_converted_by_the_handler_of_the_enqueue(shop: Shop) -> None:
    handle = shop.client.enqueue(Handler().inputs())
    assert handle.send("approval", Approval(Decimal("1.50")))
    with pytest.raises(NotPlain):
        handle.send("other", Approval(Decimal(1)))
    async with AsyncClient(shop.url, shop.name) as client:
        other = await client.enqueue(Handler().inputs())
        assert await other.send("approval", Approval(Decimal("2.50")))
    runs = shop.start(handle, other)  # type: ignore[arg-type]
    assert payload(receive(shop, runs[handle.id])) == {"amount": "1.50"}
    assert payload(receive(shop, runs[other.id])) == {"amount": "2.50"}


async def test_async_handle_sends_the_same(shop: Shop) -> None:
    async with AsyncClient(shop.url, shop.name) as client:
        handle = await client.enqueue("work")
        assert await handle.send("approval", 1, key="k")
        assert not await handle.send("approval", 1, key="k")
        await handle.cancel()
        with pytest.raises(Ended):
            await handle.send("approval", 2)


# ---- what is shown of waiting runs


def test_waiting_run_is_shown_with_what_it_waits_for(shop: Shop) -> None:
    handle = shop.client.enqueue("work")
    deadline = round(time.time() * 1000) + 86_400_000
    suspend(shop, handle, "approval", "veto", deadline=deadline)
    view = handle.view()
    assert view.waiting is not None
    assert (view.status, view.waiting.topics, view.owner) == (Status.WAITING, ("approval", "veto"), None)
    assert view.waiting.until == datetime.fromtimestamp(deadline / 1000, UTC)
    since, until = (one.isoformat(timespec="milliseconds") for one in (view.waiting.since, view.waiting.until))
    assert view.why == f"waits for signal 'approval' or 'veto' since {since}, until {until}"
    assert abs(view.waiting.since.timestamp() - time.time()) < 60


def test_run_that_waits_without_a_limit_or_only_for_a_time_says_so(shop: Shop) -> None:
    forever, sleeping = shop.client.enqueue("work"), shop.client.enqueue("work")
    deadline = round(time.time() * 1000) + 86_400_000
    runs = shop.start(forever, sleeping)
    suspend_claimed(shop, runs[forever.id], Condition(None, {"approval": 0}))
    suspend_claimed(shop, runs[sleeping.id], Condition(deadline))
    view = forever.view()
    assert view.waiting is not None
    assert (view.waiting.topics, view.waiting.until) == (("approval",), None)
    assert view.why == f"waits for signal 'approval' since {view.waiting.since.isoformat(timespec='milliseconds')}"
    view = sleeping.view()
    assert view.waiting is not None
    assert view.waiting.topics == ()
    until = datetime.fromtimestamp(deadline / 1000, UTC).isoformat(timespec="milliseconds")
    assert view.why == f"sleeps until {until}"


def test_waiting_runs_are_listed_counted_and_found_by_filters(shop: Shop) -> None:
    later, sooner, queued = (shop.client.enqueue("work", queue=queue) for queue in ("a", "b", "c"))
    now = round(time.time() * 1000)
    shop.join("a:work@0", "b:work@0")
    runs = shop.claim("a:work@0", "b:work@0")
    suspend_claimed(shop, runs[later.id], Condition(None, {"approval": 0}))
    suspend_claimed(shop, runs[sooner.id], Condition(now + 3_600_000, {"approval": 0}))
    assert [view.id for view in shop.client.list("waiting")] == [sooner.id, later.id]
    assert [view.id for view in shop.client.list("waiting", queue="a")] == [later.id]
    assert {view.id for view in shop.client.list()} == {later.id, sooner.id, queued.id}
    counts = shop.client.status().counts
    assert (counts[Status.WAITING], counts[Status.QUEUED], counts[Status.RUNNING]) == (2, 1, 0)
    walk = Walk(Status.WAITING, queue="b")
    assert shop.client._do(list_operations.list_ids, walk) == [sooner.id]
    assert later.cancel() is Status.CANCELLED
    assert [view.id for view in shop.client.list("waiting")] == [sooner.id]


def test_view_says_what_woke_a_run_and_which_signals_it_has_not_received(shop: Shop) -> None:
    handle = shop.client.enqueue("work")
    suspend(shop, handle)
    handle.send("other", 1)
    handle.send("approval", 2)
    view = handle.view()
    assert (view.status, view.cause, view.woken, view.waiting) == (Status.QUEUED, "wake", "signal approval", None)
    assert view.signals == {"approval": 1, "other": 1}
    assert shop.client.enqueue("work").view().signals == {}


def test_wait_that_can_not_be_read_is_shown(shop: Shop) -> None:
    handle = shop.client.enqueue("work")
    suspend(shop, handle)
    keys = shop.space.keys_of(handle.id)
    for wait in (b"", b"\xff", b"soon -", b"1 2 3", b"1700000000000", b"1 9999999999999999999"):
        shop.wire.ask([read(keys.at, "HSET", keys.run(handle.id), "wait", wait)])
        view = handle.view()
        if wait != b"1 2 3":  # parts that a newer version wrote are left out
            assert view.waiting is None
            assert view.why == "what it waits for can't be read: 'coordinator doctor' shows more"
