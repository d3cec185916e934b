"""recover: no run is taken from a worker with a valid lease or during a hold; the old owner of a recovered run cannot write it."""

from __future__ import annotations

import pytest

from coordinator.store.plans.coordinators import Recovered
from tests.lua.coordinators.test_judge import settled
from tests.lua.store import LEASE, NOW, ROUTES, Store, delta, messages


def expire(store: Store, *alive: str) -> None:
    """Let the leases of all workers that are not named expire, while a coordinator ticks."""
    for _ in range(LEASE // 1000):
        store.tick_for(1000)
        for worker in alive:
            store.beat(worker)


def test_interrupted_run_returns_to_its_position(store: Store) -> None:
    settled(store)
    run = store.running()
    store.save(run, delta(1, count=2))
    score = store.counters(run.id).score
    expire(store)
    assert store.recover() == Recovered("ok", queued=1)
    assert (store.status(run.id), store.places(run.id)) == ("queued", [f"ready:{ROUTES[1]}"])
    counters = store.counters(run.id)
    assert (counters.recoveries, counters.strikes, counters.releases, counters.score) == (1, 0, 0, score), (
        "it had progressed"
    )
    assert counters.epoch == store.now
    fields = store.run(run.id)
    assert (fields["cause"], fields["prev"], "token" in fields, "last" in fields) == ("recover", "w1 c1", False, False)
    assert store.client.llen(store.keys.bell(ROUTES[1])) == 1
    assert store.line(store.keys.workers()) == []
    assert 50_000 < store.client.pttl(store.keys.worker("w1")) <= 60_000
    assert store.transcript(run.id) == messages(2)


def test_previous_owner_of_a_recovered_run_cannot_write(store: Store) -> None:
    settled(store)
    run = store.running()
    expire(store)
    store.recover()
    with store.unchanged():
        assert store.save(run, delta(1, count=1)) == "fenced"
        assert store.complete(run) == "fenced"
        assert store.fail(run) == "fenced"
        assert store.retry(run) == "fenced"
        assert store.release(run) == "fenced"
        assert store.reject(run) == "fenced"
        assert store.load(run) == "fenced"
        assert store.beat() is None


def test_epoch_grows_even_if_the_clock_went_back(store: Store) -> None:
    run = store.running()
    before = store.counters(run.id).epoch
    store.later(-3_600_000)
    store.crash(run)
    assert store.counters(run.id).epoch == before + 1


def test_without_the_lock_nothing_is_recovered(store: Store) -> None:
    settled(store)
    store.running()
    expire(store)
    with store.unchanged():
        assert store.recover(locked=False) == Recovered("unlocked")
    store.lock("recovery", "somebody else")
    with store.unchanged():
        assert store.recover(locked=False) == Recovered("unlocked")


def test_worker_with_a_valid_lease_is_left_alone(store: Store) -> None:
    settled(store)
    run = store.running()
    expire(store, "w1")
    assert store.recover() == Recovered("alive")
    assert store.complete(run) == "ok"
    assert store.recover("unknown") == Recovered("gone")


def test_runs_are_not_recovered_during_a_hold_and_afterwards_without_a_strike(store: Store) -> None:
    store.lock("recovery", "t1")
    run = store.running()
    store.later(10 * LEASE)
    assert store.recover() == Recovered("held"), "the judgement is part of it"
    store.tick_for(LEASE)
    assert store.recover() == Recovered("ok", queued=1)
    assert (store.counters(run.id).strikes, store.counters(run.id).recoveries) == (0, 1)


def test_heartbeat_delayed_by_a_frozen_server_does_not_cause_a_strike(store: Store) -> None:
    """The heartbeat is executed just after the hold began, so its lease ends just after the hold."""
    store.lock("recovery", "t1")
    run = store.running()
    store.later(10 * LEASE)
    assert store.recover() == Recovered("held")
    store.later(500)
    store.beat()
    store.tick_for(LEASE + 1000)
    assert store.recover() == Recovered("ok", queued=1)
    assert store.counters(run.id).strikes == 0


def test_worker_that_expires_after_a_hold_gets_strikes(store: Store) -> None:
    store.judge()
    store.tick_for(1000)
    run = store.running()
    store.beat()
    store.tick_for(5000)
    store.beat()
    expire(store)
    assert store.recover() == Recovered("ok", queued=1)
    assert store.counters(run.id).strikes == 1


def test_condemned_worker_is_recovered_during_a_hold_with_a_strike(store: Store) -> None:
    store.judge()
    first, second = store.running(), store.running()
    store.do_abandon_batch(1)
    assert store.recover().taken == 1
    assert [store.counters(run.id).strikes for run in (first, second)] == [1, 1]


def test_missing_strike_after_a_hold_applies_to_all_batches(store: Store) -> None:
    runs = [store.running() for _ in range(5)]
    store.later(10 * LEASE)
    store.judge()
    store.tick_for(LEASE)
    store.lock("recovery", "t1")
    assert store.recover(batch=2).left == 3
    store.tick_for(2 * LEASE)
    assert store.beat() is None, "the first batch condemns"
    assert store.recover(batch=2).left == 1
    assert store.recover(batch=2).left == 0
    assert {store.counters(run.id).strikes for run in runs} == {0}
    assert store.recover() == Recovered("gone")


def test_repeated_recover_takes_once(store: Store) -> None:
    settled(store)
    store.running()
    expire(store)
    store.recover()
    with store.unchanged():
        assert store.recover() == Recovered("gone")


def test_from_the_second_strike_the_run_waits_with_jitter_among_the_suspects(store: Store) -> None:
    run = store.running("w1")
    store.crash(run)
    run = store.take("w2")
    store.abandon("w2", jitter=0.25)
    assert (store.status(run.id), store.counters(run.id).strikes) == ("delayed", 2)
    assert store.score(store.keys.delayed(), run.id) == NOW + 1250
    store.later(1250)
    store.due()
    assert store.places(run.id) == [f"suspect:{ROUTES[0]}"]
    run = store.take("w3", alone=True)
    assert run.suspect
    assert store.abandon("w3").dead == 1
    assert (store.status(run.id), store.places(run.id)) == ("dead", ["ended:dead"])
    assert store.run(run.id)["reason"] == "3 strikes without progress; the last: its process died"


def test_progress_resets_strikes(store: Store) -> None:
    store.enqueue()
    seen = []
    for number, saved in enumerate([0, 0, 1, 0, 0, 2], 1):
        run = store.take(f"w{number}", alone=True)
        if saved:
            store.save(run, delta(saved, base=saved - 1, count=1))
        store.crash(run)
        store.later(5000)
        store.due()
        seen.append(store.counters(run.id).strikes)
    assert seen == [1, 2, 0, 1, 2, 0]


def test_run_that_makes_progress_before_each_loss_is_never_dead(store: Store) -> None:
    id = store.enqueue()
    for number in range(1, 121):
        run = store.take(f"w{number}")
        store.save(run, delta(number, base=number - 1, count=1))
        store.crash(run)
        store.client.delete(store.keys.worker(f"w{number}"))
    assert (store.status(id), store.counters(id).recoveries) == ("queued", 120)


def test_run_is_dead_after_100_losses_without_progress_although_another_run_is_to_blame(store: Store) -> None:
    id = store.enqueue()
    for number in range(1, 101):
        run = store.take(f"w{number}")
        if number == 1:
            store.save(run, delta(1, count=1))
        store.abandon(f"w{number}", blame="another")
        store.client.delete(store.keys.worker(f"w{number}"))
    assert (store.status(id), store.counters(id).strikes) == ("queued", 0), "the first loss followed a save"
    store.take("w101")
    store.abandon("w101", blame="another")
    assert store.status(id) == "dead"
    assert store.run(id)["reason"].startswith("100 losses without progress")


def test_excused_recovery_is_not_a_loss(store: Store) -> None:
    run = store.running()
    store.later(10 * LEASE)
    store.judge()
    store.tick_for(LEASE)
    assert store.recover().queued == 1
    assert "losses" not in store.run(run.id)


@pytest.mark.parametrize("how", ["missing", "wrong type", "counters", "no counters", "no token"])
def test_unreadable_entry_is_set_aside_and_other_runs_are_recovered(store: Store, how: str) -> None:
    settled(store)
    bad, good = store.running(), store.running()
    key = store.keys.run(bad.id)
    match how:
        case "missing":
            store.client.delete(key)
        case "wrong type":
            store.spoil(key)
        case "counters":
            store.client.hset(key, "counters", "1 2 3")
        case "no counters":
            store.client.hdel(key, "counters")
        case _:
            store.client.hdel(key, "token")
    expire(store)
    assert store.recover() == Recovered("ok", queued=1, aside=1)
    assert store.line(store.keys.aside()) == [f"owned:{bad.id}"]
    assert store.status(good.id) == "queued"
    assert store.line(store.keys.workers()) == []


def test_run_owned_by_another_worker_is_not_taken(store: Store) -> None:
    settled(store)
    store.join()
    other = store.running("w2")
    store.client.sadd(store.keys.owned("w1"), other.id)
    expire(store, "w2")
    assert store.recover("w1") == Recovered("ok")
    assert store.complete(other) == "ok"


def test_entry_without_a_readable_hash_is_removed(store: Store) -> None:
    settled(store)
    run = store.running()
    store.client.delete(store.keys.worker("w1"))
    expire(store)
    assert store.recover() == Recovered("ok", queued=1)
    assert store.complete(run) == "fenced"


def test_unwritable_ready_queue_does_not_stop_the_recovery_of_other_runs(store: Store) -> None:
    settled(store)
    held = [store.running() for _ in range(3)]
    saved = store.running()
    store.save(saved, delta(1, count=1))
    store.spoil(store.keys.ready(ROUTES[1]))  # the ready queue of runs with a checkpoint
    expire(store)
    assert store.recover() == Recovered("ok", queued=3, aside=1)
    assert [store.status(run.id) for run in held] == ["queued"] * 3
    assert all(store.places(run.id) == [f"ready:{ROUTES[0]}"] for run in held)
    assert store.line(store.keys.workers()) == []
