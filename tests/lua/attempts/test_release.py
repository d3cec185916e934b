"""release: a release by a stopping worker is not a strike; any other release is delayed; a requested cancel wins."""

from __future__ import annotations

import pytest

from coordinator.store.plans.workers import Claimed
from tests.lua.store import LEASE, NOW, ROUTES, Store, delta, messages


def test_stopping_release_keeps_the_position_without_a_strike(store: Store) -> None:
    run = store.running()
    younger = store.enqueue()
    store.later(10)
    assert store.release(run, last=delta(1, count=2, state=b"s").wire()) == "ok"
    assert (store.status(run.id), store.places(run.id)) == ("queued", [f"ready:{ROUTES[1]}"])
    counters = store.counters(run.id)
    assert (counters.releases, counters.strikes, counters.recoveries, counters.failures) == (1, 0, 0, 0)
    assert (counters.score, counters.epoch) == (NOW, NOW + 10)
    assert store.transcript(run.id) == messages(2)
    assert "token" not in store.run(run.id)
    assert store.client.llen(store.keys.bell(ROUTES[1])) == 1
    store.join("w2")
    _, runs = store.claim("w2")
    assert [again.id for again in runs] == [run.id, younger]
    assert (runs[0].cause, runs[0].prev) == ("release", "w1 c1")


def test_hundred_deploys_cause_no_strike(store: Store) -> None:
    run = store.running()
    for _ in range(120):
        assert store.release(run) == "ok"
        run = store.take()
    assert store.counters(run.id).strikes == 0


def test_unrequested_release_is_delayed_with_a_strike(store: Store) -> None:
    run = store.running()
    waits = []
    for strikes in (1, 2):
        assert store.release(run, mode="unasked") == "delayed"
        counters = store.counters(run.id)
        assert (counters.strikes, counters.score, counters.recoveries) == (strikes, NOW, strikes)
        waits.append((store.score(store.keys.delayed(), run.id) or 0) - store.now)
        store.later(LEASE)
        store.beat()
        store.due()
        run = store.take(alone=True)
    assert waits == [2000, 4000]
    assert store.release(run, mode="unasked") == "dead"
    assert store.run(run.id)["reason"].startswith("3 strikes")
    with store.unchanged():
        assert store.release(run, mode="unasked") == "dead"


def test_unrequested_release_with_progress_is_not_a_strike(store: Store) -> None:
    run = store.running()
    for seq in range(1, 6):
        assert store.release(run, mode="unasked", last=delta(seq, base=seq - 1, count=1).wire()) == "delayed"
        assert (store.counters(run.id).strikes, store.counters(run.id).backoffs) == (0, 1)
        store.later(LEASE)
        store.beat()
        store.due()
        run = store.take()


def test_suspect_released_while_stopping_stays_a_suspect_until_it_progresses(store: Store) -> None:
    run = store.running()
    for _ in range(2):
        store.release(run, mode="unasked")
        store.later(LEASE)
        store.beat()
        store.due()
        run = store.take(alone=True)
    store.release(run)
    assert store.places(run.id) == [f"suspect:{ROUTES[0]}"]
    assert store.client.llen(store.keys.suspect_bell(ROUTES[0])) == 1
    run = store.take(alone=True)
    store.release(run, last=delta(1, count=1).wire())
    assert store.places(run.id) == [f"ready:{ROUTES[1]}"]


def test_repeated_release_requeues_once(store: Store) -> None:
    run = store.running()
    save = delta(1, count=1).wire()
    store.release(run, last=save)
    store.later(10)
    with store.unchanged():
        assert store.release(run, last=save) == "ok"


def test_late_release_takes_nothing_from_the_next_owner(store: Store) -> None:
    run = store.running()
    store.release(run)
    again = store.take("w2")
    with store.unchanged():
        assert store.release(run, last=delta(1, count=1).wire()) == "ok", "the answer that it got"
    store.release(again)
    with store.unchanged():
        assert store.release(run) == "fenced"


def test_only_the_owner_releases(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.release(stranger, last=delta(1, count=1).wire()) == "fenced"
        assert store.release(stranger, mode="unasked") == "fenced"


def test_unreadable_counters_refuse_a_release(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "counters", "1 2 3")
    with store.unchanged():
        assert store.release(run) == "fenced"


def test_gap_is_reported_before_anything_is_written(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=1))
    with store.unchanged():
        assert store.release(run, last=delta(5, base=3, count=1).wire()) == "gap"
    assert store.release(run, last=delta(6, acked=0, generation=2, count=4, state=b"s").wire()) == "ok"
    assert store.transcript(run.id) == messages(4)


@pytest.mark.parametrize("last", [b"nonsense", delta(1, count=9).wire()])
def test_delta_that_cannot_be_stored_does_not_prevent_the_release(store: Store, last: bytes) -> None:
    run = store.running()
    store.save(run, delta(2, acked=0, count=2))
    assert store.release(run, last=last) == "ok"
    assert store.transcript(run.id) == messages(2)


@pytest.mark.parametrize("mode", ["stopping", "unasked"])
def test_requested_cancel_wins(store: Store, mode: str) -> None:
    run = store.running()
    store.cancel(run.id)
    assert store.release(run, mode=mode, last=delta(1, count=1).wire()) == "cancelled"
    assert (store.places(run.id), store.run(run.id)["reason"]) == (["ended:cancelled"], "cancelled")
    assert store.transcript(run.id) == messages(1)
    assert store.client.pttl(store.keys.ckpt(run.id)) > 0
    assert store.line(store.keys.deadlines()) == []
    assert not store.client.hexists(store.keys.worker("w1"), f"cancel:{run.id}")
    with store.unchanged():
        assert store.release(run, mode=mode) == "cancelled"


def test_release_of_a_condemned_worker_counts_while_its_token_is_valid(store: Store) -> None:
    run, other = store.running(), store.running()
    store.do_abandon_batch(1)
    held = run if store.status(run.id) == "running" else other
    taken = other if held is run else run
    assert store.release(held) == "ok"
    assert store.release(taken) == "fenced"
