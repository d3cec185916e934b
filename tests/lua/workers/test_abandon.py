"""abandon: an abandoned worker never joins, claims or renews again; its runs are requeued at once."""

from __future__ import annotations

from coordinator.store.plans.coordinators import Recovered
from tests.lua.store import Store


def test_abandoned_runs_are_requeued_at_once(store: Store) -> None:
    runs = [store.running() for _ in range(5)]
    assert store.abandon(batch=2) == Recovered("ok", queued=5)
    assert {store.status(run.id) for run in runs} == {"queued"}
    assert {store.counters(run.id).strikes for run in runs} == {1}
    assert store.line(store.keys.workers()) == []
    assert not store.client.exists(store.keys.owned("w1"), store.keys.inbox("w1"))
    assert store.complete(runs[0]) == "fenced"


def test_repeated_abandon_takes_once(store: Store) -> None:
    store.running()
    store.abandon()
    with store.unchanged():
        assert store.abandon() == Recovered("ok")


def test_late_abandon_takes_nothing_from_the_next_owner(store: Store) -> None:
    run = store.running()
    store.abandon()
    again = store.take("w2")
    with store.unchanged():
        store.abandon()
    assert again.id == run.id
    assert store.complete(again) == "ok"


def test_unknown_worker_gets_a_tombstone_that_blocks_a_late_join(store: Store) -> None:
    assert store.abandon("w9") == Recovered("ok")
    assert store.line(store.keys.workers()) == []
    assert 50_000 < store.client.pttl(store.keys.worker("w9")) <= 60_000
    with store.unchanged():
        assert store.join("w9") == "gone"


def test_only_the_blamed_run_gets_a_strike(store: Store) -> None:
    guilty, *innocent = [store.running() for _ in range(4)]
    store.abandon(blame=guilty.id)
    assert store.counters(guilty.id).strikes == 1
    assert {store.counters(run.id).strikes for run in innocent} == {0}


def test_blame_holds_when_a_coordinator_recovers_the_rest(store: Store) -> None:
    from coordinator.store.plans import coordinators as coordinator_plans

    guilty, *innocent = [store.running() for _ in range(6)]
    store.wire.ask([next(coordinator_plans.abandon(store.keys, "w1", batch=1, blame=guilty.id, now=store.at))])
    assert store.recover().left == 0
    assert store.counters(guilty.id).strikes == 1
    assert {store.counters(run.id).strikes for run in innocent} == {0}


def test_blame_holds_when_another_supervisor_abandons_the_rest(store: Store) -> None:
    """The first supervisor dies in the middle. The next one on its host only sees that the process of the worker is gone."""
    from coordinator.store.plans import coordinators as coordinator_plans

    guilty, *innocent = [store.running() for _ in range(6)]
    store.wire.ask([next(coordinator_plans.abandon(store.keys, "w1", batch=1, blame=guilty.id, now=store.at))])
    assert store.abandon().left == 0
    assert store.counters(guilty.id).strikes == 1
    assert {store.counters(run.id).strikes for run in innocent} == {0}


def test_worker_that_renewed_its_lease_since_the_caller_looked_keeps_its_runs(store: Store) -> None:
    run = store.running()
    seen = str(store.score(store.keys.workers(), "w1"))
    store.later(1000)
    store.beat()
    with store.unchanged():
        assert store.abandon(deadline=seen) == Recovered("renewed")
    assert store.complete(run) == "ok"


def test_silent_worker_is_abandoned_and_a_repeated_call_continues(store: Store) -> None:
    runs = [store.running() for _ in range(3)]
    seen = str(store.score(store.keys.workers(), "w1"))
    store.do_abandon_batch(1)
    assert store.abandon(deadline=seen).queued == 2
    assert {store.status(run.id) for run in runs} == {"queued"}
    with store.unchanged():
        assert store.abandon(deadline=seen) == Recovered("ok")
