"""The sentences about what is late."""

from __future__ import annotations

from coordinator.feed.lateness import Lateness, describe_lateness
from coordinator.views.namespace_view import GroupView


def full(group: str, waited: float, at_once: int | None = 2) -> GroupView:
    return GroupView("report", group, 7, 2, at_once, waited=waited)


def test_nothing_late_says_nothing() -> None:
    assert describe_lateness(Lateness()) == []


def test_late_schedules_and_runs_are_told() -> None:
    sentences = describe_lateness(Lateness(schedules=1, delayed=30.0, waiting=90.0))
    assert sentences[0] == "1 schedule is late by more than 5 s"
    assert "delayed run was due 30 s ago" in sentences[1]
    assert "should have been woken 90 s ago" in sentences[2]


def test_full_group_is_told_with_its_wait_and_counts_the_others() -> None:
    (sentence,) = describe_lateness(Lateness(groups=(full("acme", 720.0), full("globex", 61.0), full("fast", 3.0))))
    assert sentence.startswith("group acme of report is full (2 of 2): 7 runs in its line, the first for 12 min")
    assert sentence.endswith("1 more group with a wait above 60 s")


def test_group_that_waits_shortly_or_admits_no_run_is_not_told_as_full() -> None:
    assert (
        describe_lateness(Lateness(groups=(full("fast", 59.0), full("closed", 720.0, 0), full("new", 720.0, None))))
        == []
    )


def test_group_with_a_free_place_waits_for_its_rate() -> None:
    (sentence,) = describe_lateness(Lateness(groups=(GroupView("report", "acme", 7, 1, 5, "1/min", 90.0),)))
    assert sentence == "group acme of report waits for its rate (1/min): 7 runs in its line, the first for 90 s"
