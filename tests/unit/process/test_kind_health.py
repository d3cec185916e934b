"""A bad deploy must not empty the queue."""

from __future__ import annotations

from workers.attempt.kind_health import SUSPENDED_SECONDS, KindHealth


def test_five_different_runs_that_can_not_start_are_too_many():
    health = KindHealth()
    for n in range(4):
        assert not health.record_rejected("k", f"r{n}", 0.0)
    assert not health.record_rejected("k", "r0", 0.0), "the same one again proves nothing new"
    assert not health.is_suspended("k", 0.0)
    assert health.record_rejected("k", "r4", 10.0)
    assert health.is_suspended("k", 10.0)
    assert not health.is_suspended("other", 10.0)


def test_it_is_tried_again_each_minute_and_one_more_is_enough():
    health = KindHealth()
    for n in range(5):
        health.record_rejected("k", f"r{n}", 0.0)
    assert not health.is_suspended("k", SUSPENDED_SECONDS)
    assert health.record_rejected("k", "r0", SUSPENDED_SECONDS)
    assert health.is_suspended("k", SUSPENDED_SECONDS + 1)


def test_a_kind_that_reached_its_first_line_is_proven_and_its_runs_are_at_fault():
    health = KindHealth()
    assert not health.has_started("k")
    for n in range(5):
        health.record_rejected("k", f"r{n}", 0.0)
    health.record_started("k")
    assert health.has_started("k")
    assert not health.is_suspended("k", 1.0)
    for n in range(9):
        assert not health.record_rejected("k", f"s{n}", 1.0)
    assert not health.is_suspended("k", 1.0)
