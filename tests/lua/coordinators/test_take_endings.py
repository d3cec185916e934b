"""take_endings: an ending without a worker is noted once, and only while a coordinator that reports traces keeps the list."""

from __future__ import annotations

from coordinator.model.limits import UNREPORTED_LENGTH, UNREPORTED_MS
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans.coordinators import UnreportedEnding
from tests.lua.coordinators.test_judge import settled
from tests.lua.coordinators.test_recover import expire
from tests.lua.store import LEASE, Store


def take(store: Store, most: int = 100) -> list[UnreportedEnding]:
    return store.do(coordinator_plans.take_endings(store.keys, most=most))


def test_nothing_is_noted_while_no_coordinator_reports_traces(store: Store) -> None:
    store.cancel(store.enqueue())
    assert not store.client.exists(store.keys.unreported())
    assert take(store) == []


def test_cancelled_run_is_noted_once(store: Store) -> None:
    take(store)
    id = store.enqueue()
    assert store.cancel(id) == store.cancel(id) == ["cancelled"]
    assert take(store) == [UnreportedEnding(id, 1, 0, "cancelled", store.now / 1000)]
    assert take(store) == []
    assert 0 < store.client.pttl(store.keys.unreported()) <= UNREPORTED_MS


def test_oldest_endings_are_taken_first_and_the_others_stay(store: Store) -> None:
    take(store)
    ids = [store.enqueue() for _ in range(3)]
    for id in ids:
        store.cancel(id)
    assert [ending.id for ending in take(store, 2)] == ids[:1]  # the first entry keeps the list open
    assert [ending.id for ending in take(store, 2)] == ids[1:]
    assert [ending.id for ending in take(store, 2)] == []


def test_expired_run_and_run_that_is_cancelled_by_force_are_noted(store: Store) -> None:
    take(store)
    expired = store.enqueue(expires="1000")
    store.later(1000)
    store.due()
    stubborn = store.running()
    store.cancel(stubborn.id, grace=1)
    assert take(store) == [UnreportedEnding(expired, 1, 0, "cancelled", store.now / 1000)]
    store.later(1000)
    store.due()
    assert take(store) == [UnreportedEnding(stubborn.id, 1, 1, "cancelled", store.now / 1000)]


def test_run_that_dies_with_its_worker_is_noted(store: Store) -> None:
    take(store)
    run = store.running("w1")
    store.abandon("w1")
    store.take("w2")
    store.abandon("w2")
    store.later(5000)
    store.due()
    store.take("w3", alone=True)
    assert take(store) == []
    store.abandon("w3")
    assert take(store) == [UnreportedEnding(run.id, 1, 3, "dead", store.now / 1000)]


def test_run_whose_worker_is_lost_while_it_is_cancelled_is_noted(store: Store) -> None:
    settled(store)
    take(store)
    run = store.running()
    store.cancel(run.id, grace=10 * LEASE)
    expire(store)
    assert store.recover().cancelled == 1
    assert take(store) == [UnreportedEnding(run.id, 1, 1, "cancelled", store.now / 1000)]


def test_ending_that_its_worker_reports_is_not_noted(store: Store) -> None:
    take(store)
    store.complete(store.running())
    store.fail(store.running("w2"))
    asked = store.running("w3")
    store.cancel(asked.id)
    store.fail(asked)
    assert store.status(asked.id) == "cancelled"
    assert take(store) == []


def test_number_of_noted_endings_is_limited(store: Store) -> None:
    take(store)
    store.client.rpush(store.keys.unreported(), *(f"old-{n} 1 0 cancelled 1" for n in range(UNREPORTED_LENGTH)))
    id = store.enqueue()
    store.cancel(id)
    assert store.client.llen(store.keys.unreported()) == UNREPORTED_LENGTH
    assert store.client.lindex(store.keys.unreported(), -1).startswith(id.encode())


def test_damaged_list_does_not_stop_an_ending(store: Store) -> None:
    store.spoil(store.keys.unreported())
    assert store.cancel(store.enqueue()) == ["cancelled"]
