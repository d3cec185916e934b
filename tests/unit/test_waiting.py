"""Waiting returns what was waited for, and says what it waited for in vain."""

from __future__ import annotations

import pytest

from tests.waiting import eventually, wait_until


def test_the_first_true_answer_is_returned() -> None:
    answers = iter([0, None, 7, 8])
    assert wait_until(lambda: next(answers), "an answer") == 7


def test_waiting_in_vain_names_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match="for the moon; the last answer was 0"):
        wait_until(lambda: 0, "the moon", timeout=0)


async def test_a_coroutine_may_be_asked() -> None:
    answers = iter([0, 7])

    async def ask() -> int:
        return next(answers)

    assert await eventually(ask, "an answer") == 7


async def test_waiting_in_vain_in_a_loop_names_it_too() -> None:
    with pytest.raises(AssertionError, match="for the moon"):
        await eventually(lambda: 0, "the moon", timeout=0)
