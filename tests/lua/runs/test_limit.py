"""limit: set and remove the limits of kinds and groups."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from coordinator.errors import BadCall, Unreadable
from coordinator.model.policies.groups import KEEP, GroupLimit
from coordinator.store.plans import groups as group_plans
from coordinator.store.replies import word
from coordinator.store.script import Call
from coordinator.store.scripts import LIMIT
from tests.lua.store import Store


def limits(store: Store) -> list[GroupLimit]:
    return store.do(group_plans.read_limits(store.keys))


def limited(store: Store) -> list[str]:
    found = store.client.hget(store.keys.namespace(), "limited")
    return [] if found is None else found.decode().split()


def test_limits_of_handlers_kinds_and_groups_are_listed_with_their_source(store: Store) -> None:
    store.join(limits="a=3 b=- k=7")
    store.limit(2)
    store.limit(5, group="acme")
    store.limit("-", group="free")
    assert set(limits(store)) == {
        GroupLimit("a", None, 3, "handler"),
        GroupLimit("k", None, 2, "operator"),
        GroupLimit("k", "acme", 5, "operator"),
        GroupLimit("k", "free", None, "operator"),
    }
    assert sorted(limited(store)) == ["a", "k"]


def test_removing_the_limit_of_an_operator_brings_back_the_limit_of_the_handler(store: Store) -> None:
    store.join(limits="k=7")
    store.limit(2)
    assert store.limit("")
    assert limits(store) == [GroupLimit("k", None, 7, "handler")]
    assert limited(store) == ["k"]
    assert not store.limit("")


def test_kind_whose_limit_is_removed_accepts_runs_without_a_group_again(store: Store) -> None:
    store.limit(2)
    store.limit("")
    assert (limits(store), limited(store)) == ([], [])


def test_operator_may_lift_the_limit_of_a_handler(store: Store) -> None:
    store.join(limits="k=7")
    store.limit("-")
    assert limits(store) == [GroupLimit("k", None, None, "operator")]
    assert limited(store) == []


def test_rate_without_a_known_limit_of_places_says_that_no_run_starts(store: Store) -> None:
    set_rate(store, "10 60000 1")
    (limit,) = limits(store)
    assert (limit.at_once, limit.known, limit.rate) == (None, False, "10/min")
    store.join(limits="k=-")
    assert [(limit.at_once, limit.known) for limit in limits(store)] == [(None, True)]


def test_setting_the_same_limit_again_changes_nothing(store: Store) -> None:
    assert store.limit(2)
    assert not store.limit(2)


def test_late_repetition_of_a_change_does_not_undo_a_later_one(store: Store) -> None:
    assert store.limit(2, operation="first")
    assert store.limit(5, operation="second")
    call = LIMIT.call(store.keys.at, kind="k", group="", at_once="2", rate="=", seen="", operation="first")
    assert word(store.do(iter_one(call))) == "ok"
    assert limits(store) == [GroupLimit("k", None, 5, "operator")]


def test_change_by_a_caller_with_old_knowledge_is_answered_changed(store: Store) -> None:
    store.limit(2, operation="first")
    call = LIMIT.call(store.keys.at, kind="k", group="", at_once="3", rate="=", seen="", operation="other")
    answer, seen = store.do(iter_one(call))
    assert (answer, seen.partition(b"@")[0]) == (b"changed", b"first")


@pytest.mark.parametrize("at_once", ["x", "-1", "1e3", "1234567890"])
def test_limit_that_is_not_a_number_is_refused(store: Store, at_once: str) -> None:
    with store.unchanged(), pytest.raises(BadCall):
        store.limit(at_once)


def test_limits_with_a_wrong_type_are_refused(store: Store) -> None:
    store.spoil(store.keys.limits())
    with pytest.raises(Unreadable, match="doctor"):
        store.limit(1)


def iter_one(call: Call) -> Generator[Call, Any, Any]:
    return (yield call)


def set_rate(store: Store, rate: str) -> None:
    store.do(group_plans.set_limit(store.keys, "k", "", KEEP, "rate", rate))
