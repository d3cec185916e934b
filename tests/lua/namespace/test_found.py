"""create_namespace: the settings of a namespace never change while it is used."""

from __future__ import annotations

import time

import pytest

from coordinator.errors import NotConfigured
from coordinator.model.run_id import RunIds
from coordinator.store.plans import namespace as namespace_plans
from tests.lua.store import NOW, Store


def test_first_call_fixes_the_settings_of_the_namespace(store: Store) -> None:
    with store.unchanged():
        again = store.do(namespace_plans.create(store.ns.name, birth="b2", clock="server"))
    assert (again.birth, again.partitions, again.durability) == ("b1", 1, "local")


def test_different_settings_are_refused(store: Store) -> None:
    with pytest.raises(NotConfigured, match="1 partitions, not 4"):
        store.do(namespace_plans.create(store.ns.name, birth="b1", partitions=4))
    with pytest.raises(NotConfigured, match="durability 'local', not 'synced'"):
        store.do(namespace_plans.create(store.ns.name, birth="b1", durability="synced"))


def test_different_format_is_refused(store: Store) -> None:
    store.client.hset(store.keys.namespace(), "format", "2")
    with pytest.raises(NotConfigured, match="has format 2"):
        store.do(namespace_plans.create(store.ns.name, birth="b1"))


def test_every_partition_stores_the_settings(store_url: str, namespace: str) -> None:
    store = Store(store_url, namespace, partitions=3)
    facts = [store.client.hgetall(keys.namespace()) for keys in store.ns.everywhere()]
    assert facts[0] == facts[1] == facts[2]
    store.close()


def test_given_time_counts_only_with_the_test_clock(store_url: str, namespace: str) -> None:
    store = Store(store_url, namespace, clock="server")
    created = store.counters(store.enqueue(RunIds().make(time.time(), 0))).created
    assert created != NOW
    assert abs(created - int(store.client.time()[0]) * 1000) < 60_000
    store.close()
