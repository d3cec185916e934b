"""The doctor finds external calls that belong to workers that are gone, and repairs keys of another type."""

from __future__ import annotations

import pytest

from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import doctor as doctor_plans
from coordinator.store.plans import rates as rate_plans
from tests.lua.store import Store


@pytest.fixture
def busy(store: Store) -> Store:
    """A store in which worker w1 has a call under way and worker w2 waits for a place."""
    store.join("w1")
    store.join("w2")
    store.do(rate_plans.set_rate(store.keys, "api", "- - - 1", "o1", store.at))
    store.do(rate_plans.acquire(store.keys, "w1", "api", 1, 1, store.at))
    store.do(rate_plans.acquire(store.keys, "w2", "api", 1, 1, store.at))
    return store


def stray(store: Store, place: str, member: str) -> list[tuple[str, str]]:
    return store.do(doctor_plans.examine_entries(store.keys, place, "api", [member], now=store.at))[0]


def repair(store: Store, place: str, member: str, fault: str) -> str:
    return store.do(doctor_plans.repair_entries(store.keys, place, "api", [(member, fault)], now=store.at))[0]


PLACES = pytest.mark.parametrize(("place", "worker"), [("holders", "w1"), ("turns", "w2")])


@PLACES
def test_calls_of_live_workers_have_no_faults(busy: Store, place: str, worker: str) -> None:
    assert stray(busy, place, f"{worker}-1") == []


@PLACES
@pytest.mark.parametrize("how", ["left", "condemned"])
def test_worker_that_is_gone_leaves_no_calls(busy: Store, place: str, worker: str, how: str) -> None:
    if how == "left":
        busy.leave(worker)
    else:
        busy.do(coordinator_plans.abandon(busy.keys, worker, now=busy.at))
    assert stray(busy, place, f"{worker}-1") == []
    assert busy.client.zcard(getattr(busy.keys, place)("api")) == 0


@PLACES
def test_call_of_a_worker_that_is_gone_is_removed(busy: Store, place: str, worker: str) -> None:
    busy.client.zadd(getattr(busy.keys, place)("api"), {"w9-1": 1})
    assert stray(busy, place, "w9-1") == [("abandoned", "w9")]
    assert repair(busy, place, "w9-1", "abandoned") == "repaired"
    assert busy.client.zrange(getattr(busy.keys, place)("api"), 0, -1) == [f"{worker}-1".encode()]
    assert repair(busy, place, "w9-1", "abandoned") == "changed"


@PLACES
def test_entry_that_is_not_a_request_is_removed(busy: Store, place: str, worker: str) -> None:
    busy.client.zadd(getattr(busy.keys, place)("api"), {"garbage": 1})
    assert stray(busy, place, "garbage") == [("garbled", "")]
    assert repair(busy, place, "garbage", "garbled") == "repaired"


def test_call_of_a_worker_that_came_back_is_kept(busy: Store) -> None:
    assert repair(busy, "holders", "w1-1", "abandoned") == "changed"
