"""due: a delayed run is moved once; expiries and ignored cancels are carried out."""

from __future__ import annotations

import pytest

from coordinator.store.plans.coordinators import DueResult
from tests.lua.store import NOW, ROUTES, Store, delta


def test_run_is_moved_when_it_is_due(store: Store) -> None:
    early, late = store.enqueue(due="+1000"), store.enqueue(due="+3000")
    store.later(999)
    with store.unchanged():
        assert store.due() == DueResult(0, 0, 1)
    store.later(1)
    assert store.due() == DueResult(1, 0, 2000)
    assert (store.status(early), store.places(early)) == ("queued", [f"ready:{ROUTES[0]}"])
    assert store.places(late) == ["delayed"]
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 1
    assert store.members(store.keys.routes()) == {ROUTES[0]}


def test_repeated_due_moves_once(store: Store) -> None:
    store.enqueue(due="+1000")
    store.later(1000)
    store.due()
    with store.unchanged():
        assert store.due() == DueResult(0, 0, None)


def test_due_moves_a_batch_and_says_that_more_is_due(store: Store) -> None:
    for _ in range(5):
        store.enqueue(due="+1")
    store.later(10)
    assert store.due(batch=2) == DueResult(2, 0, -9)
    assert store.due(batch=2) == DueResult(2, 0, -9)
    assert store.due(batch=2) == DueResult(1, 0, None)


@pytest.mark.parametrize("how", ["missing", "wrong type", "counters", "no counters", "queued", "running"])
def test_unreadable_entry_is_set_aside_and_other_runs_are_moved(store: Store, how: str) -> None:
    bad, good = store.enqueue(due="+1"), store.enqueue(due="+1")
    key = store.keys.run(bad)
    match how:
        case "missing":
            store.client.delete(key)
        case "wrong type":
            store.spoil(key)
        case "counters":
            store.client.hset(key, "counters", "1 2 3")
        case "no counters":
            store.client.hdel(key, "counters")
        case status:
            store.client.hset(key, "status", status)
    store.later(1)
    assert store.due() == DueResult(2, 0, None)
    assert store.line(store.keys.aside()) == [f"delayed:{bad}"]
    assert store.line(store.keys.ready(ROUTES[0])) == [good]


@pytest.mark.parametrize("due", ["", "+9000"])
def test_run_that_no_worker_took_expires(store: Store, due: str) -> None:
    id = store.enqueue(expires="5000", due=due)
    assert store.client.llen(store.keys.coordinator_bell()) == 1
    store.later(4999)
    with store.unchanged():
        assert store.due().passed == 0
    store.later(1)
    assert store.due().passed == 1
    assert (store.status(id), store.places(id)) == ("cancelled", ["ended:cancelled"])
    assert store.run(id)["reason"] == "expired before a worker took it"
    store.join()
    assert store.claim() == ("ok", [])


def test_running_run_does_not_expire(store: Store) -> None:
    run = store.running(expires="5000")
    store.client.zadd(store.keys.deadlines(), {f"expire:{run.id}": NOW})
    store.later(9000)
    assert store.due().passed == 1
    assert store.complete(run) == "ok"


def test_ignored_cancel_is_carried_out_by_force(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=1))
    store.cancel(run.id, grace=10)
    store.later(9999)
    with store.unchanged():
        store.due()
    store.later(1)
    epoch = store.counters(run.id).epoch
    assert store.due() == DueResult(0, 1, None)
    assert (store.status(run.id), store.places(run.id)) == ("cancelled", ["ended:cancelled"])
    assert store.run(run.id)["reason"] == "cancelled by force: its handler did not stop in time"
    assert store.run(run.id)["spent"].split()[0] == "10000", "its time is counted as that of any other attempt"
    assert store.counters(run.id).epoch == store.now > epoch
    assert "last" not in store.run(run.id)
    assert not store.client.hexists(store.keys.worker("w1"), f"cancel:{run.id}")
    assert store.members(store.keys.owned("w1")) == store.members(store.keys.live()) == set()
    with store.unchanged():
        for end in (store.complete, store.fail, store.retry, store.release, store.reject):
            assert end(run) == "fenced"


@pytest.mark.parametrize("how", ["never asked", "missing", "wrong type", "no token", "nonsense"])
def test_obsolete_deadline_does_nothing(store: Store, how: str) -> None:
    run, delayed = store.running(), store.enqueue(due="+1")
    entry = f"cancel:{run.id}"
    match how:
        case "missing":
            store.client.delete(store.keys.run(run.id))
        case "wrong type":
            store.spoil(store.keys.run(run.id))
        case "no token":
            store.client.hset(store.keys.run(run.id), "cancel", "1")
            store.client.hdel(store.keys.run(run.id), "token")
        case "nonsense":
            entry = "nonsense"
        case _:
            pass  # as it is
    store.client.zadd(store.keys.deadlines(), {entry: NOW, f"expire:{store.id()}": NOW})
    store.later(1)
    assert store.due() == DueResult(1, 2, None)
    if how != "wrong type":
        assert store.status(run.id) == ("missing" if how == "missing" else "running")
    assert store.status(delayed) == "queued"


def test_run_that_is_due_and_expired_has_one_ending(store: Store) -> None:
    id = store.enqueue(due="+1000", expires="1000")
    store.later(1000)
    assert store.due() == DueResult(1, 1, None)
    assert store.places(id) == ["ended:cancelled"]
