"""One valid call of each script that changes a graph, as in calls.py."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from coordinator.store.plans.attempts import netstrings
from coordinator.store.scripts import GRAPH_COPY, GRAPH_DELETE, GRAPH_SAVE
from tests.lua.store import Store

_SAVED = (b"", b"t", b"0", b"w", b"", b"1", b"", b"", b"p0body", netstrings([b"ch\0s1"]))


def graph_save(store: Store) -> Generator[Any, Any, Any]:
    return (yield GRAPH_SAVE.call(store.keys.at, call=netstrings(_SAVED)))


def graph_copy(store: Store) -> Generator[Any, Any, Any]:
    return (yield GRAPH_COPY.call(store.keys.at, [(b"f", b"v")], claim="", thread="t", ttl="0", copy="c"))


def graph_delete(store: Store) -> Generator[Any, Any, Any]:
    store.do(graph_save(store))
    return (yield GRAPH_DELETE.call(store.keys.at, claim="", thread="t", mode="thread"))


PREPARE: dict[str, Callable[[Store], Any]] = {
    prepare.__name__: prepare for prepare in (graph_save, graph_copy, graph_delete)
}
