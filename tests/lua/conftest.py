"""Fixtures: a namespace for each test on every kind of store, and every way in which a worker may not own a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.store.plans.workers import Claimed
from tests.lua.store import Store


@pytest.fixture
def store(store_url: str, namespace: str) -> Iterator[Store]:
    store = Store(store_url, namespace)
    yield store
    store.close()


@pytest.fixture(
    params=[
        "wrong token",
        "older token",
        "missing run",
        "wrong type",
        "ended by force",
        "recovered",
        "of the next owner",
        "another life",
    ]
)
def stranger(request: pytest.FixtureRequest, store: Store) -> Claimed:
    """A claimed run whose worker does not own it (any more)."""
    run = store.running()
    match request.param:
        case "wrong token":
            return run._replace(token=run.token.replace("-1-w1", "-2-w1"))
        case "older token":
            store.crash(run)
            again = store.take("w2")
            return again._replace(token=run.token)
        case "missing run":
            return run._replace(id=store.id())
        case "wrong type":
            store.spoil(store.keys.run(run.id))
        case "ended by force":
            force(store, run)
        case "recovered":
            store.crash(run)
        case "of the next owner":
            store.crash(run)
            store.take("w2")
        case _:
            force(store, run)
            store.revive(run.id)
            store.take("w2")
    return run


def force(store: Store, run: Claimed) -> None:
    """End a run by force, as if its handler had ignored a cancel."""
    store.cancel(run.id, grace=1)
    store.later(1000)
    assert store.due().passed == 1
