"""When the throttle sends a deferred save."""

from __future__ import annotations

from workers.throttle import Throttle


def test_first_save_is_immediate():
    assert Throttle(10.0).wait(1000.0) == 0.0


def test_next_save_waits_for_the_end_of_the_window():
    throttle = Throttle(10.0)
    throttle.saved(100.0)
    assert throttle.wait(100.0) == 10.0
    assert throttle.wait(107.5) == 2.5
    assert throttle.wait(110.0) == throttle.wait(500.0) == 0.0


def test_window_starts_only_after_a_successful_save():
    throttle = Throttle(10.0)
    throttle.wait(100.0)
    throttle.wait(101.0)
    assert throttle.wait(102.0) == 0.0


def test_late_report_of_a_success_does_not_move_the_window_back():
    throttle = Throttle(10.0)
    throttle.saved(100.0)
    throttle.saved(95.0)
    assert throttle.wait(100.0) == 10.0


def test_window_of_zero_saves_every_cut():
    throttle = Throttle(0.0)
    throttle.saved(100.0)
    assert throttle.wait(100.0) == 0.0
