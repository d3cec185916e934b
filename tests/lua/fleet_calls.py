"""One valid call of each script about fleets, with the data that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans.fleets import RollPart
from tests.lua.store import Store


def supervise(store: Store) -> Any:
    return fleet_plans.supervise(store.keys, "f", "s1", now=store.at)


def roll(store: Store) -> Any:
    store.do(supervise(store))
    return fleet_plans.request_roll(store.keys, "f", "r1", at_once=2, by="somebody", now=store.at)


def roll_part(store: Store) -> Any:
    store.do(roll(store))
    return fleet_plans.report_part(store.keys, "f", "r1", "s1", RollPart("going", 1, 4))


def unlock(store: Store) -> Any:
    store.lock("roll:f", "t1")
    return fleet_plans.unlock(store.keys, "roll:f", "t1")


def drain(store: Store) -> Any:
    store.join()
    return fleet_plans.drain(store.keys, "w1", now=store.at)


PREPARE: dict[str, Callable[[Store], Any]] = {
    prepare.__name__: prepare for prepare in (supervise, roll, roll_part, unlock, drain)
}
