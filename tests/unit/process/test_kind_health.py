"""A deploy whose handlers cannot start must not reject all queued runs."""

from __future__ import annotations

from workers.attempt.kind_health import SUSPENDED_SECONDS, KindHealth


def test_kind_is_suspended_after_five_different_runs_fail_to_start():
    health = KindHealth()
    for n in range(4):
        assert not health.record_rejected("k", f"r{n}", 0.0)
    assert not health.record_rejected("k", "r0", 0.0), "the same one again proves nothing new"
    assert not health.is_suspended("k", 0.0)
    assert health.record_rejected("k", "r4", 10.0)
    assert health.is_suspended("k", 10.0)
    assert not health.is_suspended("other", 10.0)


def test_suspended_kind_is_retried_every_minute_and_one_more_failure_suspends_it_again():
    health = KindHealth()
    for n in range(5):
        health.record_rejected("k", f"r{n}", 0.0)
    assert not health.is_suspended("k", SUSPENDED_SECONDS)
    assert health.record_rejected("k", "r0", SUSPENDED_SECONDS)
    assert health.is_suspended("k", SUSPENDED_SECONDS + 1)


def test_after_a_handler_has_reached_its_first_line_failing_runs_are_at_fault():
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
