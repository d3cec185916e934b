"""trim_children: runs that are gone leave the sets of their parents' children; runs with children of their own stay there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.model.limits import CHILDREN_LOOK_MS, CHILDREN_MS
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.scripts import TRIM_CHILDREN
from tests.lua.store import Store


def trim(store: Store, partition: int = 0, most: int = 500) -> int:
    keys = store.ns.keys(partition)
    return store.do(coordinator_plans.trim_children(store.ns, keys, most=most, now=store.at))


def forget(store: Store, *ids: str) -> None:
    """Let runs be gone, as when their retention is over."""
    store.client.delete(*(store.ns.keys_of(id).run(id) for id in ids))


def add_children(store: Store, parent: str, count: int = 1, partition: int = 0) -> list[str]:
    return [store.enqueue(store.id(partition), parent=parent) for _ in range(count)]


def test_children_that_are_gone_leave_the_set_of_their_parent(store: Store) -> None:
    gone, there = add_children(store, "parent", 2)
    forget(store, gone)
    with store.unchanged():
        assert trim(store) == 0  # It is too early to look.
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 1
    assert store.members(store.keys.children("parent")) == {there}


def test_parent_is_forgotten_with_its_last_child(store: Store) -> None:
    forget(store, *add_children(store, "parent", 3))
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 3
    assert not store.client.exists(store.keys.children("parent"), store.keys.parents())


def test_parent_whose_set_has_expired_is_forgotten(store: Store) -> None:
    add_children(store, "parent")
    store.client.delete(store.keys.children("parent"))
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 0
    assert not store.client.exists(store.keys.parents())


def test_child_that_is_gone_stays_while_it_has_children(store: Store) -> None:
    (child,) = add_children(store, "parent")
    (grandchild,) = add_children(store, child)
    forget(store, child)
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 0
    assert store.members(store.keys.children("parent")) == {child}
    forget(store, grandchild)
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 1
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 1
    assert not store.client.exists(store.keys.parents())


def test_set_of_children_is_kept_while_a_child_exists(store: Store) -> None:
    add_children(store, "parent")
    store.client.pexpire(store.keys.children("parent"), 1000)
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 0
    assert store.client.pttl(store.keys.children("parent")) > CHILDREN_MS - 60_000


def test_ended_children_are_looked_at_again_when_their_retention_is_over(store: Store) -> None:
    run = store.running(parent="parent", retention="400000")
    store.complete(run)
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 0
    again = store.score(store.keys.parents(), "parent")
    assert again is not None
    assert 390_000 < again - store.now <= 401_000


def test_large_set_shrinks_to_the_children_that_exist(store: Store) -> None:
    children = add_children(store, "parent", 300)
    forget(store, *children[:290])
    store.later(CHILDREN_LOOK_MS)
    for _ in range(10):
        trim(store, most=50)
        store.later(CHILDREN_LOOK_MS)
    assert store.client.scard(store.keys.children("parent")) < 100


@pytest.fixture
def wide_store(store_url: str, namespace: str) -> Iterator[Store]:
    store = Store(store_url, namespace, partitions=3)
    yield store
    store.close()


def test_child_that_is_gone_stays_while_it_has_children_in_another_partition(wide_store: Store) -> None:
    store = wide_store
    (child,) = add_children(store, "parent")
    (grandchild,) = add_children(store, child, partition=2)
    forget(store, child)
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 0
    assert store.members(store.keys.children("parent")) == {child}
    forget(store, grandchild)
    assert trim(store, partition=2) == 1
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 1


def test_late_call_removes_no_child_that_exists(store: Store) -> None:
    (child,) = add_children(store, "parent")
    call = TRIM_CHILDREN.call(store.keys.at, [("parent", child)], now=store.at, most=10)
    with store.unchanged():
        assert store.wire.ask([call])[0][1] == 0


@pytest.mark.parametrize("what", ["children", "parents"])
def test_key_of_another_type_stops_nothing(store: Store, what: str) -> None:
    add_children(store, "parent")
    store.spoil(store.keys.children("parent") if what == "children" else store.keys.parents())
    store.later(CHILDREN_LOOK_MS)
    assert trim(store) == 0
    add_children(store, "parent")
