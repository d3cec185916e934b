"""The outcome table, row by row. Pure: no worker, no clock."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.model.outcome import (
    Complete,
    Ending,
    Fail,
    Nothing,
    NotStarted,
    Outcome,
    Raised,
    Reject,
    Release,
    Returned,
    Stop,
    TryAgain,
    Why,
    classify,
)
from coordinator.model.retry import Retry, RetryLater
from workers.attempt.executor import mark_stop
from workers.handlers.context import Stopped

NEVER, TWICE = Retry(), Retry(limit=2, wait=7)
ERROR = ValueError("x")
ENDINGS: list[Ending] = [
    Returned(1), Raised(ERROR), Raised(Stopped("drain"), stop=True), Raised(asyncio.CancelledError()),
    Raised(RetryLater(after=3)), NotStarted(ERROR),
]  # fmt: skip


def outcome(ending: Ending, stop: Stop | None = None, retry: Retry = NEVER, failures: int = 0) -> Outcome:
    return classify(ending, stop, retry, failures)


def test_what_returned_completes():
    assert outcome(Returned({"a": 1})) == Complete({"a": 1})


def test_what_returned_before_the_stop_reached_it_completes():
    assert outcome(Returned(1), Stop("drain", delivered=False)) == Complete(1)


@pytest.mark.parametrize("why", ["drain", "cancel"])
def test_a_stop_is_a_release_that_costs_nothing(why: Why):
    assert outcome(Raised(Stopped(why), stop=True), Stop(why, delivered=True)) == Release(stopping=True)
    assert outcome(Raised(Stopped(why), stop=True), Stop(why, delivered=False)) == Release(stopping=True)


@pytest.mark.parametrize("error", [ERROR, asyncio.CancelledError(), ExceptionGroup("g", [ERROR]), SystemExit(1)])
def test_whatever_comes_out_after_the_stop_was_delivered_is_that_stop(error: BaseException):
    found = outcome(Raised(error), Stop("drain", delivered=True), TWICE)
    assert isinstance(found, Release)
    assert found.stopping
    assert type(error).__name__ in found.warning


def test_retry_later_after_the_stop_is_that_stop_too():
    assert outcome(Raised(RetryLater(after=3)), Stop("drain", delivered=True)) == Release(stopping=True)


def test_a_swallowed_stop_is_never_a_success():
    found = outcome(Returned("done"), Stop("drain", delivered=True))
    assert isinstance(found, Release)
    assert found.stopping
    assert "caught the stop exception" in found.warning


def test_what_failed_before_the_stop_reached_it_has_failed():
    assert outcome(Raised(ERROR), Stop("drain", delivered=False)) == Fail(ERROR)
    assert outcome(Raised(ERROR), Stop("drain", delivered=False), TWICE) == TryAgain(ERROR, 7)


@pytest.mark.parametrize(("failures", "expected"), [(0, TryAgain(ERROR, 7)), (1, TryAgain(ERROR, 7)), (2, Fail(ERROR))])
def test_a_policy_tries_again_so_often(failures: int, expected: Outcome):
    assert outcome(Raised(ERROR), None, TWICE, failures) == expected


def test_retry_later_is_tried_again_without_a_policy_and_however_often():
    later = RetryLater(after=30)
    assert outcome(Raised(later), None, NEVER, 99) == TryAgain(later, 30)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(0)])
def test_an_exit_is_never_tried_again(error: BaseException):
    assert outcome(Raised(error), None, Retry(limit=9, wait=1, on=(BaseException,))) == Fail(error)


def test_a_policy_that_raises_fails_the_run_with_its_own_error():
    def broken(state: object) -> float:
        raise ZeroDivisionError

    found = outcome(Raised(ERROR), None, Retry(limit=1, wait=broken))
    assert isinstance(found, Fail)
    assert isinstance(found.error, ZeroDivisionError)


@pytest.mark.parametrize("ending", [Raised(ERROR), Raised(Stopped("deadline"), stop=True), Returned(1)])
def test_a_deadline_fails_whatever_the_handler_made_of_it(ending: Ending):
    found = outcome(ending, Stop("deadline", delivered=True), TWICE)
    assert isinstance(found, Fail)


def test_a_stop_that_nobody_asked_for_is_released_with_back_off():
    found = outcome(Raised(Stopped("drain"), stop=True), None, TWICE)
    assert isinstance(found, Release)
    assert not found.stopping
    assert found.warning


def test_what_ended_before_the_first_line_is_rejected_and_while_stopping_released():
    assert outcome(NotStarted(ERROR)) == Reject(ERROR)
    assert outcome(NotStarted(ERROR), Stop("drain", delivered=False)) == Release(stopping=True)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("delivered", [True, False])
def test_without_the_token_nothing_is_written(ending: Ending, delivered: bool):
    assert outcome(ending, Stop("lost", delivered), TWICE) == Nothing()


def test_a_stop_within_groups_is_a_stop():
    inner = BaseExceptionGroup("inner", [Stopped("drain"), ERROR])
    judged = mark_stop(Raised(BaseExceptionGroup("outer", [ERROR, inner])))
    assert isinstance(judged, Raised)
    assert judged.stop
    assert outcome(judged, Stop("drain", delivered=False)) == Release(stopping=True)


async def test_a_group_of_errors_is_no_stop_and_an_own_cancelled_error_neither():
    for error in (ExceptionGroup("g", [ERROR]), asyncio.CancelledError()):
        judged = mark_stop(Raised(error))
        assert isinstance(judged, Raised)
        assert not judged.stop
