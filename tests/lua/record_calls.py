"""One valid call of each script of the checkpoint store (`workers.durable`), as in calls.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.lua.store import Store
from workers.durable.records import record_plans as plans
from workers.durable.records.record import Checkpoint, Meta, Phase
from workers.durable.records.record_delta import NOTHING
from workers.durable.records.record_format import pack

OWNER, OTHER = "a-30000", "b-30000"
PACKED = pack(Checkpoint(Meta("r1"), ["a", "b"], phases=(Phase("p", 1),), state={"n": 1}))


def record_save(store: Store, owner: str = OWNER) -> Any:
    return plans.save(store.keys, owner, PACKED, NOTHING, seq=1, ttl=60, now=store.at)


def record_load(store: Store) -> Any:
    store.do(record_save(store))
    return plans.load(store.keys, "r1")


def record_delete(store: Store) -> Any:
    store.do(record_save(store))
    return plans.delete(store.keys, OWNER, "r1", seq=2, now=store.at)


def record_list(store: Store) -> Any:
    store.do(record_save(store))
    store.later(30_000)
    return plans.list_interrupted(store.keys, OTHER, now=store.at)


def record_claim(store: Store) -> Any:
    store.do(record_save(store))
    store.later(30_000)
    return plans.claim(store.keys, OTHER, "r1", seen=OWNER, nonce="n", now=store.at)


def record_keep(store: Store) -> Any:
    return plans.renew_lease(store.keys, OWNER, now=store.at)


PREPARE: dict[str, Callable[[Store], Any]] = {
    prepare.__name__: prepare
    for prepare in (record_save, record_load, record_delete, record_list, record_claim, record_keep)
}
