"""roll, roll_part, supervise: one roll of a fleet at a time; a finished roll stays finished; missing supervisors are ignored."""

from __future__ import annotations

import pytest

from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans.fleets import RollAnswer, RollOrder, RollPart, RollView
from tests.lua.store import NOW, Store

SILENCE = round(fleet_plans.SILENCE * 1000)


def supervise(store: Store, *supervisors: str, leaves: bool = False) -> RollOrder | None:
    order = None
    for supervisor in supervisors or ("s1",):
        order = store.do(fleet_plans.supervise(store.keys, "f", supervisor, leaves=leaves, now=store.at))
    return order


def ask(store: Store, roll: str = "r1", at_once: int = 1) -> RollAnswer:
    return store.do(fleet_plans.request_roll(store.keys, "f", roll, at_once=at_once, by=f"by {roll}", now=store.at))


def tell(store: Store, supervisor: str, part: RollPart, roll: str = "r1") -> bool:
    return store.do(fleet_plans.report_part(store.keys, "f", roll, supervisor, part))


def parts(store: Store) -> dict[str, str]:
    found: RollView = store.do(fleet_plans.read_roll(store.keys, "f"))
    return {name: str(part) for name, part in found.parts.items()}


def hints(store: Store, supervisor: str) -> int:
    return int(store.client.llen(store.keys.inbox(supervisor)))


def test_part_of_a_roll_round_trips() -> None:
    for part in (
        RollPart("waiting"),
        RollPart("going", 1, 4),
        RollPart("failed", 2, 4, "it can't begin: no module 'x'"),
    ):
        assert RollPart.read(str(part)) == part


def test_every_supervisor_of_the_fleet_gets_a_part_and_is_notified(store: Store) -> None:
    assert supervise(store, "s1", "s2") is None
    store.do(fleet_plans.supervise(store.keys, "another", "s3", now=store.at))
    assert ask(store, at_once=3) == RollAnswer("ok")
    assert parts(store) == {"s1": "waiting 0 0", "s2": "waiting 0 0"}
    assert [hints(store, name) for name in ("s1", "s2", "s3")] == [1, 1, 0]
    assert supervise(store, "s2") == RollOrder("r1", 3, RollPart("waiting"))


def test_repeated_request_starts_one_roll(store: Store) -> None:
    supervise(store)
    ask(store)
    tell(store, "s1", RollPart("going", 1, 4))
    with store.unchanged():
        assert ask(store) == RollAnswer("ok")


def test_second_roll_is_refused_while_one_is_in_progress(store: Store) -> None:
    supervise(store, "s1", "s2")
    ask(store)
    tell(store, "s1", RollPart("done", 4, 4))
    store.later(3000)
    with store.unchanged():
        assert ask(store, "r2") == RollAnswer("busy", "by r1", 3.0)
    tell(store, "s2", RollPart("done", 4, 4))
    assert ask(store, "r2") == RollAnswer("ok")
    assert parts(store) == {"s1": "waiting 0 0", "s2": "waiting 0 0"}


def test_roll_does_not_wait_for_a_supervisor_that_was_not_seen_for_a_while(store: Store) -> None:
    supervise(store, "s1", "s2")
    ask(store)
    tell(store, "s2", RollPart("done", 4, 4))
    store.later(SILENCE + 1)
    assert ask(store, "r2") == RollAnswer("nobody")
    supervise(store, "s2")
    assert ask(store, "r2") == RollAnswer("ok"), "s1 had an unfinished part, and is gone"
    assert parts(store) == {"s2": "waiting 0 0"}


def test_roll_does_not_wait_for_a_supervisor_that_leaves(store: Store) -> None:
    supervise(store, "s1", "s2")
    ask(store)
    tell(store, "s1", RollPart("going", 1, 4))
    supervise(store, "s1", leaves=True)
    supervise(store, "s2", leaves=True)
    assert parts(store) == {"s1": "left 1 4", "s2": "left 0 0"}
    assert ask(store, "r2") == RollAnswer("nobody")


def test_supervisor_that_leaves_after_its_part_is_done_changes_nothing(store: Store) -> None:
    supervise(store)
    ask(store)
    tell(store, "s1", RollPart("done", 4, 4))
    supervise(store, "s1", leaves=True)
    assert parts(store) == {"s1": "done 4 4"}


def test_failed_part_stops_waiting_parts_but_not_those_in_progress(store: Store) -> None:
    supervise(store, "s1", "s2", "s3")
    ask(store)
    tell(store, "s1", RollPart("going", 0, 4))
    tell(store, "s3", RollPart("going", 1, 4))
    assert tell(store, "s1", RollPart("failed", 1, 4, "no module"))
    assert parts(store) == {"s1": "failed 1 4 no module", "s2": "stopped 0 0", "s3": "going 1 4"}
    assert hints(store, "s2") == 2
    assert not tell(store, "s2", RollPart("going", 0, 4)), "its turn does not come any more"


def test_next_supervisor_is_woken_when_a_part_is_done(store: Store) -> None:
    supervise(store, "s1", "s2")
    ask(store)
    store.client.delete(store.keys.inbox("s2"))
    tell(store, "s1", RollPart("going", 2, 4))
    assert hints(store, "s2") == 0
    tell(store, "s1", RollPart("done", 4, 4))
    assert hints(store, "s2") == 1


@pytest.mark.parametrize("late", ["another roll", "no part", "over"])
def test_late_report_does_not_change_a_finished_roll(store: Store, late: str) -> None:
    supervise(store)
    ask(store)
    tell(store, "s1", RollPart("done", 4, 4))
    with store.unchanged():
        match late:
            case "another roll":
                assert not tell(store, "s1", RollPart("going", 1, 4), roll="r0")
            case "no part":
                assert not tell(store, "s9", RollPart("going", 1, 4))
            case _:
                assert not tell(store, "s1", RollPart("going", 1, 4))


def test_every_key_of_a_roll_expires(store: Store) -> None:
    supervise(store)
    ask(store)
    ttl = {
        key: store.client.pttl(key)
        for key in (store.keys.supervisors("f"), store.keys.roll("f"), store.keys.inbox("s1"))
    }
    assert all(0 < value <= 3_600_000 for value in ttl.values()), ttl
    assert store.score(store.keys.supervisors("f"), "s1") == NOW


def test_finished_roll_is_forgotten_while_its_supervisors_live_on(store: Store) -> None:
    supervise(store)
    ask(store)
    for part, kept in ((RollPart("going", 1, 4), True), (RollPart("done", 4, 4), False)):
        tell(store, "s1", part)
        store.client.pexpire(store.keys.roll("f"), 60_000)
        supervise(store)
        assert (store.client.pttl(store.keys.roll("f")) > 60_000) is kept


def test_only_the_holder_releases_a_lock(store: Store) -> None:
    store.lock("roll:f", "t1")
    with store.unchanged():
        assert not store.do(fleet_plans.unlock(store.keys, "roll:f", "t2"))
    assert store.do(fleet_plans.unlock(store.keys, "roll:f", "t1"))
    assert store.lock("roll:f", "t2")
