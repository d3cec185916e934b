"""The doctor proves that the places of groups equal the runs that are ready, suspect or running, and repairs them."""

from __future__ import annotations

import pytest

from coordinator.store.plans import doctor as doctor_plans
from tests.lua.groups import find_wrong_places
from tests.lua.store import ROUTES, Store

GROUP = "k:acme"


def faults(store: Store, id: str) -> list[tuple[str, str]]:
    return store.do(doctor_plans.examine(store.keys, [id]))[0]


def repair(store: Store, id: str) -> None:
    (first, _), *_ = faults(store, id)
    assert store.do(doctor_plans.repair_runs(store.keys, [(id, first)], now=store.at)) == ["repaired"]
    assert faults(store, id) == []


def stray(store: Store, place: str, member: str) -> list[tuple[str, str]]:
    return store.do(doctor_plans.examine_entries(store.keys, place, GROUP, [member], now=store.at))[0]


@pytest.fixture
def pair(store: Store) -> list[str]:
    """Two queued runs of a group with one place."""
    store.limit(1)
    return [store.enqueue(group="acme"), store.enqueue(group="acme")]


def test_sound_groups_have_no_faults(store: Store, pair: list[str]) -> None:
    assert [faults(store, id) for id in pair] == [[], []]
    assert stray(store, "admitted", pair[0]) == stray(store, "line", pair[1]) == []


def test_run_that_is_in_neither_line_nor_queue_is_put_into_the_line(store: Store, pair: list[str]) -> None:
    store.client.delete(store.keys.line(GROUP))
    assert faults(store, pair[1]) == [("lineless", "line")]
    repair(store, pair[1])
    assert store.line(store.keys.line(GROUP)) == [pair[1]]


def test_ready_run_without_a_place_goes_through_the_line(store: Store, pair: list[str]) -> None:
    store.client.zadd(store.keys.ready(ROUTES[0]), {pair[1]: 1})
    assert ("twice", "ready") in faults(store, pair[1])
    repair(store, pair[1])
    assert store.line(store.keys.ready(ROUTES[0])) == [pair[0]]


def test_lost_places_of_ready_and_running_runs_are_restored(store: Store) -> None:
    store.limit(2)
    run = store.running(group="acme")
    ready = store.enqueue(group="acme")
    store.client.delete(store.keys.admitted(GROUP))
    assert faults(store, run.id) == [("unadmitted", GROUP)]
    for id in (run.id, ready):
        repair(store, id)
    assert store.members(store.keys.admitted(GROUP)) == {run.id, ready}
    assert find_wrong_places(store) == []


@pytest.mark.parametrize("how", ["delayed", "waiting", "ended"])
def test_place_of_a_run_that_can_not_have_one_is_given_to_the_next(store: Store, how: str) -> None:
    store.limit(1)
    run = store.running(group="acme")
    if how == "delayed":
        store.retry(run)
    elif how == "waiting":
        store.suspend(run, t=0)
    else:
        store.complete(run)
    store.client.sadd(store.keys.admitted(GROUP), run.id)
    other = store.enqueue(group="acme")
    assert faults(store, run.id) == [("admitted", GROUP)]
    repair(store, run.id)
    assert store.members(store.keys.admitted(GROUP)) == {other}


def test_line_that_no_coordinator_sweeps_is_found(store: Store, pair: list[str]) -> None:
    store.client.delete(store.keys.groups())
    assert faults(store, pair[1]) == [("unswept", GROUP)]
    repair(store, pair[1])
    assert store.members(store.keys.groups()) == {GROUP}


@pytest.mark.parametrize("place", ["admitted", "line"])
def test_entry_without_a_run_is_removed(store: Store, place: str) -> None:
    gone = store.id()
    if place == "admitted":
        store.client.sadd(store.keys.admitted(GROUP), gone)
    else:
        store.client.zadd(store.keys.line(GROUP), {gone: 1})
    assert stray(store, place, gone) == [("runless", "")]
    plan = doctor_plans.repair_entries(store.keys, place, GROUP, [(gone, "runless")], now=store.at)
    assert store.do(plan) == ["repaired"]
    assert find_wrong_places(store) == []


def test_entry_of_a_run_of_another_group_is_removed(store: Store) -> None:
    store.limit(1)
    other = store.enqueue(group="other")
    store.client.sadd(store.keys.admitted(GROUP), other)
    assert stray(store, "admitted", other) == [("elsewhere", "k:other")]
    plan = doctor_plans.repair_entries(store.keys, "admitted", GROUP, [(other, "elsewhere")], now=store.at)
    assert store.do(plan) == ["repaired"]
    assert find_wrong_places(store) == []


def test_unreadable_run_gives_its_place_to_the_next(store: Store) -> None:
    store.limit(1)
    run = store.running(group="acme")
    other = store.enqueue(group="acme")
    store.client.hset(store.keys.run(run.id), "counters", "?")
    (fault, _), *_ = faults(store, run.id)
    store.do(doctor_plans.repair_runs(store.keys, [(run.id, fault)], now=store.at))
    assert store.members(store.keys.admitted(GROUP)) == {other}


def test_start_of_a_run_that_is_running_is_removed(store: Store) -> None:
    store.limit(5)
    run = store.running(group="acme")
    store.client.sadd(store.keys.starting(GROUP), run.id)
    assert stray(store, "starting", run.id) == [("elsewhere", "running")]
    store.do(doctor_plans.repair_entries(store.keys, "starting", GROUP, [(run.id, "elsewhere")], now=store.at))
    assert store.members(store.keys.starting(GROUP)) == set()
