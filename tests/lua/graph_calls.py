"""One valid call of each script of graphs, as in calls.py."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from coordinator.store.plans.attempts import netstrings
from coordinator.store.script import Call
from coordinator.store.scripts import GRAPH_COPY, GRAPH_DELETE, GRAPH_GET, GRAPH_HISTORY, GRAPH_SAVE
from tests.lua.store import Store

_SAVED = (b"", b"t", b"0", b"w", b"", b"1", b"", b"", b"p0body", netstrings([b"ch\0s1"]))


def _one(call: Call) -> Generator[Any, Any, Any]:
    return (yield call)


def graph_save(store: Store) -> Any:
    return _one(GRAPH_SAVE.call(store.keys.at, call=netstrings(_SAVED)))


def graph_copy(store: Store) -> Any:
    return _one(GRAPH_COPY.call(store.keys.at, [(b"f", b"v")], claim="", thread="t", ttl="0", copy="c"))


def graph_delete(store: Store) -> Any:
    store.do(graph_save(store))
    return _one(GRAPH_DELETE.call(store.keys.at, claim="", thread="t", mode="thread"))


def graph_get(store: Store) -> Any:
    store.do(graph_save(store))
    return _one(GRAPH_GET.call(store.keys.at, owner="", thread="t", ns="", id="", room=10_000))


def graph_history(store: Store) -> Any:
    store.do(graph_save(store))
    return _one(
        GRAPH_HISTORY.call(store.keys.at, [(b"ch",)], owner="", thread="t", ns="", id="1", most=10, room=10_000)
    )


PREPARE: dict[str, Callable[[Store], Any]] = {
    prepare.__name__: prepare for prepare in (graph_save, graph_copy, graph_delete, graph_get, graph_history)
}
