"""What the feed derives from two looks at a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.feed.events import LOOK_FIELDS, RunLook, derive_events, read_look
from coordinator.model.run import Status

NEW = RunLook("r", Status.QUEUED, "greet", "default", 1, 0, "", 100.0, 0.0, 0.0, "", "", False)
RUNNING = replace(NEW, status=Status.RUNNING, attempt=1, worker="w1", started=101.0)
COMPLETED = replace(RUNNING, status=Status.COMPLETED, ended=102.0)


def told(before: RunLook | None, after: RunLook, since: float = 90.0) -> list[tuple[str, float]]:
    return [(str(event.status), event.at) for event in derive_events(before, after, since, now=200.0)]


def test_first_look_at_a_completed_run_tells_all_its_changes() -> None:
    assert told(None, COMPLETED) == [("queued", 100.0), ("running", 101.0), ("completed", 102.0)]


def test_changes_before_the_feed_began_are_not_told() -> None:
    assert told(None, COMPLETED, since=101.5) == [("completed", 102.0)]
    assert told(None, RUNNING, since=150.0) == []
    assert told(None, COMPLETED, since=150.0) == []


def test_look_without_a_change_tells_nothing() -> None:
    for look in (NEW, RUNNING, COMPLETED):
        assert told(look, look) == []


def test_each_change_is_told_once() -> None:
    assert told(None, NEW) == [("queued", 100.0)]
    assert told(NEW, RUNNING) == [("running", 101.0)]
    assert told(RUNNING, COMPLETED) == [("completed", 102.0)]


def test_lost_run_that_was_claimed_again_between_two_looks_was_queued_in_between() -> None:
    resumed = replace(RUNNING, attempt=2, worker="w2", started=110.0, cause="recover")
    found = list(derive_events(RUNNING, resumed, 90.0, now=200.0))
    assert [(str(e.status), e.worker, e.cause) for e in found] == [
        ("queued", "w1", "recover"),
        ("running", "w2", "recover"),
    ]


def test_attempts_between_two_looks_are_counted() -> None:
    (_, running) = derive_events(RUNNING, replace(RUNNING, attempt=4, started=110.0), 90.0, now=200.0)
    assert running.missed == 2


def test_requeued_run_is_told_with_its_cause() -> None:
    (event,) = derive_events(RUNNING, replace(RUNNING, status=Status.QUEUED, cause="release"), 90.0, now=200.0)
    assert (event.status, event.cause, event.at, event.worker) == (Status.QUEUED, "release", 200.0, "w1")


def test_revived_run_that_the_feed_does_not_know_is_queued_now() -> None:
    assert told(None, replace(COMPLETED, status=Status.QUEUED, life=2, ended=0.0), since=150.0) == [("queued", 200.0)]


def test_run_that_is_gone_or_damaged_has_no_look() -> None:
    assert read_look("r", [None] * len(LOOK_FIELDS)) is None
    values: list[Any] = [None] * len(LOOK_FIELDS)
    values[0], values[1], values[2] = b"queued", b"default:greet@0", b"not numbers"
    assert read_look("r", values) is None


def test_owner_is_read_from_the_token_of_a_running_run() -> None:
    values = [b"running", b"default:greet@0", b"1 1 0 0 0 0 0 0 0 0 0 100000", b"5-abc-w-host-1", None, b"101000", None, None,
              b"w-before code", None, b"1"]  # fmt: skip
    look = read_look("r", values)
    assert look is not None
    assert (look.worker, look.created, look.started, look.cancelling) == ("w-host-1", 100.0, 101.0, True)
