"""The story of a run in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coordinator.encoding.codec import decode, encode
from coordinator.model import story
from coordinator.model.run import AttemptRecord, Counters, Failure, Status
from coordinator.views.formatting import format_duration
from coordinator.views.run_display import run_details
from tests.unit.cli.test_cli_show import RUN, render

T0 = datetime(2026, 1, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


RELEASED = AttemptRecord("released", 1, 1, T0, after(10), after(10), 3, 7, 1, "w-1", "v1", "", None)
LOST = AttemptRecord("recovered", 1, 2, after(11), after(20), after(18), 5, 9, 1, "w-2", "v2", "its process died", None)
RETRIED = AttemptRecord(
    "retried", 1, 3, after(22), after(23), None, 5, 9, 1, "w-1", "v2", "", Failure("ValueError", "no tides")
)
REVIVED = AttemptRecord("revived", 2, 3, after(22), after(60), None, 5, 9, 1, "w-1", "v2", "", None)


def story_lines(*entries: AttemptRecord, attempt: int = 4, **more: Any) -> list[str]:
    view = replace(
        RUN, counters=Counters(attempt=attempt), story=entries, started=after(30), owner="w-3", code="v3", **more
    )
    return list(story.describe_story(view, format_duration))


def test_first_attempt_has_no_story() -> None:
    assert story_lines(attempt=1) == []


def test_story_names_workers_endings_skipped_steps_and_lost_work() -> None:
    lines = [line[15:] for line in story_lines(RELEASED, LOST, RETRIED)]
    assert lines[:7] == [
        "attempt 1 on worker w-1 (code v1)",
        "released: its worker was shutting down, after 10 s; saved: 3 turns, 1 phase, 7 messages",
        "attempt 2 on worker w-2 (code v2) after 1.0 s, continued after 3 turns, 1 phase, 7 messages",
        "lost: its process died, after 9.0 s; at most 2.0 s of work lost; saved: 5 turns, 1 phase, 9 messages",
        "attempt 3 on worker w-1 after 2.0 s, continued after 5 turns, 1 phase, 9 messages",
        "raised and is retried: ValueError: no tides, after 1.0 s; saved: 5 turns, 1 phase, 9 messages",
        "attempt 4 on worker w-3 (code v3) after 7.0 s, continued after 5 turns, 1 phase, 9 messages",
    ]
    assert story_lines(RELEASED, LOST, RETRIED)[-1] == "in total at most 2.0 s of work lost, 10 s without an owner"


def test_attempts_that_ended_with_a_wait_are_named_and_their_time_is_not_counted_as_without_an_owner() -> None:
    lines = [line[15:] for line in story_lines(RELEASED, replace(RETRIED, attempt=3), attempt=7)]
    assert lines[2] == "attempt 3 on worker w-1 (code v2) after attempt 2, which ended with a wait"
    assert lines[4] == "attempt 7 on worker w-3 (code v3) after attempts 4 to 6, which ended with a wait"
    assert len(lines) == 5, "the time without an owner is not known"


def test_story_of_a_completed_run_ends_with_its_completion() -> None:
    lines = story_lines(RELEASED, attempt=2, status=Status.COMPLETED, ended=after(35), ended_by="w-9")
    assert lines[-2].endswith("completed after 5.0 s")


@pytest.mark.parametrize("from_start", ["", "from the start"])
def test_story_contains_a_revival_and_what_it_skips(from_start: str) -> None:
    revived = replace(REVIVED, why=from_start)
    lines = story_lines(replace(RETRIED, how="failed"), revived)
    assert "revived by an operator" in lines[3]
    assert "for life 2" in lines[3]
    assert lines[4].endswith("from the start" if from_start else "continued after 5 turns, 1 phase, 9 messages")


def test_saved_state_counts_as_saved_work() -> None:
    stated = replace(RETRIED, attempt=1, saved=after(22), iteration=0, messages=0, phases=0)
    lines = story_lines(stated, attempt=2)
    assert lines[1].endswith("saved: its state")
    assert lines[2].endswith(", with its state")
    assert story_lines(replace(stated, saved=None), attempt=2)[2].endswith("from the start")


def test_work_that_took_no_time_is_not_reported_as_lost() -> None:
    lines = story_lines(replace(LOST, attempt=1, saved=after(19.97)))
    assert lines[1].endswith("lost: its process died, after 9.0 s; saved: 5 turns, 1 phase, 9 messages")


def test_ended_run_did_not_wait_for_an_owner() -> None:
    lines = story_lines(replace(RETRIED, how="failed"), replace(REVIVED, ended=after(29)))
    assert lines[-1] == "in total 1.0 s without an owner"


def test_attempts_that_are_no_longer_recorded_are_reported_as_such() -> None:
    assert story_lines(replace(RELEASED, attempt=31))[0] == "attempt 1 to 30: ended with a wait, or no longer recorded"


def test_of_many_equal_attempts_the_first_and_the_last_are_shown() -> None:
    many = [replace(LOST, attempt=number) for number in range(2, 9)]
    lines = [line[15:] for line in story_lines(RELEASED, *many, replace(RETRIED, attempt=9), attempt=9)]
    assert [line.partition(" on ")[0] for line in lines if line.startswith("attempt")] == [
        "attempt 1", "attempt 2", "attempt 8", "attempt 9",
    ]  # fmt: skip
    assert "attempt 3 to 7: the same" in story_lines(RELEASED, *many, attempt=8)
    assert not [line for line in story_lines(*many[:4], attempt=5) if line.endswith("the same")]


def test_kill_or_cancel_is_shown_before_the_end_of_the_attempt() -> None:
    error = Failure("DeadlineExceeded", "killed by its critic: its hard deadline of 2 s has passed")
    assert story.describe_end(replace(RETRIED, how="failed", why=story.KILLED, error=error)) == error.message
    assert story.describe_end(replace(LOST, why=story.KILLED)) == story.KILLED
    assert story.describe_end(replace(RELEASED, why=story.CANCELLED)) == "stopped: a cancel was asked for"


def test_work_that_was_not_lost_is_not_added_up() -> None:
    assert story_lines(RELEASED, replace(RETRIED, attempt=2), attempt=3)[-1] == "in total 19 s without an owner"


def test_short_error_has_its_type_and_the_beginning_of_its_message() -> None:
    data = story.brief(encode(["T" * 300, "m" * 10_000, "trace"], "error"))
    assert decode(data, "error") == ["T" * 100, "m" * 500]
    assert story.brief(b"\xc1" * 1000) == b"\xc1" * 500


@pytest.mark.parametrize("data", [None, b"", b"5:ab", b"x", b"3:1:a", b"-1:", b"99999999999999:a", b"\xff\xfe"])
def test_unreadable_entries_are_omitted(data: bytes | None) -> None:
    assert story.read_story(data) == ()


def test_story_is_shown_without_control_characters() -> None:
    evil = replace(RETRIED, error=Failure("ValueError", "no \x1b[2Jtides"))
    view = replace(RUN, counters=Counters(attempt=3), story=(RELEASED, LOST, evil), status=Status.DELAYED, owner=None)
    text = render(run_details(view, T0.timestamp()), width=200)
    assert "lost: its process died" in text
    assert "\\x1b[2J" in text
