"""One valid call of each script that changes a session of an agent, as in calls.py."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from coordinator.store.script import Call
from coordinator.store.scripts import SESSION_ADD, SESSION_REMOVE
from tests.lua.store import Store


def _one(call: Call) -> Generator[Any, Any, Any]:
    return (yield call)


def session_add(store: Store) -> Any:
    return _one(
        SESSION_ADD.call(store.keys.at, [(b"item",)], now=store.at, session="s", mode="append", ttl=0, operation="o")
    )


def session_remove(store: Store) -> Any:
    store.do(session_add(store))
    return _one(SESSION_REMOVE.call(store.keys.at, now=store.at, session="s", mode="last", ttl=0, operation="remove"))


PREPARE: dict[str, Callable[[Store], Any]] = {prepare.__name__: prepare for prepare in (session_add, session_remove)}
