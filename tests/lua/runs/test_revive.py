"""revive: one new life starts; a key that names another run by now is not taken away from that run."""

from __future__ import annotations

import pytest

from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.workers import Claimed
from tests.lua.store import NOW, ROUTES, Store, delta, messages


def failed(store: Store, **options: str) -> Claimed:
    run = store.running(**options)
    store.save(run, delta(1, count=2, iteration=3, schema=2, state=b"s"))
    store.fail(run)
    return run


def dead(store: Store) -> str:
    id = store.enqueue()
    for worker in ("w1", "w2", "w3"):
        store.crash(store.take(worker, alone=True))
        store.later(5000)
        store.due()
    assert store.status(id) == "dead"
    return id


def test_revived_run_continues_from_the_kept_checkpoint(store: Store) -> None:
    run = failed(store, priority="2")
    store.later(100)
    assert store.revive(run.id) == "queued"
    assert (store.status(run.id), store.places(run.id)) == ("queued", [f"ready:{ROUTES[2]}"])
    for key in (store.keys.run(run.id), store.keys.ckpt(run.id), store.keys.messages(run.id, "1")):
        assert store.client.pttl(key) == -1, key
    counters = store.counters(run.id)
    assert (counters.life, counters.attempt, counters.failures, counters.epoch) == (2, 1, 0, NOW + 100)
    assert counters.score == NOW + 100 - 2 * 2**43
    fields = store.run(run.id)
    assert not fields.keys() & {"ended", "result", "reason", "cancel"}
    again = store.take("w2")
    assert (again.cause, store.transcript(run.id), store.state(run.id)) == ("revive", messages(2), b"s")
    assert store.complete(run) == "fenced"
    assert store.save(again, delta(2, base=2, count=1)) == "ok"


def test_revived_run_starts_from_the_start_if_requested(store: Store) -> None:
    run = failed(store)
    assert store.revive(run.id, from_start=True) == "queued"
    assert store.places(run.id) == [f"ready:{ROUTES[0]}"]
    assert not store.client.exists(store.keys.ckpt(run.id), store.keys.messages(run.id, "1"))
    again = store.take("w2")
    assert again.checkpoint is None
    assert store.save(again, delta(1, count=1)) == "ok"


@pytest.mark.parametrize("saved", [False, True])
def test_revived_from_the_start_the_run_waits_on_its_original_route(store: Store, saved: bool) -> None:
    run = store.running(route=ROUTES[2])
    if saved:
        store.save(run, delta(1, schema=1, count=1))
    store.fail(run)
    store.revive(run.id, from_start=True)
    assert store.places(run.id) == [f"ready:{ROUTES[2]}"]


def test_revival_resets_strikes_recoveries_and_the_cancel_request(store: Store) -> None:
    id = dead(store)
    store.revive(id)
    counters = store.counters(id)
    assert (counters.strikes, counters.recoveries, counters.backoffs, counters.failures) == (0, 0, 0, 0)
    run = store.take("w4")
    store.cancel(id)
    store.release(run)
    assert store.revive(id, "r2") == "queued"
    run = store.take("w5")
    assert store.release(run) == "ok", "what was asked of the last life is over"
    assert store.counters(id).life == 3


def test_progress_of_the_previous_life_is_not_progress_of_this_one(store: Store) -> None:
    run = failed(store)
    store.revive(run.id)
    for strikes, worker in ((1, "w2"), (2, "w3")):
        store.crash(store.take(worker))
        assert store.counters(run.id).strikes == strikes
        store.later(5000)


def test_repeated_revive_revives_once(store: Store) -> None:
    run = failed(store)
    store.revive(run.id)
    store.later(5)
    with store.unchanged():
        assert store.revive(run.id) == "queued"


@pytest.mark.parametrize("life", [1, None])
def test_late_revive_revives_once(store: Store, life: int | None) -> None:
    run = failed(store)
    store.revive(run.id, life=life)
    again = store.take("w2")
    with store.unchanged():
        assert store.revive(run.id, life=life) == "queued"
    store.fail(again)
    with store.unchanged():
        assert store.revive(run.id, life=life) == "queued"
    store.revive(run.id, "r2", life=2)
    store.cancel(run.id, "o1")
    with store.unchanged():
        assert store.revive(run.id, "r2", life=2) == "queued", "a cancel in between makes no difference"
        assert store.revive(run.id, "r3", life=2) == "changed"


def test_only_an_ended_run_is_revived(store: Store) -> None:
    waiting, delayed, run = store.enqueue(), store.enqueue(due="+99"), store.running()
    with store.unchanged():
        assert {store.revive(id) for id in (waiting, delayed, run.id)} == {"running"}
        assert store.revive(store.id()) == "missing"
    store.complete(run)
    with store.unchanged():
        assert store.revive(run.id) == "completed"


@pytest.mark.parametrize("what", ["wrong type", "counters", "tombstone"])
def test_unreadable_run_is_reported_as_missing(store: Store, what: str) -> None:
    run = store.running(retention="0")
    store.fail(run)
    if what == "wrong type":
        store.spoil(store.keys.run(run.id))
    if what == "counters":
        store.client.hset(store.keys.run(run.id), "counters", "1 2 3")
    with store.unchanged():
        assert store.revive(run.id) == "missing"


def test_unreadable_checkpoint_is_not_dropped_silently(store: Store) -> None:
    run = failed(store)
    store.client.hset(store.keys.ckpt(run.id), "head", "nonsense")
    with store.unchanged():
        assert store.revive(run.id) == "unreadable"
    assert store.revive(run.id, from_start=True) == "queued"


def test_revived_run_takes_its_key_again(store: Store) -> None:
    run = failed(store, once="key", digest="d", key_ttl="0")
    once = store.keys.once("k", "key")
    assert not store.client.exists(once)
    assert store.revive(run.id) == "queued"
    assert (store.client.get(once), store.client.pttl(once)) == (f"{run.id} d".encode(), -1)
    assert store.ask_enqueue(NewRun(store.id(), ROUTES[0], b"", once="key", digest="d")) == ("found", run.id)


def test_key_that_still_names_the_run_is_kept(store: Store) -> None:
    run = failed(store, once="key", digest="d")
    once = store.keys.once("k", "key")
    assert store.client.pttl(once) > 0
    assert store.revive(run.id, digest="d") == "queued"
    assert store.client.pttl(once) == -1


def test_key_that_names_another_run_is_a_conflict(store: Store) -> None:
    run = failed(store, once="key", digest="d", key_ttl="0")
    store.enqueue(once="key", digest="d")
    with store.unchanged():
        assert store.revive(run.id) == "conflict"


def test_key_with_different_inputs_is_a_conflict(store: Store) -> None:
    run = failed(store, once="key", digest="d")
    with store.unchanged():
        assert store.revive(run.id, digest="other") == "conflict"


def test_expiry_of_the_previous_life_does_not_apply(store: Store) -> None:
    id = store.enqueue(expires="1000")
    store.later(1000)
    store.due()
    assert store.run(id)["reason"] == "expired before a worker took it"
    store.revive(id)
    store.later(60_000)
    store.due()
    assert store.status(id) == "queued"
    assert store.take().id == id


def test_revived_run_leaves_the_list_of_ended_runs(store: Store) -> None:
    run = failed(store)
    store.revive(run.id)
    store.later(30 * 86_400_000)
    assert store.trim() == 0
    assert store.line(store.keys.ended("failed")) == []
