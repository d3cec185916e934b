"""lock: one holder at a time, told apart by its token."""

from __future__ import annotations

from tests.lua.store import Store


def test_one_holder_at_a_time(store: Store) -> None:
    assert store.lock("recovery", "a", ttl=60)
    with store.unchanged():
        assert not store.lock("recovery", "b")
    assert store.lock("other", "b")


def test_its_holder_keeps_it_longer(store: Store) -> None:
    assert store.lock("recovery", "a", ttl=1)
    assert store.lock("recovery", "a", ttl=60)
    assert 50_000 < store.client.pttl(store.keys.lock("recovery")) <= 60_000


def test_when_its_time_is_over_it_is_free(store: Store) -> None:
    store.lock("recovery", "a")
    store.client.delete(store.keys.lock("recovery"))
    assert store.lock("recovery", "b")
