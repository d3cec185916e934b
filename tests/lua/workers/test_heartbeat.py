"""heartbeat: a removed or condemned worker is never renewed; the runs that a worker holds are compared with those it owns."""

from __future__ import annotations

from coordinator.store.plans.workers import HeartbeatReply
from tests.lua.store import LEASE, NOW, Store


def test_heartbeat_renews_the_lease(store: Store) -> None:
    store.join()
    store.later(4000)
    assert store.beat() == HeartbeatReply()
    assert store.score(store.keys.workers(), "w1") == NOW + 4000 + LEASE


def test_expired_lease_is_renewed_if_the_worker_was_not_condemned(store: Store) -> None:
    run = store.running()
    store.later(10 * LEASE)
    assert store.beat() == HeartbeatReply()
    assert store.complete(run) == "ok"


def test_removed_worker_is_not_renewed(store: Store) -> None:
    with store.unchanged():
        assert store.beat("never-joined") is None
    store.running()
    store.running()
    store.do_abandon_batch(1)
    with store.unchanged():
        assert store.beat() is None, "condemned"
    store.abandon()
    with store.unchanged():
        assert store.beat() is None, "swept"


def test_floor_only_rises(store: Store) -> None:
    store.join()
    for floor, kept in ((3, b"3"), (1, b"3"), (12, b"12")):
        store.beat(floor=floor)
        assert store.client.hget(store.keys.worker("w1"), "floor") == kept


def test_heartbeat_reports_cancels_and_a_requested_drain(store: Store) -> None:
    first, second = store.running(), store.running()
    store.running()
    store.cancel(first.id)
    store.cancel(second.id)
    store.client.hset(store.keys.worker("w1"), "drain", "roll")
    beat = store.beat()
    assert beat is not None
    assert (set(beat.cancels), beat.drain) == ({first.id, second.id}, "roll")
    store.complete(first)
    assert store.beat() == HeartbeatReply(cancels=(second.id,), drain="roll")


def test_run_that_is_held_but_not_owned_is_lost(store: Store) -> None:
    kept, recovered, retaken, gone, spoilt = (store.running() for _ in range(5))
    store.release(recovered)
    store.release(retaken)
    store.join("w2")
    store.claim("w2")
    store.client.delete(store.keys.run(gone.id))
    store.spoil(store.keys.run(spoilt.id))
    stale = kept._replace(token="1-1-w1")
    beat = store.beat(held=[kept, recovered, retaken, gone, spoilt])
    assert beat is not None
    assert beat.lost == tuple((run.id, run.token) for run in (recovered, retaken, gone, spoilt))
    assert beat.strays == ()
    beat = store.beat(held=[stale])
    assert beat is not None
    assert beat.lost == ((stale.id, stale.token),)


def test_run_that_is_owned_but_not_held_is_a_stray(store: Store) -> None:
    held, stray = store.running(), store.running()
    beat = store.beat(held=[held])
    assert beat is not None
    assert (beat.lost, beat.strays) == ((), ((stray.id, stray.token),))
    beat = store.beat(held=[])
    assert beat is not None
    assert set(beat.strays) == {(held.id, held.token), (stray.id, stray.token)}


def test_without_a_list_of_held_runs_nothing_is_compared(store: Store) -> None:
    store.running()
    assert store.beat() == HeartbeatReply()


def test_repeated_heartbeat_changes_nothing_more(store: Store) -> None:
    run = store.running()
    store.beat(floor=2, held=[run])
    with store.unchanged():
        store.beat(floor=2, held=[run])


def test_runs_whose_handlers_do_not_stop_are_kept_until_a_heartbeat_leaves_them_out(store: Store) -> None:
    store.join()
    store.beat(stuck=["r1", "r2"])
    assert store.client.hget(store.keys.worker("w1"), "stuck") == b"r1 r2"
    store.beat()
    assert not store.client.hexists(store.keys.worker("w1"), "stuck")
