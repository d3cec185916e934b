"""Rules and fire times: time zones, daylight saving, jitter, missed fire times and catching up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from coordinator.client.schedules import UNREADABLE, build_schedule, schedule_view
from coordinator.errors import BadName, BadOption, NotPlain, Unreadable
from coordinator.model.policies.schedule import (
    LATE_MS,
    MOST_MISSED,
    Firing,
    Rules,
    ScheduleState,
    firings,
    rules_for,
    rules_from,
    run_id,
)
from coordinator.model.run_id import is_run_id, partition_of

BERLIN = ZoneInfo("Europe/Berlin")
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


def ms(*moment: int, zone: ZoneInfo | None = None, fold: int = 0) -> int:
    return round(datetime(*moment, tzinfo=zone or UTC, fold=fold).timestamp() * 1000)  # type: ignore[arg-type,misc]


def first(rules: Rules, after: int, count: int = 3) -> list[str]:
    """Return the first fire times in UTC."""
    found = islice(rules.times(after), count)
    return [datetime.fromtimestamp(time / 1000, UTC).strftime("%m-%d %H:%M") for time in found]


# ---- fire times ------------------------------------------------------------------------------------------------------


def test_cron_is_evaluated_in_its_time_zone() -> None:
    rules = rules_for("0 2 * * *", tz="Europe/Berlin")
    assert first(rules, ms(2026, 1, 10)) == ["01-10 01:00", "01-11 01:00", "01-12 01:00"]
    assert first(rules_for("0 2 * * *"), ms(2026, 1, 10), 1) == ["01-10 02:00"]


def test_time_skipped_by_daylight_saving_fires_once_right_after_the_gap() -> None:
    rules = rules_for("30 2 * * *", tz="Europe/Berlin")
    assert first(rules, ms(2026, 3, 28, 12)) == ["03-29 01:00", "03-30 00:30", "03-31 00:30"]
    assert first(rules, ms(2026, 3, 29, 1), 1) == ["03-30 00:30"], "and not again for who looks after it"


def test_time_repeated_by_daylight_saving_fires_once() -> None:
    rules = rules_for("30 2 * * *", tz="Europe/Berlin")
    assert first(rules, ms(2026, 10, 24, 12)) == ["10-25 00:30", "10-26 01:30", "10-27 01:30"]
    within_the_second_hour = ms(2026, 10, 25, 2, 0, zone=BERLIN, fold=1)
    assert first(rules, within_the_second_hour, 1) == ["10-26 01:30"], "never a time that is past"


@pytest.mark.parametrize(("change", "hours"), [(ms(2026, 3, 29), 24), (ms(2026, 10, 25), 24)])
def test_hourly_schedule_fires_every_hour_through_both_clock_changes(change: int, hours: int) -> None:
    rules = rules_for("0 * * * *", tz="Europe/Berlin")
    times = list(islice(rules.times(change - 12 * HOUR), hours))
    assert [later - earlier for earlier, later in pairwise(times)] == [HOUR] * (hours - 1)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("tz", ["America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 * * * *", "15 0,1,2,3 * * *", "0 0 1 * *"])
def test_fire_times_increase_and_do_not_depend_on_the_starting_point(cron: str, tz: str) -> None:
    rules = rules_for(cron, tz=tz)
    start, end = ms(2026, 1, 1), ms(2026, 12, 31)
    times = []
    for time in rules.times(start):
        if time > end:
            break
        times.append(time)
    assert times == sorted(set(times))
    for earlier, later in list(pairwise(times))[:: max(1, len(times) // 400)]:
        assert rules.after(earlier) == later
        assert rules.after((earlier + later) // 2) == later, "a moment between them"


def test_interval_is_counted_from_1970_so_that_all_coordinators_agree() -> None:
    rules = rules_for(30)
    assert rules == rules_for("every 30s") == rules_for(timedelta(seconds=30)) == rules_for("Every 0.5 m")
    assert rules.after(ms(2026, 1, 1)) == ms(2026, 1, 1, 0, 0, 30)
    assert rules.after(ms(2026, 1, 1, 0, 0, 29)) == ms(2026, 1, 1, 0, 0, 30)


def test_cron_with_six_fields_has_seconds() -> None:
    rules = rules_for("*/20 * * * * *")
    assert [time % MINUTE for time in islice(rules.times(ms(2026, 1, 1)), 3)] == [20_000, 40_000, 0]


@pytest.mark.parametrize(
    ("when", "options", "says"),
    [
        ("every monday", {}, "not a cron expression"),
        ("", {}, "not a cron expression"),
        ("99 * * * *", {}, "bad minute"),
        ("0 0 30 2 *", {}, "bad day-of-month"),
        ("0 0 * 2 MON#5,WED#6", {}, "not a cron expression"),
        ("0 0 31 2,4 MON", {}, None),
        ("1L/2 * * * *", {}, "not a cron expression"),
        ("0 0 * * *", {"tz": "Europe/Berln"}, "unknown time zone 'Europe/Berln'"),
        ("0 0 * * *", {"tz": "../../etc/passwd"}, "unknown time zone"),
        ("0 0 * * *", {"tz": "Europe"}, "unknown time zone"),
        ("0 0 * * *", {"overlap": "maybe"}, "overlap: skip, allow, cancel"),
        ("0 0 * * *", {"catch_up": "some"}, "catch_up: latest, all, none"),
        ("0 0 * * *", {"jitter": -1}, "jitter"),
        ("0 0 * * *", {"jitter": 4000}, "jitter"),
        (0.5, {}, "not between 1 s"),
        (0, {}, "not between 1 s"),
        (-5, {}, "not between 1 s"),
        (float("nan"), {}, "not between 1 s"),
        (30, {"tz": "Europe/Berlin"}, "an interval has no time zone"),
        (30, {"jitter": 31}, "at most the interval"),
        (True, {}, "not a cron expression"),
        (None, {}, "not a cron expression"),
    ],
)
def test_invalid_rules_are_refused_with_an_explanation(when, options, says) -> None:
    if says is None:
        rules_for(when, **options)
        return
    with pytest.raises(BadOption, match=says):
        rules_for(when, **options)


def test_rules_round_trip() -> None:
    rules = rules_for("0 2 * * 1-5", tz="Europe/Berlin", jitter=20.5, overlap="cancel", catch_up="all")
    assert rules_from(rules.packed()) == rules
    assert str(rules) == "0 2 * * 1-5"
    assert str(rules_for(90)) == "every 90 s"


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x93\x01\x02\x03", rules_for(30).packed()[:-2]])
def test_unreadable_rules_raise_unreadable(packed: bytes) -> None:
    with pytest.raises(Unreadable):
        rules_from(packed)


# ---- jitter and ids --------------------------------------------------------------------------------------------------


def test_jitter_depends_only_on_name_and_time_and_stays_within_its_limit() -> None:
    rules = rules_for("0 * * * *", jitter=600)
    times = list(islice(rules.times(ms(2026, 1, 1)), 200))
    late = [rules.due("a", time) - time for time in times]
    assert late == [rules.due("a", time) - time for time in times]
    assert all(0 <= one < 600_000 for one in late)
    assert len(set(late)) > 190
    assert late != [rules.due("b", time) - time for time in times]


def test_run_id_depends_only_on_schedule_name_and_fire_time() -> None:
    time = ms(2026, 1, 1)
    id = run_id("nightly", time, 3)
    assert id == run_id("nightly", time, 3)
    assert is_run_id(id)
    assert partition_of(id, 4) == 3
    assert len({id, run_id("nightly", time + 1000, 3), run_id("weekly", time, 3)}) == 3
    assert id < run_id("nightly", time + 1, 3), "ids are in the order of time"


# ---- what to fire ----------------------------------------------------------------------------------------------------


def test_new_schedule_gets_its_first_fire_time_and_fires_nothing() -> None:
    now = ms(2026, 1, 1, 12, 30)
    then = ms(2026, 1, 1, 13)
    assert firings("s", rules_for("0 * * * *"), ScheduleState(None, 0, now), now) == [Firing(None, None, then, then, 0)]


def test_schedule_fires_at_its_fire_time_and_not_earlier() -> None:
    rules, time = rules_for("0 * * * *"), ms(2026, 1, 1, 13)
    assert firings("s", rules, ScheduleState(time, 0, 0), time - 1) == []
    assert firings("s", rules, ScheduleState(time, 0, 0), time) == [Firing(time, time, time + HOUR, time + HOUR, 0)]


def test_firing_waits_for_its_jitter() -> None:
    rules, time = rules_for("0 * * * *", jitter=600), ms(2026, 1, 1, 13)
    due = rules.due("s", time)
    assert firings("s", rules, ScheduleState(time, 0, 0), due - 1) == []
    (firing,) = firings("s", rules, ScheduleState(time, 0, 0), due)
    assert (firing.at, firing.next, firing.due) == (time, time + HOUR, rules.due("s", time + HOUR))


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_fire_time_up_to_a_minute_late_is_not_missed(catch_up: str) -> None:
    """No policy loses a fire time because a coordinator is replaced or a server is restarted."""
    rules, time = rules_for(1, catch_up=catch_up), ms(2026, 1, 1, 13)
    found = firings("s", rules, ScheduleState(time, 0, 0), time + 30 * SECOND)
    assert [firing.at for firing in found] == [time + n * SECOND for n in range(31)]
    assert [firing.expected for firing in found] == [time + n * SECOND for n in range(31)], (
        "each expects the one before"
    )
    assert [firing.next for firing in found] == [time + n * SECOND for n in range(1, 32)]


@pytest.mark.parametrize(("catch_up", "fired"), [("latest", [3]), ("all", [0, 1, 2, 3]), ("none", [])])
def test_catch_up_policy_decides_which_missed_times_fire_after_downtime(catch_up: str, fired: list[int]) -> None:
    rules, time = rules_for("0 * * * *", catch_up=catch_up), ms(2026, 1, 1, 13)
    found = firings("s", rules, ScheduleState(time, 0, 0), time + 3 * HOUR + 30 * MINUTE)
    assert [firing.at for firing in found if firing.at] == [time + n * HOUR for n in fired]
    assert found[0].expected == time
    assert found[-1].next == time + 4 * HOUR


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_on_time_firing_replaces_the_missed_ones(catch_up: str) -> None:
    rules, time = rules_for("0 * * * *", catch_up=catch_up), ms(2026, 1, 1, 13)
    found = firings("s", rules, ScheduleState(time, 0, 0), time + 3 * HOUR + 10 * SECOND)
    assert [firing.at for firing in found] == [time + 3 * HOUR]


def test_fire_times_before_the_first_coordinator_started_count_as_missed() -> None:
    rules, since = rules_for("0 * * * *"), ms(2026, 1, 1, 12, 30)
    (firing,) = firings("s", rules, ScheduleState(None, 0, since), since + 5 * HOUR)
    assert firing == Firing(None, since + 4 * HOUR + 30 * MINUTE, since + 5 * HOUR + 30 * MINUTE, firing.due, 0)


def test_catch_up_is_limited_and_keeps_the_newest_times() -> None:
    rules, time = rules_for("* * * * *", catch_up="all"), ms(2020, 1, 1)
    now = ms(2026, 1, 1, 0, 0, 30)
    found = firings("s", rules, ScheduleState(time, 0, 0), now)
    assert len(found) == MOST_MISSED
    assert found[0].expected == time
    assert found[0].at == ms(2026, 1, 1) - MOST_MISSED * MINUTE
    again = firings("s", rules, ScheduleState(found[-1].next, 0, 0), now)
    assert [firing.at for firing in again] == [ms(2026, 1, 1)], "the punctual one is left for the next look"


def test_many_due_times_are_fired_in_batches() -> None:
    rules = rules_for(1, jitter=1)
    time, now = ms(2026, 1, 1), ms(2026, 1, 1) + LATE_MS
    fired: list[int] = []
    expected: int | None = time
    while (found := firings("s", rules, ScheduleState(expected, 0, 0), now)) and found[0].at:
        fired += [firing.at for firing in found if firing.at]
        expected = found[-1].next
    assert fired == [time + n * SECOND for n in range(len(fired))]
    assert len(fired) in (60, 61)


def test_coordinator_with_other_time_zone_data_fires_the_stored_time() -> None:
    """A time that another coordinator computed counts even if this one would not compute it. It fires once."""
    rules, odd = rules_for("0 2 * * *", tz="Europe/Berlin"), ms(2026, 1, 10, 0, 17)
    assert [(firing.at, firing.next) for firing in firings("s", rules, ScheduleState(odd, 3600), odd)] == [
        (odd, ms(2026, 1, 10, 1)),
    ]  # fmt: skip


@pytest.mark.parametrize("cron", ["0 2 * * *", "30 2 * * *", "0 0 * * *", "15 5,17 * * *"])
def test_same_local_time_does_not_fire_twice_with_different_time_zone_data(cron: str) -> None:
    """Two coordinators whose data differ by an hour take turns. Each local time still fires once."""
    berlin, helsinki = rules_for(cron, tz="Europe/Berlin"), rules_for(cron, tz="Europe/Helsinki")
    for start in (ms(2026, 1, 10), ms(2026, 3, 27), ms(2026, 10, 23)):
        for turns in range(1, 4):
            stored, fired = ScheduleState(None, 0, start), 0
            now, end = start, start + 6 * DAY
            while now < end:
                rules = berlin if (fired // turns) % 2 else helsinki
                steps = firings("s", rules, stored, now)
                fired += sum(step.at is not None for step in steps)
                if steps:
                    stored = ScheduleState(steps[-1].next, steps[-1].offset)
                now += 10 * MINUTE
            assert abs(fired - 6 * (2 if "," in cron else 1)) <= 1


# ---- input of users --------------------------------------------------------------------------------------------------


def test_users_schedule_becomes_the_stored_record() -> None:
    new = build_schedule(
        "nightly", "0 2 * * *", "report", {"topic": "tides"}, {"queue": "slow", "priority": 5, "expires": 60}
    )
    assert (new.name, new.overlap, new.route, new.priority, new.expires) == (
        "nightly", "skip", "slow:report@0", 5, "60000",
    )  # fmt: skip
    shown = schedule_view(
        "nightly", {"generation": b"g", "rules": new.rules, "route": new.route.encode(), "spec": new.spec}
    )
    assert (shown.kind, shown.queue, shown.inputs, shown.meta) == (
        "report", "slow", {"topic": "tides"}, {"schedule": "nightly"},
    )  # fmt: skip
    assert shown.trouble == "no coordinator has looked at it yet"


@pytest.mark.parametrize(
    ("name", "values", "options", "error"),
    [
        ("a b", {}, {}, BadName),
        ("s", {"x": object()}, {}, NotPlain),
        ("s", {}, {"key": "k"}, BadOption),
        ("s", {}, {"delay": 5}, BadOption),
        ("s", {}, {"priority": 500}, BadOption),
    ],
)
def test_invalid_schedule_is_refused_before_anything_is_sent(name, values, options, error) -> None:
    with pytest.raises(error):
        build_schedule(name, 30, "k", values, options)


@pytest.mark.parametrize("fields", [None, {}, {"generation": b"g", "rules": b"\xc1", "state": b"active"}])
def test_unreadable_record_is_shown_as_unreadable(fields) -> None:
    shown = schedule_view("s", fields)
    assert (shown.name, shown.trouble, shown.when) == ("s", UNREADABLE, "?")
