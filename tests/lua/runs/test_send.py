"""send: a signal is stored once, before its run is woken; limits hold; signals end with their run."""

from __future__ import annotations

import pytest

from coordinator.model import limits
from coordinator.model.policies.budget import TOPIC
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.attempts import netstrings
from coordinator.store.plans.workers import Claimed
from tests.lua.store import NOW, Store, delta


def numbers(store: Store, id: str) -> int:
    return int(store.client.hget(store.keys.signals(id), "count") or 0)


def save_received(store: Store, run: Claimed, seq: int, **received: int) -> None:
    parts = [part for topic, count in received.items() for part in (f"received:{topic}".encode(), b"%d" % count)]
    assert store.save(run, delta(seq, more=netstrings(parts))) == "ok"


def test_repeated_send_stores_one_signal(store: Store) -> None:
    id = store.enqueue()
    for _ in range(3):
        assert store.send(id, operation="one") == ["sent"]
        store.later(1000)
    assert numbers(store, id) == 1


def test_repeated_send_is_recognised_after_its_signal_was_received_and_removed(store: Store) -> None:
    run = store.running()
    store.send(run.id, operation="one", key="k")
    save_received(store, run, 1, t=1)
    for number in range(limits.SIGNAL_COUNT):
        assert store.send(run.id, operation=f"n{number}") == ["sent"]
    assert store.send(run.id, operation="n-full") == ["full"]
    with store.unchanged():
        assert store.send(run.id, operation="one") == ["sent"]
        assert store.send(run.id, operation="other", key="k") == ["found"]


def test_repeated_send_after_the_end_of_the_run_gets_the_first_answer(store: Store) -> None:
    run = store.running()
    store.send(run.id, operation="one")
    store.complete(run)
    with store.unchanged():
        assert store.send(run.id, operation="one") == ["sent"]
    assert store.send(run.id, operation="two") == ["ended", "completed"]
    assert store.client.exists(store.keys.signals(run.id)) == 0
    assert 0 < store.client.pttl(store.keys.signal_operations(run.id)) <= limits.TOMBSTONE_MS


def test_key_names_one_signal(store: Store) -> None:
    id = store.enqueue()
    assert store.send(id, operation="one", key="k") == ["sent"]
    assert store.send(id, operation="two", key="k") == ["found"]
    assert store.send(id, operation="three", key="l") == ["sent"]
    assert numbers(store, id) == 2


def test_newest_key_is_the_last_to_be_forgotten_though_the_clock_went_back(store: Store) -> None:
    id = store.enqueue()
    store.send(id, operation="one", key="k")
    store.later(-3_600_000)
    store.send(id, operation="two", key="l")
    assert store.line(store.keys.signal_keys(id)) == ["k", "l"]


def test_full_box_is_refused_until_the_run_has_received_signals(store: Store) -> None:
    run = store.running()
    for number in range(limits.SIGNAL_COUNT):
        store.send(run.id, operation=f"n{number}")
    assert store.send(run.id, operation="more") == ["full"]
    save_received(store, run, 1, t=10)
    assert store.send(run.id, operation="more") == ["sent"]
    assert numbers(store, run.id) == limits.SIGNAL_COUNT - 10 + 1
    assert store.receive(run, t=10).number == 11


def test_run_with_a_full_box_gets_the_signal_for_which_it_waits(store: Store) -> None:
    run = store.running()
    for number in range(limits.SIGNAL_COUNT):
        store.send(run.id, "other", operation=f"n{number}")
    assert store.send(run.id, "go", operation="too early") == ["full"]
    assert store.suspend(run, go=0) == "waiting"
    assert store.send(run.id, "other", operation="more") == ["full"]
    assert store.send(run.id, "go", b"x" * 1000, "g1") == ["sent"]
    assert store.status(run.id) == "queued"
    assert store.send(run.id, "go", operation="g2") == ["full"], "the run does not wait any more"
    run = store.take()
    assert store.receive(run, go=0).topic == "go"
    assert numbers(store, run.id) == limits.SIGNAL_COUNT + 1


def grant(store: Store, id: str, operation: str, payload: bytes = b"1 0 0") -> list[str]:
    return store.send(id, TOPIC, payload, operation)


def test_run_with_a_full_box_gets_a_grant(store: Store) -> None:
    run = store.running()
    for number in range(limits.SIGNAL_COUNT):
        store.send(run.id, operation=f"n{number}")
    assert store.send(run.id, operation="n-full") == ["full"]
    assert grant(store, run.id, "g1") == ["sent"]
    assert numbers(store, run.id) == limits.SIGNAL_COUNT
    assert store.receive(run, **{TOPIC: 0}).topic == TOPIC


@pytest.mark.parametrize("from_start", [False, True])
def test_grant_to_a_failed_run_is_kept_for_its_revive(store: Store, from_start: bool) -> None:
    run = store.running()
    store.fail(run)
    kept = store.client.pttl(store.keys.run(run.id))
    assert grant(store, run.id, "g1") == grant(store, run.id, "g1") == ["sent"]
    assert store.send(run.id, operation="n1") == ["ended", "failed"]
    for key in (store.keys.signals(run.id), store.keys.signal_operations(run.id)):
        assert 0 < store.client.pttl(key) <= kept
    store.revive(run.id, from_start=from_start)
    assert store.client.pttl(store.keys.signals(run.id)) == -1
    assert store.receive(store.take("w2"), **{TOPIC: 0}).number == 1


def test_run_that_cannot_be_revived_gets_no_grant(store: Store) -> None:
    completed = store.running()
    store.complete(completed)
    bare = store.running("w2", retention="0")
    store.fail(bare)
    with store.unchanged():
        assert grant(store, completed.id, "g1") == ["ended", "completed"]
        assert grant(store, bare.id, "g2") == ["ended", "failed"]


def test_number_and_size_of_grants_are_limited(store: Store) -> None:
    run = store.running()
    assert grant(store, run.id, "large", b"x" * (limits.GRANT_BYTES + 1)) == ["full"]
    for number in range(limits.GRANT_COUNT):
        assert grant(store, run.id, f"g{number}") == ["sent"]
    assert grant(store, run.id, "g-full") == ["full"]
    assert store.send(run.id, operation="n1") == ["sent"], "grants do not fill the box"


def test_received_grants_are_kept_when_received_signals_are_removed(store: Store) -> None:
    run = store.running()
    grant(store, run.id, "g1")
    store.send(run.id, operation="one")
    save_received(store, run, 1, **{TOPIC: 1, "t": 1})
    for number in range(limits.SIGNAL_COUNT):
        assert store.send(run.id, operation=f"n{number}") == ["sent"]
    assert store.client.hget(store.keys.signals(run.id), "first:t") == b"2", "received signals were removed"
    store.fail(run)
    store.revive(run.id, from_start=True)
    again = store.take("w2")
    assert store.receive(again, **{TOPIC: 0}).number == 1


def test_bytes_of_a_box_are_limited(store: Store) -> None:
    id = store.enqueue()
    large = b"x" * (limits.SIGNAL_BYTES // 4)
    for number in range(4):
        assert store.send(id, payload=large, operation=f"n{number}") == ["sent"]
    assert store.send(id, payload=b"y", operation="more") == ["full"]


def test_run_from_the_start_begins_with_the_oldest_stored_signal(store: Store) -> None:
    run = store.running()
    for number in range(3):
        store.send(run.id, payload=b"%d" % number, operation=f"n{number}")
    save_received(store, run, 1, t=3)
    store.retry(run, from_start=True)
    store.later(1000)
    store.due()
    run = store.take()
    assert store.receive(run, t=0).payload == b"0"


def test_received_signals_stay_until_a_limit_is_reached(store: Store) -> None:
    run = store.running()
    for number in range(3):
        store.send(run.id, payload=b"%d" % number, operation=f"n{number}")
    save_received(store, run, 1, t=3)
    store.send(run.id, payload=b"3", operation="n3")
    assert numbers(store, run.id) == 4
    assert store.receive(run, t=0).payload == b"0"


def test_run_from_the_start_continues_with_the_oldest_signal_that_is_left(store: Store) -> None:
    run = store.running()
    for number in range(limits.SIGNAL_COUNT):
        store.send(run.id, payload=b"%d" % number, operation=f"n{number}")
    save_received(store, run, 1, t=limits.SIGNAL_COUNT)
    store.send(run.id, payload=b"last", operation="last")
    assert numbers(store, run.id) == 1
    assert store.receive(run, t=0).payload == b"last"
    assert store.suspend(run, t=0) == "ok"


def test_removed_signals_wake_no_run_from_the_start(store: Store) -> None:
    run = store.running()
    for number in range(limits.SIGNAL_COUNT):
        store.send(run.id, operation=f"n{number}")
    save_received(store, run, 1, t=limits.SIGNAL_COUNT)
    store.send(run.id, "other", operation="last")
    assert store.receive(run, t=0).word == "none"
    assert store.suspend(run, t=0) == "waiting"


def test_signals_of_a_failed_run_are_kept_for_a_revive(store: Store) -> None:
    run = store.running()
    store.send(run.id)
    store.fail(run)
    assert store.client.pttl(store.keys.signals(run.id)) > 0
    assert store.revive(run.id) == "queued"
    assert store.client.pttl(store.keys.signals(run.id)) == -1
    assert store.receive(store.take(), t=0).word == "signal"


@pytest.mark.parametrize("letter", ["r", "j"], ids=["a parent", "a joined child"])
def test_signals_of_a_run_with_other_keys_expire_with_it(store: Store, letter: str) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "beside", letter)
    store.send(run.id)
    assert store.run(run.id)["beside"] == letter + "s"
    store.fail(run)
    assert store.client.pttl(store.keys.signals(run.id)) > 0


def test_discarded_run_leaves_no_signals(store: Store) -> None:
    run = store.running()
    store.send(run.id, key="k")
    store.fail(run)
    store.do(client_plans.discard(store.keys, run.id))
    assert store.client.exists(store.keys.signals(run.id)) == 0
    assert store.client.pttl(store.keys.signal_keys(run.id)) > 0


def test_running_run_is_told_through_the_inbox_of_its_worker(store: Store) -> None:
    run = store.running()
    store.send(run.id)
    assert store.client.lrange(store.keys.inbox("w1"), 0, -1) == [f"signal {run.id}".encode()]


def test_unknown_run_bad_topic_and_damaged_key(store: Store) -> None:
    with store.unchanged():
        assert store.send(store.id()) == ["missing"]
    id = store.enqueue()
    with store.unchanged():
        assert store.send(id, topic="a:b") == ["bad"]
    store.spoil(store.keys.signals(id))
    with store.unchanged():
        assert store.send(id) == ["unreadable"]


def test_old_operations_are_forgotten_but_never_the_last_thousand(store: Store) -> None:
    run = store.running()
    for number in range(limits.OPERATIONS_KEPT + 5):
        save_received(store, run, number + 1, t=number)
        store.send(run.id, operation=f"n{number}")
    assert store.client.zcard(store.keys.signal_operations(run.id)) == limits.OPERATIONS_KEPT + 5
    store.later(limits.OPERATIONS_MS + 1)
    assert store.now > NOW
    save_received(store, run, limits.OPERATIONS_KEPT + 6, t=limits.OPERATIONS_KEPT + 5)
    store.send(run.id, operation="last")
    assert store.client.zcard(store.keys.signal_operations(run.id)) == limits.OPERATIONS_KEPT


def test_topics_that_are_named_like_the_bookkeeping_are_kept_apart(store: Store) -> None:
    run = store.running()
    topics = ("1", "2", "last", "first", "order", "count", "bytes")
    for turn in (1, 2):
        for topic in topics:
            assert store.send(run.id, topic, topic.encode(), operation=f"{topic} {turn}") == ["sent"]
    for topic in topics:
        for turn in (1, 2):
            found = store.receive(run, **{topic: turn - 1})
            assert (found.word, found.topic, found.number, found.payload) == ("signal", topic, turn, topic.encode())


def test_numbers_continue_after_the_received_ones_where_the_signals_were_lost(store: Store) -> None:
    run = store.running()
    store.send(run.id, operation="one")
    save_received(store, run, 1, t=1)
    store.client.delete(store.keys.signals(run.id))
    store.send(run.id, payload=b"new", operation="two")
    assert store.receive(run, t=1).payload == b"new"


@pytest.mark.parametrize("number", ["last:t", "first:t"])
def test_send_to_damaged_numbers_is_refused_and_changes_nothing(store: Store, number: str) -> None:
    run = store.running()
    store.send(run.id)
    store.client.hset(store.keys.signals(run.id), number, "damaged")
    with store.unchanged():
        assert store.send(run.id, operation="s2") == ["unreadable"]
    assert store.send(run.id, "other", operation="s3") == ["sent"]


def test_damaged_number_of_another_topic_does_not_stop_a_send_to_a_full_box(store: Store) -> None:
    run = store.running()
    store.send(run.id, "other", operation="other")
    save_received(store, run, 1, other=1, t=0)
    store.client.hset(store.keys.signals(run.id), mapping={"first:other": "damaged", "count": limits.SIGNAL_COUNT})
    assert store.send(run.id) == ["full"]
