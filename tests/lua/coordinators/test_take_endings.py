"""take_endings: an ending without a worker is noted once, and only while a coordinator counts or traces such endings."""

from __future__ import annotations

import pytest

from coordinator.model.limits import UNREPORTED_LENGTH, UNREPORTED_MS
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans.coordinators import UnreportedEnding
from tests.lua.coordinators.test_judge import settled
from tests.lua.coordinators.test_recover import expire
from tests.lua.doctor.test_doctor import examine_store
from tests.lua.store import LEASE, Store


def take(store: Store, most: int = 100) -> list[UnreportedEnding]:
    """Take endings as a coordinator that does both jobs."""
    taken = store.do(coordinator_plans.take_endings(store.keys, most=most, spans=True, counts=True))
    assert taken.for_spans == taken.for_counts
    return taken.for_counts


def take_for_spans(store: Store) -> list[str]:
    """Take endings as a coordinator that reports traces only, and return the ids of the runs."""
    taken = store.do(coordinator_plans.take_endings(store.keys, most=100, spans=True, counts=False))
    assert taken.for_counts == []
    return [ending.id for ending in taken.for_spans]


def take_for_counts(store: Store) -> list[str]:
    """Take endings as a coordinator that exports metrics only, and return the ids of the runs."""
    taken = store.do(coordinator_plans.take_endings(store.keys, most=100, spans=False, counts=True))
    assert taken.for_spans == []
    return [ending.id for ending in taken.for_counts]


def test_nothing_is_noted_while_no_coordinator_counts_or_traces_endings(store: Store) -> None:
    store.cancel(store.enqueue())
    assert not store.client.exists(store.keys.unreported())
    assert take(store) == []


def test_cancelled_run_is_noted_once(store: Store) -> None:
    take(store)
    id = store.enqueue()
    assert store.cancel(id) == store.cancel(id) == ["cancelled"]
    assert take(store) == [UnreportedEnding(id, 1, 0, "cancelled", store.now / 1000, "k")]
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
    assert take(store) == [UnreportedEnding(expired, 1, 0, "cancelled", store.now / 1000, "k")]
    store.later(1000)
    store.due()
    assert take(store) == [UnreportedEnding(stubborn.id, 1, 1, "cancelled", store.now / 1000, "k")]


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
    assert take(store) == [UnreportedEnding(run.id, 1, 3, "dead", store.now / 1000, "k")]


def test_run_whose_worker_is_lost_while_it_is_cancelled_is_noted(store: Store) -> None:
    settled(store)
    take(store)
    run = store.running()
    store.cancel(run.id, grace=10 * LEASE)
    expire(store)
    assert store.recover().cancelled == 1
    assert take(store) == [UnreportedEnding(run.id, 1, 1, "cancelled", store.now / 1000, "k")]


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
    store.client.rpush(
        store.keys.unreported(), *(f"old-{n} 1 0 cancelled 1 default:k@0" for n in range(UNREPORTED_LENGTH))
    )
    id = store.enqueue()
    store.cancel(id)
    assert store.client.llen(store.keys.unreported()) == UNREPORTED_LENGTH
    assert store.client.lindex(store.keys.unreported(), -1).startswith(id.encode())


def test_damaged_list_does_not_stop_an_ending(store: Store) -> None:
    store.spoil(store.keys.unreported())
    assert store.cancel(store.enqueue()) == ["cancelled"]


def test_each_job_gets_each_ending_once_from_coordinators_that_do_one_job(store: Store) -> None:
    assert take_for_spans(store) == take_for_counts(store) == []
    first = store.enqueue()
    store.cancel(first)
    assert take_for_spans(store) == [first]
    second = store.enqueue()
    store.cancel(second)
    assert take_for_counts(store) == [first, second]
    assert take_for_spans(store) == [second]
    third = store.enqueue()
    store.cancel(third)
    assert [ending.id for ending in take(store)] == [third]  # a coordinator that does both jobs
    assert take_for_spans(store) == take_for_counts(store) == []


@pytest.mark.parametrize("other", ["untraced", "uncounted"])
def test_endings_are_not_kept_for_a_job_that_no_coordinator_does(store: Store, other: str) -> None:
    take_one = take_for_counts if other == "untraced" else take_for_spans
    take_one(store)
    store.cancel(store.enqueue())
    assert len(take_one(store)) == 1
    assert not store.client.exists(getattr(store.keys, other)())


def test_number_of_endings_that_wait_for_the_other_job_is_limited(store: Store) -> None:
    take_for_counts(store)
    take_for_spans(store)
    key = store.keys.uncounted()
    assert 0 < store.client.pttl(key) <= UNREPORTED_MS
    store.client.rpush(key, *(f"old-{n} 1 0 cancelled 1 default:work@0" for n in range(UNREPORTED_LENGTH)))
    id = store.enqueue()
    store.cancel(id)
    assert take_for_spans(store) == [id]
    assert store.client.llen(key) == UNREPORTED_LENGTH
    assert store.client.lindex(key, -1).startswith(id.encode())


def test_run_that_the_doctor_ends_is_noted(store: Store) -> None:
    take(store)
    id = store.enqueue()
    store.client.hset(store.keys.run(id), "counters", "damaged")
    examine_store(store, repair=True)
    assert store.status(id) == "dead"
    assert take(store) == [UnreportedEnding(id, 1, 0, "dead", store.now / 1000, "k")]


def test_ended_run_that_the_doctor_repairs_is_not_noted_again(store: Store) -> None:
    take(store)
    id = store.enqueue()
    store.cancel(id)
    assert len(take(store)) == 1
    store.client.persist(store.keys.run(id))
    examine_store(store, repair=True)
    assert store.client.pttl(store.keys.run(id)) > 0
    assert take(store) == []


def test_damaged_route_does_not_stop_the_other_endings(store: Store) -> None:
    take(store)
    for route in (b"default:w\xffrk@0", b"no route", b"default:work@0"):
        store.client.rpush(store.keys.unreported(), b"id 1 0 cancelled 1000 " + route)
    assert [ending.kind for ending in take(store)] == ["", "", "work"]


def test_run_that_the_doctor_takes_from_a_worker_without_a_lease_is_noted(store: Store) -> None:
    take(store)
    store.join("w1")
    run = store.running("w1")
    store.cancel(run.id, grace=10 * LEASE)
    store.client.zrem(store.keys.workers(), "w1")
    examine_store(store, repair=True)
    assert store.status(run.id) == "cancelled"
    assert take(store) == [UnreportedEnding(run.id, 1, 1, "cancelled", store.now / 1000, "k")]


def test_ending_that_an_older_version_noted_has_no_kind(store: Store) -> None:
    take(store)
    store.client.rpush(store.keys.unreported(), "id-1 2 3 cancelled 4000", "id-2 1 0 dead 5000 default:work@0")
    assert take(store) == [
        UnreportedEnding("id-1", 2, 3, "cancelled", 4.0, ""),
        UnreportedEnding("id-2", 1, 0, "dead", 5.0, "work"),
    ]


def test_entry_that_keeps_a_list_is_not_left_for_the_other_job(store: Store) -> None:
    take_for_counts(store)
    for _ in range(3):
        take_for_spans(store)
    assert store.client.lrange(store.keys.uncounted(), 0, -1) == [b"open"]
    id = store.enqueue()
    store.cancel(id)
    take_for_spans(store)
    take_for_spans(store)
    kept, entry = store.client.lrange(store.keys.uncounted(), 0, -1)
    assert (kept, entry.startswith(id.encode())) == (b"open", True)


def test_lists_of_an_idle_coordinator_are_renewed_after_half_of_their_time(store: Store) -> None:
    take(store)
    lists = [store.keys.unreported(), store.keys.uncounted(), store.keys.untraced()]
    for key in lists:
        store.client.pexpire(key, UNREPORTED_MS // 2 + 60_000)
    take(store)
    assert all(store.client.pttl(key) <= UNREPORTED_MS // 2 + 60_000 for key in lists)
    for key in lists:
        store.client.pexpire(key, UNREPORTED_MS // 2 - 1)
    take(store)
    assert all(store.client.pttl(key) > UNREPORTED_MS - 60_000 for key in lists)


def test_endings_behind_the_entry_that_keeps_a_list_are_taken_one_by_one(store: Store) -> None:
    take(store)
    ids = [store.enqueue() for _ in range(2)]
    for id in ids:
        store.cancel(id)
    assert [[ending.id for ending in take(store, most=1)] for _ in range(4)] == [[], [ids[0]], [ids[1]], []]
