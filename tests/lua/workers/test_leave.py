"""leave: a worker is never removed while it owns runs; a tombstone refuses its late calls."""

from __future__ import annotations

from tests.lua.store import Store


def test_worker_without_runs_leaves(store: Store) -> None:
    store.join()
    store.client.rpush(store.keys.inbox("w1"), "drain")
    assert store.leave() == []
    assert store.line(store.keys.workers()) == []
    assert not store.client.exists(store.keys.inbox("w1"))
    assert 50_000 < store.client.pttl(store.keys.worker("w1")) <= 60_000
    with store.unchanged():
        assert store.leave() == []
        assert store.beat() is None


def test_worker_that_still_owns_runs_gets_their_list_instead(store: Store) -> None:
    runs = [store.running() for _ in range(3)]
    with store.unchanged():
        assert sorted(store.leave()) == sorted((run.id, run.token) for run in runs)
    for run in runs:
        assert store.release(run) == "ok"
    assert store.leave() == []


def test_stale_entries_do_not_prevent_leaving(store: Store) -> None:
    run = store.running()
    store.client.sadd(store.keys.owned("w1"), store.id(), "missing")
    assert store.leave() == [(run.id, run.token)]
    assert store.members(store.keys.owned("w1")) == {run.id}
    store.crash(run)
    other = store.take("w2")
    store.client.sadd(store.keys.owned("w1"), other.id)
    assert store.leave() == []
    assert store.complete(other) == "ok", "what another worker owns by now is not touched"


def test_run_behind_many_stale_entries_is_never_left_behind(store: Store) -> None:
    run = store.running()
    for n in range(8):
        store.client.sadd(store.keys.owned("w1"), *(f"stale-{n}-{i}" for i in range(100)))
    assert store.leave() == [(run.id, run.token)]
    assert store.line(store.keys.workers()) == ["w1"]
