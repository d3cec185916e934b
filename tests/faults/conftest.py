"""A namespace for a test, on every store in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lua.store import Store


@pytest.fixture
def store(store_url: str, namespace: str) -> Iterator[Store]:
    store = Store(store_url, namespace)
    yield store
    store.close()
