"""drain: a field and a hint ask a worker to drain; nothing is written for a removed worker."""

from __future__ import annotations

from coordinator.store.plans import fleets as fleet_plans
from tests.lua.store import NOW, Store


def drain(store: Store, worker: str = "w1") -> bool:
    return store.do(fleet_plans.drain(store.keys, worker, now=store.at))


def test_worker_learns_of_a_drain_at_once_and_with_every_heartbeat(store: Store) -> None:
    store.join()
    assert drain(store)
    assert store.client.lrange(store.keys.inbox("w1"), 0, -1) == [b"drain"]
    assert 0 < store.client.pttl(store.keys.inbox("w1")) <= 60_000
    for _ in range(2):
        beat = store.beat()
        assert beat is not None
        assert beat.drain == str(NOW)


def test_repeated_drain_keeps_the_first_time(store: Store) -> None:
    store.join()
    drain(store)
    store.later(10)
    assert drain(store)
    beat = store.beat()
    assert beat is not None
    assert beat.drain == str(NOW)


def test_drain_writes_nothing_for_a_removed_worker(store: Store) -> None:
    store.join()
    store.leave()
    with store.unchanged():
        assert not drain(store)
        assert not drain(store, "w9")
    store.running("w2")
    store.client.hset(store.keys.worker("w2"), "condemned", "struck")
    with store.unchanged():
        assert not drain(store, "w2")
