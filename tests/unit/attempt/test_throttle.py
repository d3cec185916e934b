"""When a held save goes."""

from __future__ import annotations

from workers.throttle import Throttle


def test_the_first_goes_at_once():
    assert Throttle(10.0).wait(1000.0) == 0.0


def test_the_next_waits_for_the_end_of_the_window():
    throttle = Throttle(10.0)
    throttle.saved(100.0)
    assert throttle.wait(100.0) == 10.0
    assert throttle.wait(107.5) == 2.5
    assert throttle.wait(110.0) == throttle.wait(500.0) == 0.0


def test_the_clock_advances_only_after_a_success():
    throttle = Throttle(10.0)
    throttle.wait(100.0)
    throttle.wait(101.0)
    assert throttle.wait(102.0) == 0.0


def test_a_success_that_is_told_late_does_not_set_the_clock_back():
    throttle = Throttle(10.0)
    throttle.saved(100.0)
    throttle.saved(95.0)
    assert throttle.wait(100.0) == 10.0


def test_a_window_of_zero_saves_each():
    throttle = Throttle(0.0)
    throttle.saved(100.0)
    assert throttle.wait(100.0) == 0.0
