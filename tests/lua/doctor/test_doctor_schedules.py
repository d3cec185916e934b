"""doctor: a schedule that no coordinator would ever plan is found and repaired, and fires; sound schedules are not touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.store.plans import schedules as schedule_plans
from tests.lua.doctor.test_doctor import examine_store, words
from tests.lua.schedule_calls import put
from tests.lua.store import Store

NEVER = 9007199254740991


def busy(store: Store) -> None:
    """Create a schedule in each state."""
    for name in ("active", "paused", "removed"):
        assert put(store, name) == "ok"
    store.do(schedule_plans.pause(store.keys, "paused", "g2", paused=True, now=store.at))
    store.do(schedule_plans.remove(store.keys, "removed", "g2", now=store.at))


def test_doctor_finds_nothing_in_sound_schedules(store: Store) -> None:
    busy(store)
    with store.unchanged():
        assert examine_store(store, repair=True).found == 0


DAMAGE: dict[str, tuple[Callable[[Store], Any], str, str]] = {
    "lost from the list": (
        lambda s: s.client.zrem(s.keys.schedules(), "active"), "key unwatched", "'active' is not in the list",
    ),
    "active and never looked at": (
        lambda s: s.client.zadd(s.keys.schedules(), {"active": NEVER}), "key unwatched", "it would never fire",
    ),
    "a paused one lost from the list": (
        lambda s: s.client.zrem(s.keys.schedules(), "paused"), "key unwatched", "'paused' is not in the list",
    ),
    "a removed one that would stay for ever": (
        lambda s: s.client.zrem(s.keys.schedules(), "removed"), "key unwatched", "'removed' is not in the list",
    ),
    "an entry without a schedule": (
        lambda s: s.client.zadd(s.keys.schedules(), {"ghost": NEVER}), "entry absent", "'ghost', but this schedule does not exist",
    ),
    "all of the list": (lambda s: s.client.delete(s.keys.schedules()), "key unwatched", "it would never fire"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_described_and_repaired(store: Store, name: str) -> None:
    plant, said, sentence = DAMAGE[name]
    busy(store)
    plant(store)
    with store.unchanged():
        report = examine_store(store)
    assert set(words(report)) == {said}
    assert any(sentence in finding.sentence for finding in report.findings), [f.sentence for f in report.findings]
    repaired = examine_store(store, repair=True)
    assert repaired.healthy
    assert all(finding.repaired for finding in repaired.findings)
    with store.unchanged():
        assert examine_store(store).found == 0
    upcoming = store.do(schedule_plans.upcoming(store.keys, batch=10, now=store.at))
    assert [entry.name for entry in upcoming.entries] == ["active"], "and a coordinator fires it"
    if name == "a removed one that would stay for ever":
        assert not store.client.exists(store.keys.schedule("removed"))


@pytest.mark.parametrize("what", ["list", "schedule"])
def test_schedule_of_another_type_is_set_aside(store: Store, what: str) -> None:
    busy(store)
    store.spoil(store.keys.schedules() if what == "list" else store.keys.schedule("active"))
    report = examine_store(store, repair=True)
    assert report.healthy, [(finding.sentence, finding.outcome) for finding in report.findings]
    if what == "list":
        upcoming = store.do(schedule_plans.upcoming(store.keys, batch=10, now=store.at))
        assert [entry.name for entry in upcoming.entries] == ["active"]
    else:
        assert store.score(store.keys.schedules(), "active") is None
