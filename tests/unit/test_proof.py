"""A bad deploy must not empty the queue."""

from __future__ import annotations

from workers.process.kind_health import AGAIN_AFTER, Proof


def test_five_different_runs_that_can_not_start_are_too_many():
    proof = Proof()
    for n in range(4):
        assert not proof.rejected("k", f"r{n}", 0.0)
    assert not proof.rejected("k", "r0", 0.0), "the same one again proves nothing new"
    assert not proof.refuses("k", 0.0)
    assert proof.rejected("k", "r4", 10.0)
    assert proof.refuses("k", 10.0)
    assert not proof.refuses("other", 10.0)


def test_it_is_tried_again_each_minute_and_one_more_is_enough():
    proof = Proof()
    for n in range(5):
        proof.rejected("k", f"r{n}", 0.0)
    assert not proof.refuses("k", AGAIN_AFTER)
    assert proof.rejected("k", "r0", AGAIN_AFTER)
    assert proof.refuses("k", AGAIN_AFTER + 1)


def test_a_kind_that_reached_its_first_line_is_proven_and_its_runs_are_at_fault():
    proof = Proof()
    assert not proof.proven("k")
    for n in range(5):
        proof.rejected("k", f"r{n}", 0.0)
    proof.reached("k")
    assert proof.proven("k")
    assert not proof.refuses("k", 1.0)
    for n in range(9):
        assert not proof.rejected("k", f"s{n}", 1.0)
    assert not proof.refuses("k", 1.0)
