"""Deadlines of a run: what the critic does next, for given times, and how it handles the answer of an escalator."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from coordinator.errors import BadOption
from coordinator.model.policies.deadline import Deadline, Extend, Kill, Leave, Spent, Verdict, Watched, extend_once
from tests.waiting import next_turn
from workers.attempt.deadlines.deadline_tracker import ASK_AGAIN_SECONDS, CHECK_SECONDS, DeadlineTracker
from workers.attempt.deadlines.escalation import ask_escalator

ALL = Deadline(soft=10, hard=100, progress=30)
SHOWN = Watched("id", "kind", {}, {}, 1, 10.0, 10.0, 0, (), (), None, 0, 0.0, ALL)


def watch(deadline: Deadline = ALL, spent: Spent | None = None) -> DeadlineTracker:
    """Return a watch that started at 1000."""
    return DeadlineTracker(deadline, spent or Spent(), 1000.0)


def reason(found: object) -> str:
    assert isinstance(found, Kill)
    return found.reason


def test_critic_waits_for_the_nearest_of_three_deadlines():
    assert watch().due(1000) == 10
    assert watch(Deadline(hard=100, progress=30)).due(1000) == 30
    assert watch(Deadline(hard=100)).due(1001) == 99
    assert watch(Deadline(soft=10)).due(1009.5) == 0.5


def test_soft_deadline_asks_the_escalator_one_question_at_a_time():
    found = watch()
    assert found.due(1010) == "ask"
    found.asked()
    assert found.due(1010) == 20, "while it thinks the others are watched"
    found.asked()
    assert "progress" in reason(found.due(1030))


def test_hard_deadline_kills_even_while_the_escalator_is_deciding():
    found = watch(Deadline(soft=10, hard=100))
    found.asked()
    assert found.due(1099) == 1
    assert reason(found.due(1100)) == "its hard deadline of 100 s has passed"


def test_extension_counts_from_now_and_does_not_move_the_hard_deadline():
    found = watch(Deadline(soft=10, hard=100))
    found.asked()
    found.answered(Extend(60), 1015)
    assert found.due(1015) == 60
    assert found.due(1075) == "ask"
    found.asked()
    found.answered(Extend(60), 1075)
    assert found.due(1075) == 25


def test_stored_extension_gives_the_next_attempt_the_same_deadline():
    found = watch(Deadline(soft=10))
    more = found.extension(60, 1015)
    assert more == 65
    resumed = DeadlineTracker(Deadline(soft=10), Spent(used=20, extensions=1, extended=more), 5000.0)
    assert resumed.due(5000) == 55


def test_escalator_that_answers_leave_is_not_asked_again():
    found = watch(Deadline(soft=10, hard=100))
    found.asked()
    found.answered(Leave(), 1010)
    assert found.due(1099) == 1
    found = watch(Deadline(soft=10))
    found.asked()
    found.answered(Leave(), 1010)
    assert found.due(99_999) == CHECK_SECONDS


def test_without_a_verdict_the_escalator_is_asked_again_later():
    found = watch(Deadline(soft=10))
    found.asked()
    found.answered(None, 1010)
    assert found.due(1010) == 10
    found = watch(Deadline(soft=1000))
    found.asked()
    found.answered(None, 3000)
    assert found.due(3000) == ASK_AGAIN_SECONDS


def test_progress_restarts_the_progress_deadline():
    found = watch(Deadline(progress=30))
    found.progressed(1025)
    assert found.due(1030) == 25
    assert "no progress for 30 s" in reason(found.due(1055))


def test_time_of_earlier_attempts_counts():
    spent = Spent(used=95, idle=29)
    assert watch(spent=spent).due(1000) == "ask"
    assert watch(Deadline(hard=100), spent).due(1000) == 5
    assert "hard" in reason(watch(Deadline(hard=100), spent).due(1005))
    assert watch(Deadline(progress=30), spent).due(1000) == 1


@pytest.mark.parametrize(
    ("text", "spent"),
    [
        ("", Spent()),
        ("1500 500 3 2 61000", Spent(1.5, 0.5, 2, 61.0)),
        ("1 2 3 4", Spent()),
        ("1 2 x 4 5", Spent()),
        ("spoilt", Spent()),
    ],
)
def test_spent_time_is_parsed_and_damaged_text_counts_as_zero(text: str, spent: Spent):
    assert Spent.parse(text) == spent


def test_default_escalator_extends_once_and_then_kills():
    assert extend_once(SHOWN) == Extend(10)
    assert "soft deadline of 10 s" in reason(extend_once(replace(SHOWN, extensions=1, extended=10.0)))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "60", None])
def test_extension_must_be_a_duration(seconds: Any):
    with pytest.raises(BadOption, match="more than 0"):
        Extend(seconds)


# ---- answers of an escalator


async def ask(escalator: Any) -> Verdict | BaseException:
    async with asyncio.timeout(60):
        return await ask_escalator(escalator, SHOWN)


async def test_sync_and_async_escalators_are_called():
    async def soon(run: Watched) -> Verdict:
        return Kill(run.id)

    class Called:
        async def __call__(self, run: Watched) -> Verdict:
            return Leave()

    assert await ask(lambda run: Extend(run.age)) == Extend(10)
    assert await ask(soon) == Kill("id")
    assert await ask(Called()) == Leave()


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration])
async def test_exceptions_of_an_escalator_are_caught(error: type[BaseException]):
    def plain(run: Watched) -> Verdict:
        raise error

    async def soon(run: Watched) -> Verdict:
        raise error

    assert isinstance(await ask(plain), BaseException)
    assert isinstance(await ask(soon), BaseException)


@pytest.mark.parametrize("answer", [None, 60, "kill", Extend])
async def test_answer_that_is_not_a_verdict_counts_as_none(answer: Any):
    found = await ask(lambda run: answer)
    assert isinstance(found, TypeError)
    assert "Extend(seconds)" in str(found)


async def test_cancelling_the_caller_is_not_taken_for_an_answer():
    async def never(run: Watched) -> Verdict:
        await asyncio.Event().wait()
        return Leave()

    task = asyncio.create_task(ask_escalator(never, SHOWN))
    await next_turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
