"""pause and unpause: paused runs are not claimed, and unpausing wakes the waiting workers."""

from __future__ import annotations

import pytest

from coordinator.store.plans import clients as client_plans
from tests.lua.store import ROUTES, Store

OTHER = "other:k@0"


@pytest.mark.parametrize("name", ["queue:default", "kind:k"])
def test_paused_run_is_not_claimed_until_it_is_unpaused(store: Store, name: str) -> None:
    id = store.enqueue()
    store.join()
    assert store.do(client_plans.pause(store.keys, name)) is True
    assert store.claim() == ("ok", [])
    assert store.do(client_plans.unpause(store.keys, name)) is True
    assert [run.id for run in store.claim()[1]] == [id]


def test_other_queues_and_kinds_are_still_claimed(store: Store) -> None:
    store.enqueue()
    other = store.enqueue(route=OTHER)
    store.join()
    store.do(client_plans.pause(store.keys, "queue:default"))
    store.do(client_plans.pause(store.keys, "kind:default"))
    store.do(client_plans.pause(store.keys, "queue:k"))
    assert [run.id for run in store.claim(routes=(*ROUTES, OTHER))[1]] == [other]


def test_running_run_continues(store: Store) -> None:
    run = store.running()
    store.do(client_plans.pause(store.keys, "kind:k"))
    assert store.complete(run) == "ok"


def test_suspects_are_paused_too(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "counters", "1 1 1 0 0 2 0 0 9 0 1 1")
    store.release(run)
    store.do(client_plans.pause(store.keys, "kind:k"))
    assert store.claim("w1", alone=True) == ("ok", [])
    store.client.delete(store.keys.suspect_bell(ROUTES[0]))
    store.do(client_plans.unpause(store.keys, "kind:k"))
    assert store.client.llen(store.keys.suspect_bell(ROUTES[0])) == 1
    assert store.claim("w1", alone=True)[0] == "suspect"


@pytest.mark.parametrize("name", ["queue:default", "kind:k"])
def test_unpausing_rings_only_the_bells_of_matching_routes(store: Store, name: str) -> None:
    store.enqueue()
    store.enqueue(route="other:j@0")
    store.do(client_plans.pause(store.keys, name))
    store.client.delete(store.keys.bell(ROUTES[0]), store.keys.bell("other:j@0"))
    store.do(client_plans.unpause(store.keys, name))
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 1
    assert store.client.llen(store.keys.bell("other:j@0")) == 0


def test_bell_of_an_empty_route_is_not_rung(store: Store) -> None:
    store.complete(store.running())
    store.client.delete(store.keys.bell(ROUTES[0]))
    store.do(client_plans.unpause(store.keys, "kind:k"))
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 0


def test_repeated_pause_is_reported_and_changes_nothing(store: Store) -> None:
    store.do(client_plans.pause(store.keys, "kind:k"))
    with store.unchanged():
        assert store.do(client_plans.pause(store.keys, "kind:k")) is False
    store.do(client_plans.unpause(store.keys, "kind:k"))
    with store.unchanged():
        assert store.do(client_plans.unpause(store.keys, "kind:k")) is False
