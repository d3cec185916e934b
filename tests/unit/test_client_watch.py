"""Which runs to ask about and how long to rest, with times given; and the boxes that hints are put into."""

from __future__ import annotations

import pytest

from coordinator.client.endings import ASK_AGAIN, IDLE, Mailbox, Watch, _Boxes
from coordinator.clock import SystemClock
from coordinator.errors import ResultTimeout


def test_all_are_asked_about_first_then_those_with_a_hint_then_all_again():
    watch = Watch(["a", "b", "c"], 100.0, None)
    assert watch.to_ask(100.0) == ["a", "b", "c"]
    watch.ended("c")
    assert watch.rest(100.0) == ASK_AGAIN
    assert watch.to_ask(101.0) == []
    watch.hint({"b", "c", "other"})
    assert watch.to_ask(102.0) == ["b"]
    assert watch.rest(103.0) == ASK_AGAIN - 3
    assert watch.to_ask(100.0 + ASK_AGAIN) == ["a", "b"]


def test_hints_do_not_put_off_the_asking_about_all():
    watch = Watch(["a", "b"], 0.0, None)
    watch.to_ask(0.0)
    for second in range(1, 5):
        watch.hint({"a"})
        assert watch.to_ask(float(second)) == ["a"]
    assert watch.to_ask(5.0) == ["a", "b"]


def test_nobody_rests_longer_than_there_is_time():
    watch = Watch(["a"], 0.0, 7.0)
    watch.to_ask(0.0)
    assert watch.rest(0.0) == 5.0
    watch.to_ask(5.0)
    assert watch.rest(5.0) == 2.0
    with pytest.raises(ResultTimeout, match="run a has not ended within 7 s"):
        watch.rest(7.0)


class Times(SystemClock):
    at = 0.0

    def monotonic(self) -> float:
        return self.at


def test_a_reader_ends_only_after_nobody_has_waited_for_long():
    clock = Times()
    boxes: _Boxes[Mailbox] = _Boxes(clock)
    box = Mailbox(lambda: None)
    boxes.add(["a"], box)
    clock.at = 10 * IDLE
    assert not boxes.idle()
    boxes.remove(["a"], box)
    assert not boxes.idle()
    clock.at += IDLE + 1
    assert boxes.idle()


def test_a_hint_goes_into_every_box_that_waits_for_it():
    boxes: _Boxes[Mailbox] = _Boxes(Times())
    one, two, three = Mailbox(lambda: None), Mailbox(lambda: None), Mailbox(lambda: None)
    boxes.add(["a", "b"], one)
    boxes.add(["a"], two)
    boxes.add(["c"], three)
    boxes.deliver(["a", "b", "nobody"])
    assert one.take(0.001) == {"a", "b"}
    assert two.take(0.001) == {"a"}
    assert three.take(0.001) == set()
