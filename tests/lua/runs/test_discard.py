"""discard: an ended run and everything stored for it are removed at once."""

from __future__ import annotations

import pytest

from coordinator.doctor.examiner import examine
from coordinator.encoding.spec import SPEC_FIELDS
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.clients import NewRun
from tests.lua.store import ROUTES, Store, delta


def discard(store: Store, id: str, life: int | None = None) -> list[str]:
    return store.do(client_plans.discard(store.keys, id, life))


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "dead"])
def test_discarded_run_leaves_only_a_bare_tombstone(store: Store, ending: str) -> None:
    before = set(store.dump())
    run = store.running(once="a", digest="d", spec=b"s" * 200)
    store.save(run, delta(1, count=2, state=b"s", note=b"n"))
    store.send(run.id, key="k")
    match ending:
        case "completed":
            store.complete(run)
        case "failed":
            store.fail(run)
        case "cancelled":
            store.cancel(run.id)
            store.release(run)
        case _:
            store.client.hset(store.keys.run(run.id), "counters", "1 1 1 0 99 2 0 0 9 0 1 1")
            store.abandon()
    store.leave()
    assert discard(store, run.id) == ["discarded", ending]
    left = {
        key
        for key in set(store.dump()) - before
        if ":bell:" not in key and not key.endswith((":worker:w1", ":routes", ":inbox:w1"))
    }
    # They stay for as long as a client may repeat its calls.
    kept = {key(run.id) for key in (store.keys.run, store.keys.signal_keys, store.keys.signal_operations)}
    assert left == {*kept, store.keys.forgotten()}
    assert all(0 < store.client.pttl(key) <= 60_000 for key in kept)
    assert not store.run(run.id).keys() & set(SPEC_FIELDS)
    assert store.do(examine(store.ns, now=store.at)).found == 0


@pytest.mark.parametrize("status", ["queued", "delayed", "running", "waiting"])
def test_open_run_is_not_discarded(store: Store, status: str) -> None:
    if status in ("running", "waiting"):
        run = store.running()
        id = run.id
        if status == "waiting":
            store.suspend(run, t=0)
    else:
        id = store.enqueue(due="+1000" if status == "delayed" else "")
    with store.unchanged():
        assert discard(store, id) == ["open", status]


def test_run_that_was_revived_meanwhile_is_not_discarded(store: Store) -> None:
    run = store.running()
    store.fail(run)
    store.revive(run.id)
    store.cancel(run.id)
    with store.unchanged():
        assert discard(store, run.id, life=1) == ["changed"]
    assert discard(store, run.id, life=2) == ["discarded", "cancelled"]


def test_missing_run_is_reported_as_missing(store: Store) -> None:
    with store.unchanged():
        assert discard(store, store.id()) == ["missing"]


def test_late_repetition_of_its_enqueue_does_not_recreate_the_run(store: Store) -> None:
    run = store.running()
    store.complete(run)
    discard(store, run.id)
    assert store.ask_enqueue(NewRun(run.id, ROUTES[0], b"spec")) == ("created", run.id)
    assert store.line(store.keys.ready(ROUTES[0])) == []


def test_key_of_a_discarded_run_is_free_and_other_keys_are_kept(store: Store) -> None:
    run = store.running(once="a", digest="d", key_ttl="100000")
    store.complete(run)
    discard(store, run.id)
    other = store.enqueue(once="a", digest="d")
    discard(store, run.id)
    assert store.client.get(store.keys.once("k", "a")) == f"{other} d".encode()


def test_discarded_run_cannot_be_revived(store: Store) -> None:
    run = store.running()
    store.fail(run)
    discard(store, run.id)
    assert store.revive(run.id) == "missing"
