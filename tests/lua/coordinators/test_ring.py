"""ring: a bell that was lost with the worker that took it delays a run by a second, but does not lose it."""

from __future__ import annotations

from coordinator.store.plans import coordinators as coordinator_plans
from tests.lua.attempts.test_claim import suspect
from tests.lua.store import ROUTES, Store


def test_ring_rings_bells_of_waiting_routes_and_forgets_empty_routes(store: Store) -> None:
    store.enqueue()
    suspect(store)
    store.client.sadd(store.keys.routes(), "default:gone@0")
    bells = [store.keys.bell(ROUTES[0]), store.keys.suspect_bell(ROUTES[0]), store.keys.bell("default:gone@0")]
    store.client.delete(*bells)
    assert store.do(coordinator_plans.ring(store.keys)) == 1
    assert [store.client.llen(bell) for bell in bells] == [1, 1, 0]
    assert store.members(store.keys.routes()) == {ROUTES[0]}
    with store.unchanged():
        assert store.do(coordinator_plans.ring(store.keys)) == 1, "a bell has one token"


def test_route_with_only_suspects_is_not_forgotten(store: Store) -> None:
    suspect(store)
    store.client.delete(store.keys.suspect_bell(ROUTES[0]))
    assert store.do(coordinator_plans.ring(store.keys)) == 1
    assert store.client.llen(store.keys.suspect_bell(ROUTES[0])) == 1
    assert store.members(store.keys.routes()) == {ROUTES[0]}
