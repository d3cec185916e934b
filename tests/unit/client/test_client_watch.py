"""Waiting for runs: which ones to ask about, how long to pause, and how hints are delivered. The tests set the time."""

from __future__ import annotations

import pytest

from coordinator.client.waiting.ending_tracker import ASK_AGAIN, EndingTracker
from coordinator.client.waiting.mailboxes import IDLE, Mailbox, Mailboxes
from coordinator.clock import SystemClock
from coordinator.errors import ResultTimeout


def test_all_runs_are_asked_about_first_then_hinted_ones_then_all_again():
    tracker = EndingTracker(["a", "b", "c"], 100.0, None)
    assert tracker.to_ask(100.0) == ["a", "b", "c"]
    tracker.ended("c")
    assert tracker.rest(100.0) == ASK_AGAIN
    assert tracker.to_ask(101.0) == []
    tracker.hint({"b", "c", "other"})
    assert tracker.to_ask(102.0) == ["b"]
    assert tracker.rest(103.0) == ASK_AGAIN - 3
    assert tracker.to_ask(100.0 + ASK_AGAIN) == ["a", "b"]


def test_hints_do_not_delay_the_check_of_all_runs():
    tracker = EndingTracker(["a", "b"], 0.0, None)
    tracker.to_ask(0.0)
    for second in range(1, 5):
        tracker.hint({"a"})
        assert tracker.to_ask(float(second)) == ["a"]
    assert tracker.to_ask(5.0) == ["a", "b"]


def test_pause_never_exceeds_the_remaining_time():
    tracker = EndingTracker(["a"], 0.0, 7.0)
    tracker.to_ask(0.0)
    assert tracker.rest(0.0) == 5.0
    tracker.to_ask(5.0)
    assert tracker.rest(5.0) == 2.0
    with pytest.raises(ResultTimeout, match="run a has not ended within 7 s"):
        tracker.rest(7.0)


class Times(SystemClock):
    at = 0.0

    def monotonic(self) -> float:
        return self.at


def test_reader_ends_only_after_a_long_time_without_waiters():
    clock = Times()
    boxes: Mailboxes[Mailbox] = Mailboxes(clock)
    box = Mailbox(lambda: None)
    boxes.add(["a"], box)
    clock.at = 10 * IDLE
    assert not boxes.idle()
    boxes.remove(["a"], box)
    assert not boxes.idle()
    clock.at += IDLE + 1
    assert boxes.idle()


def test_hint_reaches_every_waiter_of_its_run():
    boxes: Mailboxes[Mailbox] = Mailboxes(Times())
    one, two, three = Mailbox(lambda: None), Mailbox(lambda: None), Mailbox(lambda: None)
    boxes.add(["a", "b"], one)
    boxes.add(["a"], two)
    boxes.add(["c"], three)
    boxes.deliver(["a", "b", "nobody"])
    assert one.take(0.001) == {"a", "b"}
    assert two.take(0.001) == {"a"}
    assert three.take(0.001) == set()


def test_hints_of_others_are_of_use_only_while_another_run_is_waited_for():
    boxes: Mailboxes[Mailbox] = Mailboxes(Times())
    first, second = Mailbox(lambda: None), Mailbox(lambda: None)
    boxes.add(["a"], first)
    assert not boxes.waits_for_others("a")
    boxes.add(["a", "b"], second)
    assert boxes.waits_for_others("a")
    boxes.remove(["a"], first)
    boxes.remove(["a", "b"], second)
    assert not boxes.waits_for_others("a")
