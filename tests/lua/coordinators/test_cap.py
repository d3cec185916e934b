"""cap: the oldest ended runs beyond the limit are removed, and nothing is left of them after their tombstone expires."""

from __future__ import annotations

import pytest

from coordinator.store.plans import coordinators as coordinator_plans
from tests.lua.coordinators.test_trim import DAY
from tests.lua.store import Store, delta

TOMBSTONE = 60_000


def cap(store: Store, status: str, keep: int, batch: int = 100) -> int:
    return store.do(coordinator_plans.cap(store.keys, status, keep=keep, batch=batch))


def ended(store: Store, ending: str) -> str:
    """An ended run with everything that can be stored for a run."""
    id = store.enqueue(once=f"key-{store.now}", digest="d")
    store.send(id, key="k")
    store.later(1)
    if ending == "cancelled":
        store.cancel(id)
        return id
    run = store.take("w1")
    store.save(run, delta(1, count=1, state=b"s", phases=(("phase:-:a#0", b"o"),), note=b"n"))
    store.release(run)
    run = store.take("w1")
    match ending:
        case "completed":
            store.complete(run)
        case "failed":
            store.fail(run)
        case _:
            store.client.hset(store.keys.run(id), "losses", "99 1000000")  # 99 losses, without progress since the last
            store.release(run, mode="unasked")
    assert store.status(id) == ending
    return id


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "dead"])
def test_oldest_runs_beyond_the_limit_are_removed_completely(store: Store, status: str) -> None:
    ids = [ended(store, status) for _ in range(5)]
    assert cap(store, status, keep=2) == 3
    assert store.line(store.keys.ended(status)) == ids[3:]
    for id in ids[:3]:
        left = {key: store.client.pttl(key) for key in store.dump() if id in key}
        sends = {store.keys.signal_keys(id), store.keys.signal_operations(id)}
        assert set(left) == {store.keys.run(id), *sends}, "the tombstone, and what a repeated send needs"
        assert all(0 < ttl <= TOMBSTONE for ttl in left.values())
        assert not store.client.hexists(store.keys.run(id), "spec")
    names = {value for kind, value, _ in store.dump().values() if kind == "string" and isinstance(value, bytes)}
    assert not any(name.startswith(f"{id} ".encode()) for name in names for id in ids[:3]), "its idempotency key"
    for id in ids[3:]:
        assert store.client.hexists(store.keys.run(id), "spec")


def test_up_to_the_limit_nothing_changes(store: Store) -> None:
    for _ in range(3):
        ended(store, "failed")
    with store.unchanged():
        assert cap(store, "failed", keep=3) == 0
        assert cap(store, "failed", keep=1000) == 0
        assert cap(store, "dead", keep=0) == 0


def test_batch_is_limited(store: Store) -> None:
    for _ in range(5):
        ended(store, "failed")
    assert [cap(store, "failed", keep=1, batch=3) for _ in range(3)] == [3, 1, 0]


def test_run_with_the_longest_retention_is_removed_last(store: Store) -> None:
    long = store.running(retention=str(30 * DAY))
    store.fail(long)
    store.later(1000)
    store.fail(store.running())
    assert cap(store, "failed", keep=1) == 1
    assert store.line(store.keys.ended("failed")) == [long.id]


def test_run_with_another_status_is_only_removed_from_the_list(store: Store) -> None:
    id = ended(store, "failed")
    store.revive(id)
    store.client.zadd(store.keys.ended("failed"), {id: 5, "gone": 6})
    assert cap(store, "failed", keep=0) == 2
    assert store.status(id) == "queued"
    assert store.client.hexists(store.keys.run(id), "spec")
