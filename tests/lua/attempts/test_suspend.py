"""suspend and receive: a run waits without an owner, no signal is missed, and facts decide between signal and deadline."""

from __future__ import annotations

import pytest

from coordinator.store.plans.workers import Claimed
from tests.lua.store import NOW, ROUTES, Store, delta, messages


def test_suspended_run_waits_without_owner_strike_or_story(store: Store) -> None:
    run = store.running()
    assert store.suspend(run, delta(1, count=2, more=b"").wire(), t=0) == "waiting"
    stored = store.run(run.id)
    assert (stored["status"], stored["wait"]) == ("waiting", f"{NOW} - s:t:0")
    assert store.places(run.id) == ["waiting"]
    assert store.members(store.keys.live()) == {run.id}
    assert not {"token", "story"} & set(stored)
    counters = store.counters(run.id)
    assert (counters.releases, counters.strikes, counters.recoveries, counters.failures) == (0, 0, 0, 0)
    assert store.transcript(run.id) == messages(2)


def test_signal_wakes_the_run_at_its_old_place(store: Store) -> None:
    run = store.running()
    store.suspend(run, t=0)
    store.enqueue()
    store.later(5000)
    assert store.send(run.id) == ["sent"]
    assert store.places(run.id) == [f"ready:{ROUTES[0]}"]
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 1
    assert "wait" not in store.run(run.id)
    again = store.claim(want=1)[1][0]
    assert (again.id, again.cause) == (run.id, "wake signal t")


def test_signal_of_another_topic_does_not_wake_the_run(store: Store) -> None:
    run = store.running()
    store.suspend(run, t=0)
    assert store.send(run.id, "other") == ["sent"]
    assert store.status(run.id) == "waiting"


@pytest.mark.parametrize("early", [True, False])
def test_signal_before_the_suspend_is_not_missed(store: Store, early: bool) -> None:
    id = store.enqueue()
    if early:
        store.send(id)
    run = store.take()
    if not early:
        store.send(id)
    assert store.suspend(run, t=0) == "ok"
    assert (store.status(id), store.run(id)["cause"]) == ("queued", "wake signal t")


def test_deadline_that_has_passed_queues_the_run_immediately(store: Store) -> None:
    run = store.running()
    assert store.suspend(run, deadline=NOW) == "ok"
    assert store.run(run.id)["cause"] == "wake time"


def test_due_wakes_a_run_at_its_deadline_and_says_when_the_next_is_due(store: Store) -> None:
    run = store.running()
    store.suspend(run, deadline=NOW + 5000, t=0)
    assert store.client.llen(store.keys.coordinator_bell()) == 1
    store.later(4999)
    result = store.due()
    assert (result.moved, result.next_ms) == (0, 1)
    store.later(1)
    result = store.due()
    assert (result.moved, result.next_ms) == (1, None)
    assert store.take().cause == "wake time"


def test_run_without_a_deadline_is_never_due(store: Store) -> None:
    store.suspend(store.running(), t=0)
    assert store.due().next_ms is None


def test_suspends_whose_condition_holds_without_progress_are_delayed(store: Store) -> None:
    run = store.running()
    store.send(run.id)
    assert store.suspend(run, t=0) == "ok"
    run = store.take()
    assert store.suspend(run, t=0) == "delayed"
    assert store.places(run.id) == ["delayed"]
    store.later(10_000)
    store.due()
    run = store.take()
    assert store.suspend(run, delta(1, count=1).wire(), t=0) == "ok"


def test_repeated_and_late_suspends_get_the_first_answer(store: Store) -> None:
    run = store.running()
    store.suspend(run, t=0)
    with store.unchanged():
        assert store.suspend(run, t=0) == "waiting"
    store.send(run.id)
    other = store.take("w2")
    with store.unchanged():
        assert store.suspend(run, t=0) == "waiting"
        assert store.release(run) == "fenced"
    assert store.suspend(other, t=1) == "waiting"
    with store.unchanged():
        assert store.suspend(run, t=0) == "fenced"


def test_requested_cancel_or_kill_wins_over_a_suspend(store: Store) -> None:
    run = store.running()
    store.cancel(run.id)
    assert store.suspend(run, t=0) == "cancelled"
    run = store.running()
    store.kill(run)
    assert store.suspend(run, t=0) == "failed"


def test_condition_that_cannot_be_read_is_refused(store: Store) -> None:
    run = store.running()
    with store.unchanged():
        assert store.suspend(run, b"", None, **{"a b": 1}) == "bad"


def test_cancel_ends_a_waiting_run_immediately(store: Store) -> None:
    run = store.running()
    store.suspend(run, deadline=NOW + 10, t=0)
    assert store.cancel(run.id) == ["cancelled"]
    assert store.places(run.id) == ["ended:cancelled"]
    assert "wait" not in store.run(run.id)
    store.later(1000)
    assert store.due().moved == 0
    assert store.send(run.id) == ["ended", "cancelled"]


def test_delta_without_more_keeps_it_and_an_empty_one_removes_it(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, more=b"1:a1:1"))
    store.save(run, delta(2))
    assert store.client.hget(store.keys.ckpt(run.id), "more") == b"1:a1:1"
    store.save(run, delta(3, more=b""))
    assert store.client.hget(store.keys.ckpt(run.id), "more") is None


def test_whole_checkpoint_without_more_keeps_it(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, more=b"1:a1:1"))
    store.save(run, delta(2, acked=0))
    assert store.client.hget(store.keys.ckpt(run.id), "more") == b"1:a1:1"


def test_signals_are_received_in_order_and_across_topics_in_the_order_of_sending(store: Store) -> None:
    run = store.running()
    for number, topic in enumerate(["b", "a", "b", "a"]):
        store.send(run.id, topic, b"%d" % number, operation=f"s{number}")
    received, order = {"a": 0, "b": 0}, []
    while (found := store.receive(run, **received)).word == "signal":
        received[found.topic] = found.number
        order.append(found.payload)
    assert order == [b"0", b"1", b"2", b"3"]
    assert found.word == "none"


def test_signal_that_was_stored_after_the_deadline_is_left_for_the_next_receive(store: Store) -> None:
    run = store.running()
    first = store.receive(run, timeout_ms=1000, t=0)
    assert (first.word, first.deadline, first.now) == ("none", NOW + 1000, NOW)
    store.later(1001)
    store.send(run.id)
    assert store.receive(run, deadline=first.deadline, t=0).word == "timeout"
    assert store.receive(run, t=0).word == "signal"


def test_signal_that_was_stored_before_the_deadline_wins_however_late_the_run_looks(store: Store) -> None:
    run = store.running()
    store.later(999)
    store.send(run.id)
    store.later(60_000)
    assert store.receive(run, deadline=NOW + 1000, t=0).word == "signal"


def test_wait_that_timed_out_times_out_again_after_a_signal_in_the_same_millisecond(store: Store) -> None:
    run = store.running()
    store.later(1000)
    assert store.receive(run, deadline=NOW + 1000, t=0).word == "timeout"
    store.send(run.id)
    assert store.receive(run, deadline=NOW + 1000, t=0).word == "timeout"


def test_first_look_without_patience_finds_a_signal_of_the_same_millisecond(store: Store) -> None:
    run = store.running()
    store.send(run.id)
    assert store.receive(run, timeout_ms=0, t=0).word == "signal"


def test_only_the_owner_receives(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.receive(stranger, t=0).word == "fenced"


def test_only_the_owner_suspends(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.suspend(stranger, t=0) == "fenced"


def test_signals_that_cannot_be_read_are_reported_to_the_receiver(store: Store) -> None:
    run = store.running()
    store.spoil(store.keys.signals(run.id))
    with store.unchanged():
        assert store.receive(run, t=0).word == "unreadable"


def test_run_whose_condition_was_damaged_is_woken_by_any_signal(store: Store) -> None:
    run = store.running()
    store.suspend(run, t=0)
    store.client.hset(store.keys.run(run.id), "wait", "damaged")
    assert store.send(run.id, "other") == ["sent"]
    assert (store.status(run.id), store.run(run.id)["cause"]) == ("queued", "wake unknown")


def test_entry_of_a_run_that_does_not_wait_is_set_aside_and_the_run_stays_as_it_is(store: Store) -> None:
    run = store.running()
    store.client.zadd(store.keys.waiting(), {run.id: NOW})
    store.due()
    assert (store.status(run.id), store.places(run.id)) == ("running", ["owned:w1"])
    assert store.line(store.keys.aside()) == [f"waiting:{run.id}"]


def test_new_life_may_be_suspended_once_without_progress(store: Store) -> None:
    run = store.running()
    store.send(run.id)
    assert store.suspend(run, t=0) == "ok"
    store.fail(store.take())
    store.revive(run.id)
    assert store.suspend(store.take(), t=0) == "ok"


@pytest.mark.parametrize("number", ["last:t", "first:t"])
def test_damaged_number_of_a_signal_stops_no_other_run(store: Store, number: str) -> None:
    damaged, other = store.running(), store.running("w2")
    for run in (damaged, other):
        store.suspend(run, deadline=NOW + 1000, t=0)
    store.client.hset(store.keys.signals(damaged.id), mapping={"last:t": "0", number: "damaged"})
    store.later(1000)
    store.due()
    assert [store.status(run.id) for run in (damaged, other)] == ["queued", "queued"]


@pytest.mark.parametrize("damage", ["signal", "lost", "last"])
def test_signal_that_cannot_be_read_is_reported_to_the_receiver(store: Store, damage: str) -> None:
    """Without the report, the run would be woken again and again, and would never receive the signal."""
    run = store.running()
    store.send(run.id)
    signals = store.keys.signals(run.id)
    if damage == "signal":
        store.client.hset(signals, "1:t", b"\xc1")
    else:
        store.client.hdel(signals, "1:t")
    if damage == "last":
        store.client.hset(signals, "last:t", "damaged")
    with store.unchanged():
        assert store.receive(run, t=0).word == "unreadable"
