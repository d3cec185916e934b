"""reject: the attempt ended before the handler's first line. It is a strike only if a handler of the kind has started before."""

from __future__ import annotations

import pytest

from coordinator.store.plans.workers import Claimed
from tests.lua.store import NOW, ROUTES, Store, delta


def rejected(store: Store, run: Claimed, **more: object) -> Claimed:
    """Reject a run, wait until it is due, and claim it again."""
    assert store.reject(run, **more) == "delayed"  # type: ignore[arg-type]
    store.later(400_000)
    store.join()
    store.beat()
    store.due()
    return store.take(alone=True)


def test_rejected_run_is_delayed_with_a_new_position(store: Store) -> None:
    run = store.running()
    store.later(10)
    assert store.reject(run) == "delayed"
    counters = store.counters(run.id)
    assert (counters.strikes, counters.recoveries, counters.failures, counters.backoffs) == (1, 0, 0, 1)
    assert counters.score == store.score(store.keys.delayed(), run.id) == NOW + 10 + 2000
    assert counters.epoch == NOW + 10
    assert store.places(run.id) == ["delayed"]
    assert store.run(run.id)["error"] == "error"


@pytest.mark.parametrize(("jitter", "factor"), [(0, 0.75), (0.5, 1), (1, 1.25)])
def test_back_off_grows_up_to_five_minutes(store: Store, jitter: float, factor: float) -> None:
    run = store.running()
    waits = []
    for _ in range(10):
        assert store.reject(run, proven=False, jitter=jitter) == "delayed"
        waits.append((store.score(store.keys.delayed(), run.id) or 0) - store.now)
        store.later(400_000)
        store.beat()
        store.due()
        run = store.take()
    assert waits == [int(min(2000 * 2**n, 300_000) * factor) for n in range(10)]


def test_rejection_is_a_strike_only_if_the_kind_has_started_before(store: Store) -> None:
    run = store.running()
    for _ in range(10):
        run = rejected(store, run, proven=False)
    assert (store.counters(run.id).strikes, store.counters(run.id).recoveries) == (0, 0)


def test_run_is_dead_after_three_strikes(store: Store) -> None:
    run = store.running()
    run = rejected(store, run)
    run = rejected(store, run)
    assert run.suspect
    assert store.reject(run) == "dead"
    assert (store.status(run.id), store.places(run.id)) == ("dead", ["ended:dead"])
    assert store.run(run.id)["reason"] == "3 strikes without progress; the last: its handler could not be started"
    with store.unchanged():
        assert store.reject(run) == "dead"


def test_run_outlives_a_night_of_a_deploy_that_cannot_start_its_kind(store: Store) -> None:
    run = store.running()
    for _ in range(120):
        run = rejected(store, run, proven=False)
    assert store.status(run.id) == "running"
    assert store.counters(run.id).strikes == 0


def test_progress_resets_strikes_and_back_off(store: Store) -> None:
    run = rejected(store, rejected(store, store.running()))
    store.save(run, delta(1, count=1))
    store.release(run)
    run = store.take()
    assert store.reject(run) == "delayed"
    assert (store.counters(run.id).strikes, store.counters(run.id).backoffs) == (0, 1)


def test_rejection_keeps_the_cause_of_the_resume(store: Store) -> None:
    run = rejected(store, rejected(store, store.running(), proven=False), proven=False)
    assert run.cause == "", "it was never begun"
    store.crash(run)
    run = store.take("w2")
    store.reject(run)
    store.later(400_000)
    store.due()
    assert store.take("w3", alone=True).cause == "recover"


def test_repeated_reject_requeues_once(store: Store) -> None:
    run = store.running()
    store.reject(run)
    store.later(10)
    with store.unchanged():
        assert store.reject(run) == "delayed"


def test_only_the_owner_rejects(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.reject(stranger) == "fenced"


def test_unreadable_counters_refuse_a_reject(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "counters", "1 2 3")
    with store.unchanged():
        assert store.reject(run) == "fenced"


def test_requested_cancel_wins(store: Store) -> None:
    run = store.running()
    store.cancel(run.id)
    assert store.reject(run) == "cancelled"
    assert store.places(run.id) == ["ended:cancelled"]
    with store.unchanged():
        assert store.reject(run) == "cancelled"


def test_rejected_suspect_stays_a_suspect(store: Store) -> None:
    run = rejected(store, store.running())
    store.reject(run)
    store.later(400_000)
    store.due()
    assert store.places(run.id) == [f"suspect:{ROUTES[0]}"]
