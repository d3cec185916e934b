"""The limits that workers publish for their handlers, while several versions of the code are alive."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from coordinator.model.policies.groups import GroupLimit
from coordinator.store.plans import groups as group_plans
from coordinator.store.plans import workers as worker_plans
from tests.lua.store import Store

Depart = Callable[[Store, str], object]


def published(store: Store) -> int | None:
    """Return the limit of kind `k`; None for no limit."""
    limits = store.do(group_plans.read_limits(store.keys))
    return next((limit.at_once for limit in limits if limit.kind == "k"), None)


def leave(store: Store, worker: str) -> None:
    assert store.do(worker_plans.leave(store.keys, worker)) == []


def abandon(store: Store, worker: str) -> None:
    store.abandon(worker)


def join(store: Store, worker: str, version: str) -> None:
    store.later(10)
    limit = {"v1": "2", "v2": "5", "free": "-"}[version]
    assert store.join(worker, limits=f"k={limit}", code=version) == "ok"


def test_newer_version_decides_while_two_versions_are_alive(store: Store) -> None:
    join(store, "old", "v1")
    join(store, "new", "v2")
    assert published(store) == 5


def test_old_worker_that_is_restarted_does_not_bring_back_its_limit(store: Store) -> None:
    join(store, "old 1", "v1")
    join(store, "old 2", "v1")
    join(store, "new", "v2")
    leave(store, "old 2")
    join(store, "old 3", "v1")
    assert published(store) == 5


@pytest.mark.parametrize("depart", [leave, abandon])
@pytest.mark.parametrize(("first", "second"), [("v1", "v2"), ("v2", "v1"), ("v1", "free"), ("free", "v1")])
def test_limit_of_the_version_that_is_left_counts(store: Store, first: str, second: str, depart: Depart) -> None:
    """The older version is left after an undone deploy, the newer one after a deploy."""
    right = {"v1": 2, "v2": 5, "free": None}
    join(store, "a", first)
    join(store, "b", second)
    assert published(store) == right[second]
    depart(store, "b")
    assert published(store) == right[first]
    join(store, "c", second)
    depart(store, "a")
    assert published(store) == right[second]
    assert not store.client.hexists(store.keys.limits(), "mixed")


@pytest.mark.parametrize("seed", range(10))
def test_rolling_deploy_ends_with_the_new_limit_in_any_order(store: Store, seed: int) -> None:
    chance, number = random.Random(seed), 0
    alive: dict[str, list[str]] = {"v1": [], "v2": []}

    def start(version: str) -> None:
        nonlocal number
        number += 1
        join(store, f"w{number}", version)
        alive[version].append(f"w{number}")

    def stop(version: str) -> None:
        worker = alive[version].pop(chance.randrange(len(alive[version])))
        chance.choice([leave, abandon])(store, worker)

    for _ in range(3):
        start("v1")
    for _ in range(20):  # Workers of both versions start, stop and crash.
        version = chance.choice(["v1", "v2"])
        if alive[version] and chance.random() < 0.5:
            stop(version)
        else:
            start(version)
    start("v2")
    while alive["v1"]:
        stop("v1")
    assert published(store) == 5


def test_limit_stays_after_the_last_worker_has_left(store: Store) -> None:
    join(store, "a", "v1")
    leave(store, "a")
    assert published(store) == 2


def test_repeated_join_of_a_worker_changes_no_limit(store: Store) -> None:
    join(store, "old", "v1")
    join(store, "new", "v2")
    join(store, "old", "v1")
    assert published(store) == 5


def test_version_that_lifts_the_limit_allows_runs_without_a_group(store: Store) -> None:
    join(store, "old", "v1")
    join(store, "new", "free")
    leave(store, "old")
    store.enqueue()


def test_workers_of_other_kinds_do_not_change_a_limit(store: Store) -> None:
    join(store, "a", "v1")
    store.later(10)
    store.join("b", limits="other=7", code="v9")
    leave(store, "b")
    limits = store.do(group_plans.read_limits(store.keys))
    assert set(limits) == {GroupLimit("k", None, 2, "handler"), GroupLimit("other", None, 7, "handler")}


def test_limits_with_a_wrong_type_do_not_stop_a_join(store: Store) -> None:
    store.spoil(store.keys.limits())
    assert store.join(limits="k=1") == "ok"
    leave(store, "w1")
