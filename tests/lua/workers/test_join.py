"""join: only join creates an entry, and never for a worker that was removed."""

from __future__ import annotations

import pytest

from coordinator.store.plans import coordinators as coordinator_plans
from tests.lua.store import LEASE, NOW, ROUTES, Store


def test_joining_worker_is_registered(store: Store) -> None:
    assert store.join() == "ok"
    assert store.score(store.keys.workers(), "w1") == NOW + LEASE
    entry = {field.decode(): value.decode() for field, value in store.client.hgetall(store.keys.worker("w1")).items()}
    assert entry == {
        "lease": str(LEASE), "host": "host", "pid": "1", "started": "s", "fleet": "fleet", "code": "c1", "slots": "10",
        "routes": " ".join(ROUTES), "joined": str(NOW), "claim": "0", "floor": "0", "mark": "",
        "knows": "waits output groups starts",
        "limits": "",
    }  # fmt: skip
    assert store.client.pttl(store.keys.worker("w1")) == -1


def test_repeated_join_makes_one_entry_and_keeps_its_fields(store: Store) -> None:
    store.join()
    with store.unchanged():
        assert store.join() == "ok"
    store.running()
    before = store.client.hgetall(store.keys.worker("w1"))
    store.later(10)
    assert store.join() == "ok"
    assert store.client.hgetall(store.keys.worker("w1")) == before


@pytest.mark.parametrize(
    "how", ["left", "abandoned", "abandoned before it joined", "condemned", "left before it joined"]
)
def test_join_of_a_removed_worker_is_refused(store: Store, how: str) -> None:
    match how:
        case "left":
            store.join()
            store.leave()
        case "abandoned":
            store.join()
            store.abandon()
        case "abandoned before it joined":
            store.abandon()
        case "condemned":
            store.running()
            store.running()
            store.do_abandon_batch(1)
        case _:
            store.leave()
    with store.unchanged():
        assert store.join() == "gone"
        assert store.beat() is None
        assert store.claim() == ("gone", [])


def test_call_with_another_birth_is_refused_as_a_stranger(store: Store) -> None:
    with store.unchanged():
        assert store.join(birth="b2") == "mismatch"


def test_tombstone_of_a_worker_expires_after_a_minute(store: Store) -> None:
    store.do(coordinator_plans.abandon(store.keys, "w9", now=store.at))
    assert 50_000 < store.client.pttl(store.keys.worker("w9")) <= 60_000


def budgets(store: Store) -> dict[bytes, bytes]:
    return {field: value for field, value in store.client.hgetall(store.keys.limits()).items() if b"budget" in field}


def test_budgets_of_handlers_are_those_of_the_worker_that_joined_last(store: Store) -> None:
    store.join(budgets="k=5000000,-,200,wait other=-,9,-,fail")
    assert budgets(store) == {b"budget:k": b"5000000,-,200,wait", b"budget:other": b"-,9,-,fail"}
    store.join("w2", budgets="k=-")
    assert budgets(store) == {b"budget:other": b"-,9,-,fail"}


def test_worker_that_may_not_join_publishes_no_budget(store: Store) -> None:
    store.abandon()
    with store.unchanged():
        assert store.join(budgets="k=5000000,-,200,wait") == "gone"


def test_damaged_limits_do_not_stop_a_join_with_budgets(store: Store) -> None:
    store.spoil(store.keys.limits())
    assert store.join(budgets="k=5000000,-,200,wait other=-") == "ok"
