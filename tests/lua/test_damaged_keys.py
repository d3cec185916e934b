"""A shared key of a wrong type harms only the runs that need it: the other runs of the same call, and later calls, go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.model.run_id import RunIds
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.coordinators import DueResult
from tests.lua.store import LEASE, NOW, ROUTES, Store

OTHER = "default:other@0"

SHARED: dict[str, Callable[[Store], str]] = {
    "delayed": lambda store: store.keys.delayed(),
    "deadlines": lambda store: store.keys.deadlines(),
    "routes": lambda store: store.keys.routes(),
    "bell": lambda store: store.keys.bell(ROUTES[0]),
    "coordinator bell": lambda store: store.keys.coordinator_bell(),
    "live": lambda store: store.keys.live(),
    "ended": lambda store: store.keys.ended("cancelled"),
    "aside": lambda store: store.keys.aside(),
}


@pytest.mark.parametrize("what", SHARED)
def test_plain_run_is_enqueued_beside_one_that_needs_a_damaged_key(store: Store, what: str) -> None:
    store.spoil(SHARED[what](store))
    plain, other = NewRun(store.id(), ROUTES[0], b"s"), NewRun(store.id(), ROUTES[0], b"s", due="+1000", expires="5000")
    first, second = store.do(client_plans.enqueue(store.ns, [plain, other], now=store.at))
    assert first == ("created", plain.id)
    assert store.places(plain.id) == [f"ready:{ROUTES[0]}"]
    refused = what in ("delayed", "deadlines")
    assert second[0] == ("unreadable" if refused else "created")
    assert store.status(other.id) == ("missing" if refused else "delayed")


@pytest.mark.parametrize("what", [*SHARED, "ready"])
def test_due_runs_are_queued_although_another_key_is_damaged(store: Store, what: str) -> None:
    bad, good = store.enqueue(due="+1"), store.enqueue(due="+1", route=OTHER)
    expired = store.enqueue(expires="1")
    if what == "delayed":
        store.client.zrem(store.keys.delayed(), bad, good)
    store.spoil(store.keys.ready(ROUTES[0]) if what == "ready" else SHARED[what](store))
    store.later(1)
    if what in ("delayed", "deadlines"):
        with pytest.raises(Exception, match="WRONGTYPE"):
            store.due()
    else:
        store.due()
    assert store.status(good) == ("delayed" if what == "delayed" else "queued")
    assert store.status(expired) == ("queued" if what == "deadlines" else "cancelled")


def test_due_run_of_a_damaged_queue_waits_until_the_queue_is_repaired(store: Store) -> None:
    bad, good = store.enqueue(due="+1"), store.enqueue(due="+1", route=OTHER)
    store.spoil(store.keys.ready(ROUTES[0]))
    store.later(1)
    assert store.due() == DueResult(2, 0, 60_000)
    assert (store.status(bad), store.status(good)) == ("delayed", "queued")
    store.client.delete(store.keys.ready(ROUTES[0]))
    store.later(60_000)
    store.due()
    assert store.places(bad) == [f"ready:{ROUTES[0]}"]


@pytest.mark.parametrize("what", [*SHARED, "ready"])
@pytest.mark.parametrize("how", ["recover", "abandon"])
def test_runs_of_a_lost_worker_are_requeued_although_a_key_is_damaged(store: Store, how: str, what: str) -> None:
    ids = [store.enqueue(route=route) for route in (ROUTES[0], OTHER, ROUTES[0], OTHER)]
    store.join(routes=(*ROUTES, OTHER))
    assert len(store.claim(routes=(*ROUTES, OTHER))[1]) == 4
    store.spoil(store.keys.ready(ROUTES[0]) if what == "ready" else SHARED[what](store))
    if how == "abandon":
        done = store.abandon()
    else:
        store.tick_for(3 * LEASE)
        done = store.recover()
    lost = 2 if what == "ready" else 0
    assert (done.word, done.queued, done.aside, done.left) == ("ok", 4 - lost, lost, 0)
    assert [store.status(id) for id in ids] == ["queued"] * 4
    assert store.line(store.keys.ready(OTHER)) == sorted([ids[1], ids[3]])
    assert store.line(store.keys.workers()) == []


@pytest.mark.parametrize("what", ["live", "ended", "deadlines", "delayed"])
def test_cancelled_run_ends_completely_although_a_key_is_damaged(store: Store, what: str) -> None:
    id = store.enqueue(once="key", digest="d")
    store.spoil(SHARED[what](store))
    assert store.cancel(id) == ["cancelled"]
    assert store.client.pttl(store.keys.run(id)) > 0
    assert store.client.pttl(store.keys.once("k", "key")) > 0


def test_ended_runs_are_trimmed_although_the_list_of_another_status_is_damaged(store: Store) -> None:
    store.complete(store.running(retention="100000"))
    store.spoil(store.keys.ended("cancelled"))
    store.spoil(store.keys.ended("failed"))
    store.later(100_000)
    assert store.trim() == 1


def test_claim_succeeds_although_the_set_of_started_runs_is_damaged(store: Store) -> None:
    id = RunIds().make(NOW / 1000, 0)
    store.enqueue(id)
    store.spoil(store.keys.live())
    assert store.take().id == id
