"""The scripts of sessions: each answer, a repetition, a late call, and what is forgotten when."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import limits
from coordinator.store.scripts import SESSION_ADD, SESSION_REMOVE
from tests.lua.store import Store


def add(store: Store, *items: bytes, operation: str, mode: str = "append", ttl: int = 0) -> Any:
    given = [(item,) for item in items]
    call = SESSION_ADD.call(store.keys.at, given, now=store.at, session="s", mode=mode, ttl=ttl, operation=operation)
    return store.wire.ask([call])[0]


def remove(store: Store, operation: str, mode: str = "last", ttl: int = 0) -> Any:
    call = SESSION_REMOVE.call(store.keys.at, now=store.at, session="s", mode=mode, ttl=ttl, operation=operation)
    return store.wire.ask([call])[0]


def content(store: Store) -> list[bytes]:
    return list(store.client.lrange(store.keys.session("s"), 0, -1))


def test_items_are_appended_in_order(store: Store) -> None:
    assert add(store, b"a", b"b", operation="1") == [b"ok"]
    assert add(store, b"c", operation="2") == [b"ok"]
    assert content(store) == [b"a", b"b", b"c"]
    assert store.client.ttl(store.keys.session("s")) == -1


def test_repeated_append_adds_nothing_even_if_others_have_changed_the_session(store: Store) -> None:
    add(store, b"a", operation="1")
    add(store, b"b", operation="2")
    assert add(store, b"a", operation="1") == [b"ok"]
    assert content(store) == [b"a", b"b"]
    remove(store, "3", "all")
    assert add(store, b"b", operation="2") == [b"ok"]
    assert content(store) == []


def test_replaced_items_are_gone(store: Store) -> None:
    add(store, b"a", b"b", operation="1")
    assert add(store, b"c", operation="2", mode="replace") == [b"ok"]
    assert content(store) == [b"c"]
    assert add(store, operation="3", mode="replace") == [b"ok"]
    assert content(store) == []


def test_repeated_removal_returns_the_item_of_the_first_call(store: Store) -> None:
    item = b"with \x00 and spaces"
    add(store, b"a", b"b", item, operation="1")
    assert remove(store, "2") == remove(store, "2") == [b"ok", item]
    assert content(store) == [b"a", b"b"]


def test_removal_from_an_empty_session_stays_empty_when_it_is_repeated(store: Store) -> None:
    assert remove(store, "1") == [b"empty"]
    add(store, b"a", operation="2")
    assert remove(store, "1") == [b"empty"]
    assert content(store) == [b"a"]


def test_cleared_session_keeps_no_content(store: Store) -> None:
    add(store, b"secret one", b"secret two", operation="1")
    remove(store, "2")
    assert remove(store, "3", "all") == [b"ok"]
    assert remove(store, "2") == [b"empty"]
    assert not any(b"secret" in value for value in store.client.hvals(store.keys.session_operations("s")))
    add(store, b"new", operation="4")
    assert remove(store, "3", "all") == [b"ok"]
    assert content(store) == [b"new"]


def test_session_with_a_ttl_expires_after_its_last_change(store: Store) -> None:
    add(store, b"a", b"b", operation="1", ttl=5_000)
    assert 0 < store.client.pttl(store.keys.session("s")) <= 5_000
    remove(store, "2", ttl=9_000)
    assert 5_000 < store.client.pttl(store.keys.session("s")) <= 9_000


def test_old_operations_are_forgotten(store: Store) -> None:
    add(store, b"a", operation="0")
    assert 0 < store.client.pttl(store.keys.session_operations("s")) <= limits.SESSION_OPERATIONS_MS
    for number in range(1, limits.SESSION_OPERATIONS_TRIM - 1):
        add(store, b"a", operation=str(number))
    store.later(limits.SESSION_OPERATIONS_MS + 1)
    add(store, b"a", operation="new")
    assert store.client.hkeys(store.keys.session_operations("s")) == [b"new"]


@pytest.mark.parametrize("key", ["session", "session_operations"])
def test_key_of_another_type_changes_nothing(store: Store, key: str) -> None:
    store.client.set(getattr(store.keys, key)("s"), "foreign")
    for answer in (add(store, b"a", operation="1"), remove(store, "2")):
        assert isinstance(answer, Exception)
        assert "WRONGTYPE" in str(answer)
    assert store.client.get(getattr(store.keys, key)("s")) == b"foreign"
    assert len(store.client.keys(f"{store.keys.at}:session*")) == 1
