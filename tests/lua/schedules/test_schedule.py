"""The scripts about schedules: each fire time fires once; replaced, paused and removed schedules never fire."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model.policies.schedule import rules_for, run_id
from coordinator.store.plans import schedules as plans
from coordinator.store.plans.schedules import DueSchedule
from coordinator.store.replies import word
from coordinator.store.scripts import PAUSE_SCHEDULE, SCHEDULE, UNSCHEDULE
from tests.lua.schedule_calls import FIRST, HOURLY, SECOND, fire_all, new, planned, put, step
from tests.lua.store import NOW, ROUTES, Store

THIRD = SECOND + 3_600_000
RUN, NEXT_RUN = run_id("s", FIRST, 0), run_id("s", SECOND, 0)
NEVER = 2**53 - 1
OTHER = rules_for("30 * * * *").packed()


def fields(store: Store, name: str = "s") -> dict[str, str]:
    stored = store.client.hgetall(store.keys.schedule(name))
    return {field.decode(): value.decode(errors="replace") for field, value in stored.items()}


def entries(store: Store) -> tuple[DueSchedule, ...]:
    return store.do(plans.upcoming(store.keys, batch=10, now=store.at)).entries


def first(store: Store, **changed: Any) -> list[tuple[str, str]]:
    """Return the step that fires FIRST."""
    return fire_all(store, step(expected=FIRST, at=FIRST, next=SECOND)._replace(**changed))


def second(store: Store) -> list[tuple[str, str]]:
    store.now = SECOND
    return fire_all(store, step(expected=SECOND, at=SECOND, next=THIRD))


def pause(store: Store, generation: str, paused: bool = True) -> str:
    return store.do(plans.pause(store.keys, "s", generation, paused=paused, now=store.at))


def remove(store: Store, generation: str = "r") -> str:
    return store.do(plans.remove(store.keys, "s", generation, now=store.at))


# ---- firing ----------------------------------------------------------------------------------------------------------


def test_new_schedule_is_due_for_planning_at_once(store: Store) -> None:
    assert put(store) == "ok"
    assert entries(store) == (DueSchedule("s", "g1", NOW, None, 0, HOURLY),)
    assert fire_all(store, step(next=FIRST, due=FIRST + 5)) == [("moved", "")]
    found = store.do(plans.upcoming(store.keys, batch=10, now=store.at))
    assert (found.entries, found.next_ms, found.now) == ((), FIRST + 5 - NOW, NOW)


def test_fire_time_enqueues_the_run_with_the_expected_id(store: Store) -> None:
    planned(store)
    assert first(store) == [("fired", RUN)]
    assert (store.status(RUN), store.places(RUN)) == ("queued", [f"ready:{ROUTES[0]}"])
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 1
    assert store.take().spec == b"spec"
    kept = fields(store)
    assert (kept["last"], kept["fired"], kept["next"]) == (RUN, "1", str(SECOND))
    assert store.score(store.keys.schedules(), "s") == SECOND


@pytest.mark.parametrize(
    "options", [{}, {"priority": -7}, {"expires": "5000", "retention": "1000"}, {"route": "q:k@2"}]
)
def test_fired_run_equals_an_enqueued_run(store: Store, options: dict[str, Any]) -> None:
    planned(store, **options)
    first(store)
    other = store.enqueue(**options)
    assert store.run(RUN) == store.run(other)
    assert [place for place in store.places(RUN) if "expire" not in place] == store.places(other)
    for id in (RUN, other):
        assert (store.score(store.keys.deadlines(), f"expire:{id}") is not None) == ("expires" in options)


def test_repeated_fire_enqueues_once(store: Store) -> None:
    planned(store)
    first(store)
    with store.unchanged():
        assert first(store) == [("fired", RUN)]


@pytest.mark.parametrize("gone", [False, True], ids=["kept", "its retention is over"])
def test_late_fire_enqueues_nothing(store: Store, gone: bool) -> None:
    planned(store, overlap="allow")
    first(store)
    second(store)
    store.complete(store.take(want=1))
    if gone:
        store.client.delete(store.keys.run(RUN))
    with store.unchanged():
        assert first(store) == [("changed", "") if gone else ("fired", RUN)]


def test_only_one_of_two_coordinators_that_disagree_about_the_next_time_is_accepted(store: Store) -> None:
    planned(store)
    assert first(store) == [("fired", RUN)]
    with store.unchanged():
        assert first(store, next=str(THIRD)) == [("fired", RUN)]
        assert first(store, at=str(FIRST - 1000), id=run_id("s", FIRST - 1000, 0)) == [("changed", "")]
    assert len(store.line(store.keys.ready(ROUTES[0]))) == 1


def test_several_steps_of_one_schedule_fit_in_one_call(store: Store) -> None:
    planned(store, overlap="allow")
    store.now = SECOND
    steps = [step(expected=FIRST, at=FIRST, next=SECOND), step(expected=SECOND, at=SECOND, next=THIRD)]
    assert fire_all(store, *steps) == [("fired", RUN), ("fired", NEXT_RUN)]
    with store.unchanged():
        assert fire_all(store, *steps) == [("fired", RUN), ("fired", NEXT_RUN)]


def test_schedule_uses_the_servers_time_and_never_fires_early(store: Store) -> None:
    planned(store)
    store.now = FIRST - 1
    with store.unchanged():
        assert first(store) == [("early", "")]


def test_fire_before_its_jitter_has_passed_is_early(store: Store) -> None:
    put(store)
    fire_all(store, step(next=FIRST, due=FIRST + 500))
    store.now = FIRST + 499
    with store.unchanged():
        assert first(store) == [("early", "")]
    store.later(1)
    assert first(store) == [("fired", RUN)]


def test_coordinator_cannot_fire_a_future_time(store: Store) -> None:
    planned(store)
    with store.unchanged():
        assert first(store, at=str(SECOND)) == [("early", "")]


@pytest.mark.parametrize("wrong", [{"next": "soon"}, {"next": str(FIRST)}, {"due": ""}, {"at": "now"}])
def test_step_that_does_not_advance_is_refused(store: Store, wrong: dict[str, str]) -> None:
    planned(store)
    with store.unchanged():
        assert first(store, **wrong) == [("bad", "")]


def test_existing_run_is_not_enqueued_again(store: Store) -> None:
    """This happens after a failover that lost the step of the schedule and kept its run."""
    planned(store)
    store.enqueue(RUN)
    store.complete(store.take())
    assert first(store) == [("fired", RUN)]
    assert (store.status(RUN), fields(store)["next"]) == ("completed", str(SECOND))


def test_missed_times_are_skipped_without_a_run(store: Store) -> None:
    planned(store)
    store.now = SECOND + 1
    assert fire_all(store, step(expected=FIRST, next=THIRD)) == [("moved", "")]
    assert fields(store)["next"] == str(THIRD)
    assert store.line(store.keys.ready(ROUTES[0])) == []


# ---- overlap ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("running", [False, True], ids=["queued", "running"])
def test_overlap_skip_skips_the_next_run_while_one_is_open(store: Store, running: bool) -> None:
    planned(store, overlap="skip")
    first(store)
    claimed = store.take() if running else None
    assert second(store) == [("skipped", RUN)]
    assert store.status(NEXT_RUN) == "missing"
    assert (fields(store)["skipped"], fields(store)["next"]) == ("1", str(THIRD))
    if claimed:
        store.complete(claimed)
        store.now = THIRD
        assert fire_all(store, step(expected=THIRD, at=THIRD, next=THIRD + 1)) == [("fired", run_id("s", THIRD, 0))]


def test_overlap_allow_keeps_both_runs(store: Store) -> None:
    planned(store, overlap="allow")
    first(store)
    assert second(store) == [("fired", NEXT_RUN)]
    assert store.line(store.keys.ready(ROUTES[0])) == [RUN, NEXT_RUN]


def test_overlap_cancel_cancels_a_waiting_run(store: Store) -> None:
    planned(store, overlap="cancel")
    first(store)
    assert second(store) == [("fired", NEXT_RUN)]
    assert (store.status(RUN), store.places(RUN)) == ("cancelled", ["ended:cancelled"])
    assert store.run(RUN)["reason"] == "cancelled: the next run of its schedule began"
    assert store.line(store.keys.ready(ROUTES[0])) == [NEXT_RUN]


def test_overlap_cancel_asks_a_running_run_to_stop_and_then_ends_it_by_force(store: Store) -> None:
    planned(store, overlap="cancel")
    first(store)
    store.take()
    assert second(store) == [("fired", NEXT_RUN)]
    assert store.status(RUN) == "running"
    beat = store.beat()
    assert beat is not None
    assert beat.cancels == (RUN,)
    store.later(10_000)
    assert store.due().passed == 1
    assert store.status(RUN) == "cancelled"


def test_overlap_cancel_ends_a_run_that_completes_after_the_request_as_cancelled(store: Store) -> None:
    planned(store, overlap="cancel")
    first(store)
    claimed = store.take()
    second(store)
    assert store.complete(claimed) == "cancelled"
    store.later(10_000)
    store.due()
    assert store.status(RUN) == "cancelled"


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
def test_ended_or_missing_run_does_not_count_as_overlap(store: Store, overlap: str) -> None:
    planned(store, overlap=overlap)
    first(store)
    store.complete(store.take())
    assert second(store) == [("fired", NEXT_RUN)]
    store.client.delete(store.keys.run(NEXT_RUN))
    store.now = THIRD
    assert fire_all(store, step(expected=THIRD, at=THIRD, next=THIRD + 1))[0][0] == "fired"


def test_unreadable_previous_run_does_not_count_as_overlap(store: Store) -> None:
    planned(store, overlap="cancel")
    first(store)
    store.spoil(store.keys.run(RUN))
    assert second(store) == [("fired", NEXT_RUN)]


# ---- changes by users ------------------------------------------------------------------------------------------------


def test_replaced_schedule_never_fires_late(store: Store) -> None:
    planned(store)
    assert put(store, generation="g2", rules=OTHER) == "ok"
    with store.unchanged():
        assert first(store) == [("changed", "")]
    assert entries(store) == (DueSchedule("s", "g2", FIRST, None, 0, OTHER),)


def test_late_step_of_a_replaced_schedule_is_ignored_even_if_the_new_one_waits_for_the_same_time(
    store: Store,
) -> None:
    planned(store)
    put(store, generation="g2", rules=rules_for("0 */2 * * *").packed())
    store.now = NOW
    fire_all(store, step(generation="g2", next=FIRST))
    store.now = FIRST
    with store.unchanged():
        assert first(store) == [("changed", "")]


def test_paused_schedule_is_not_planned(store: Store) -> None:
    put(store)
    pause(store, "p1")
    with store.unchanged():
        assert fire_all(store, step(generation="p1", next=FIRST)) == [("changed", "")]


def test_removed_schedule_never_fires_late(store: Store) -> None:
    planned(store)
    assert remove(store) == "ok"
    with store.unchanged():
        assert first(store) == [("changed", "")]
        assert entries(store) == ()


def test_paused_schedule_does_not_fire_and_misses_nothing(store: Store) -> None:
    planned(store)
    assert pause(store, "p1") == "ok"
    assert first(store, generation="p1") == first(store) == [("changed", "")]
    assert store.score(store.keys.schedules(), "s") == NEVER
    store.now = THIRD
    assert pause(store, "p2", paused=False) == "ok"
    assert entries(store) == (DueSchedule("s", "p2", THIRD, None, 0, HOURLY),), "its times are counted from now on"


def test_setting_the_same_rules_again_keeps_the_next_fire_time(store: Store) -> None:
    planned(store)
    store.now = FIRST - 10
    assert put(store, generation="g2", spec=b"other") == "ok"
    assert (fields(store)["next"], store.score(store.keys.schedules(), "s")) == (str(FIRST), FIRST)
    store.now = FIRST
    assert first(store, generation="g2") == [("fired", RUN)]
    assert store.take().spec == b"other"


def test_replaced_schedule_stays_paused(store: Store) -> None:
    planned(store)
    pause(store, "p1")
    assert put(store, generation="g2", rules=OTHER) == "ok"
    assert (fields(store)["state"], store.score(store.keys.schedules(), "s")) == ("paused", NEVER)


@pytest.mark.parametrize("what", ["set", "pause", "unpause", "remove"])
def test_repeated_change_is_made_once(store: Store, what: str) -> None:
    planned(store)
    if what == "unpause":
        pause(store, "p0")
    makers = {
        "set": lambda: put(store, generation="x", rules=OTHER), "pause": lambda: pause(store, "x"),
        "unpause": lambda: pause(store, "x", paused=False), "remove": lambda: remove(store, "x"),
    }  # fmt: skip
    assert makers[what]() == "ok"
    store.later(5)
    with store.unchanged():
        assert makers[what]() == "ok"


@pytest.mark.parametrize("then", ["set", "pause", "remove", "remove and set"])
def test_late_change_does_not_undo_a_later_one(store: Store, then: str) -> None:
    planned(store)
    late = [
        SCHEDULE.call(store.keys.at, now=store.at, birth="b1", seen=seen, generation="late", **new()._asdict())
        for seen in ("", "g1")
    ]
    late.append(PAUSE_SCHEDULE.call(store.keys.at, now=store.at, name="s", seen="g1", generation="late", paused=0))
    late.append(UNSCHEDULE.call(store.keys.at, now=store.at, name="s", seen="g1", generation="late"))
    if then == "set":
        put(store, generation="g2")
    elif then == "pause":
        pause(store, "p1")
    else:
        remove(store)
        if "set" in then:
            put(store, generation="g2")
    with store.unchanged():
        assert {word(reply) for reply in store.wire.ask(late)} <= {"changed", "missing"}


@pytest.mark.parametrize("what", ["set", "pause", "unpause", "remove"])
@pytest.mark.parametrize("then", ["set", "pause", "unpause", "remove and set"])
def test_change_that_is_repeated_after_a_later_one_changes_nothing(store: Store, what: str, then: str) -> None:
    """The reply of the first change is lost, another client makes the second one, and then the first is called again."""
    planned(store)
    if what == "unpause":
        pause(store, "p0")
    makers = {
        "set": lambda mark: put(store, generation=mark, rules=OTHER), "pause": lambda mark: pause(store, mark),
        "unpause": lambda mark: pause(store, mark, paused=False), "remove": lambda mark: remove(store, mark),
    }  # fmt: skip
    assert makers[what]("x") == "ok"
    if what == "remove" or "remove" in then:
        remove(store, "y")
        put(store, generation="z")
    else:
        makers[then]("y")
    with store.unchanged():
        assert makers[what]("x") == "ok"


def test_missing_schedule_can_be_neither_paused_nor_removed(store: Store) -> None:
    with store.unchanged():
        assert (pause(store, "p"), remove(store)) == ("missing", "missing")
    put(store)
    remove(store)
    with store.unchanged():
        assert (pause(store, "p"), remove(store, "again")) == ("missing", "missing")


def test_removed_schedule_leaves_nothing_after_ten_minutes(store: Store) -> None:
    planned(store)
    remove(store)
    store.later(599_999)
    entries(store)
    assert store.client.exists(store.keys.schedule("s"))
    store.later(1)
    assert entries(store) == ()
    assert not store.client.exists(store.keys.schedule("s"), store.keys.schedules())


def test_call_with_another_birth_is_refused_as_a_stranger(store: Store) -> None:
    store.client.hset(store.keys.namespace(), "birth", "b2")
    with store.unchanged():
        assert put(store) == "mismatch"


def test_schedule_of_a_kind_with_a_limit_is_refused(store: Store) -> None:
    store.limit(1)
    with store.unchanged():
        assert put(store) == "ungrouped"
    assert put(store, "t", route="default:other@0") == "ok"
    store.limit("")
    assert put(store) == "ok"
    store.limit(1)
    with store.unchanged():
        assert put(store, "u", generation="g2") == "ungrouped"
    assert put(store) == "ok", "a repeated call gets its first answer"


def test_schedule_that_is_older_than_the_limit_of_its_kind_may_be_set_again(store: Store) -> None:
    assert put(store) == "ok"
    store.limit(1)
    assert put(store, generation="g2", rules=OTHER) == "ok"


# ---- bad entries -----------------------------------------------------------------------------------------------------


def test_invalid_entry_does_not_block_other_schedules(store: Store) -> None:
    for name in ("a", "b", "c"):
        put(store, name)
    store.spoil(store.keys.schedule("a"))
    store.client.delete(store.keys.schedule("b"))
    assert [entry.name for entry in entries(store)] == ["c"]
    assert store.score(store.keys.schedules(), "a") == NOW + 60_000
    assert store.line(store.keys.schedules()) == ["c", "a"]


def test_schedule_can_be_set_and_removed_over_a_key_of_another_type(store: Store) -> None:
    put(store)
    store.spoil(store.keys.schedule("s"))
    assert put(store, generation="g2") == "ok"
    assert [entry.generation for entry in entries(store)] == ["g2"]
    store.spoil(store.keys.schedule("s"))
    assert remove(store) == "ok"
    assert entries(store) == ()


@pytest.mark.parametrize("what", ["run", "ready", "route", "priority", "spec"])
def test_run_that_cannot_be_created_changes_nothing_and_does_not_block_others(store: Store, what: str) -> None:
    planned(store)
    put(store, "t", "g1", route="default:other@0")
    fire_all(store, step("t", next=FIRST + 1, due=FIRST))
    if what in ("run", "ready"):
        store.spoil(store.keys.run(RUN) if what == "run" else store.keys.ready(ROUTES[0]))
    elif what == "spec":
        store.client.hdel(store.keys.schedule("s"), "spec")
    else:
        store.client.hset(store.keys.schedule("s"), what, "?")
    before = fields(store)
    neighbour = step("t", expected=FIRST + 1, at=FIRST, next=SECOND)
    mine = step(expected=FIRST, at=FIRST, next=SECOND)
    assert fire_all(store, mine, neighbour) == [("unreadable", ""), ("fired", neighbour.id)]
    assert fields(store) == before


def test_schedule_with_an_error_is_reported_and_postponed(store: Store) -> None:
    put(store)
    entry = entries(store)[0]
    assert store.do(plans.postpone(store.keys, entry, "no such zone", 30, now=store.at)) == "ok"
    assert (fields(store)["why"], entries(store)) == ("no such zone", ())
    store.later(30_000)
    assert [found.name for found in entries(store)] == ["s"]
    assert fire_all(store, step(next=FIRST)) == [("moved", "")]
    assert "why" not in fields(store), "somebody knew"


def test_error_of_a_schedule_that_was_moved_meanwhile_is_not_reported(store: Store) -> None:
    put(store)
    entry = entries(store)[0]
    fire_all(store, step(next=FIRST))
    with store.unchanged():
        assert store.do(plans.postpone(store.keys, entry, "why", 30, now=store.at)) == "changed"
