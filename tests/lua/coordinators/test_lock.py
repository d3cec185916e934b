"""lock: one holder at a time, identified by its token."""

from __future__ import annotations

from tests.lua.store import Store


def test_lock_has_one_holder_at_a_time(store: Store) -> None:
    assert store.lock("recovery", "a", ttl=60)
    with store.unchanged():
        assert not store.lock("recovery", "b")
    assert store.lock("other", "b")


def test_holder_extends_its_lock(store: Store) -> None:
    assert store.lock("recovery", "a", ttl=1)
    assert store.lock("recovery", "a", ttl=60)
    assert 50_000 < store.client.pttl(store.keys.lock("recovery")) <= 60_000


def test_lock_is_free_after_its_ttl(store: Store) -> None:
    store.lock("recovery", "a")
    store.client.delete(store.keys.lock("recovery"))
    assert store.lock("recovery", "b")
