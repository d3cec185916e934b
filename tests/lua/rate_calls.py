"""One valid call of each script of rates, with the data that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.store.plans import rates as rate_plans
from tests.lua.store import Store


def rate(store: Store) -> Any:
    return rate_plans.set_rate(store.keys, "api", "10 1000 10 2", "o1", now=store.at)


def acquire(store: Store) -> Any:
    store.join()
    store.do(rate(store))
    return rate_plans.acquire(store.keys, "w1", "api", 1, 5, now=store.at)


def finish(store: Store) -> Any:
    store.do(acquire(store))
    return rate_plans.finish(store.keys, "w1", "api", 1, 2, now=store.at)


def back_off(store: Store) -> Any:
    store.do(acquire(store))
    return rate_plans.back_off(store.keys, "w1", "api", 1, 1000, now=store.at)


PREPARE: dict[str, Callable[[Store], Any]] = {"rate": rate, "acquire": acquire, "finish": finish, "back_off": back_off}
