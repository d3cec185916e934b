"""The table of outcomes, row by row, without a worker and without a clock."""

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
from coordinator.model.policies.retry import Retry, RetryLater
from workers.attempt.executor import mark_stop
from workers.handlers.facts import Stopped

NEVER, TWICE = Retry(), Retry(limit=2, wait=7)
ERROR = ValueError("x")
ENDINGS: list[Ending] = [
    Returned(1), Raised(ERROR), Raised(Stopped("drain"), stop=True), Raised(asyncio.CancelledError()),
    Raised(RetryLater(after=3)), NotStarted(ERROR),
]  # fmt: skip


def outcome(ending: Ending, stop: Stop | None = None, retry: Retry = NEVER, failures: int = 0) -> Outcome:
    return classify(ending, stop, retry, failures)


def test_handler_that_returns_completes_the_run():
    assert outcome(Returned({"a": 1})) == Complete({"a": 1})


def test_handler_that_returns_before_the_stop_is_delivered_completes():
    assert outcome(Returned(1), Stop("drain", delivered=False)) == Complete(1)


@pytest.mark.parametrize("why", ["drain", "cancel"])
def test_stop_releases_the_run_without_a_strike(why: Why):
    assert outcome(Raised(Stopped(why), stop=True), Stop(why, delivered=True)) == Release(stopping=True)
    assert outcome(Raised(Stopped(why), stop=True), Stop(why, delivered=False)) == Release(stopping=True)


@pytest.mark.parametrize("error", [ERROR, asyncio.CancelledError(), ExceptionGroup("g", [ERROR]), SystemExit(1)])
def test_any_result_after_the_stop_was_delivered_counts_as_that_stop(error: BaseException):
    found = outcome(Raised(error), Stop("drain", delivered=True), TWICE)
    assert isinstance(found, Release)
    assert found.stopping
    assert type(error).__name__ in found.warning


def test_retry_later_after_the_stop_counts_as_that_stop_too():
    assert outcome(Raised(RetryLater(after=3)), Stop("drain", delivered=True)) == Release(stopping=True)


def test_swallowed_stop_is_never_a_success():
    found = outcome(Returned("done"), Stop("drain", delivered=True))
    assert isinstance(found, Release)
    assert found.stopping
    assert "caught the stop exception" in found.warning


def test_handler_that_fails_before_the_stop_is_delivered_has_failed():
    assert outcome(Raised(ERROR), Stop("drain", delivered=False)) == Fail(ERROR)
    assert outcome(Raised(ERROR), Stop("drain", delivered=False), TWICE) == TryAgain(ERROR, 7)


@pytest.mark.parametrize(("failures", "expected"), [(0, TryAgain(ERROR, 7)), (1, TryAgain(ERROR, 7)), (2, Fail(ERROR))])
def test_policy_limits_the_number_of_retries(failures: int, expected: Outcome):
    assert outcome(Raised(ERROR), None, TWICE, failures) == expected


def test_retry_later_retries_without_a_policy_and_without_a_limit():
    later = RetryLater(after=30)
    assert outcome(Raised(later), None, NEVER, 99) == TryAgain(later, 30)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(0)])
def test_system_exit_is_never_retried(error: BaseException):
    assert outcome(Raised(error), None, Retry(limit=9, wait=1, on=(BaseException,))) == Fail(error)


def test_policy_that_raises_fails_the_run_with_that_error():
    def broken(state: object) -> float:
        raise ZeroDivisionError

    found = outcome(Raised(ERROR), None, Retry(limit=1, wait=broken))
    assert isinstance(found, Fail)
    assert isinstance(found.error, ZeroDivisionError)


@pytest.mark.parametrize("ending", [Raised(ERROR), Raised(Stopped("deadline"), stop=True), Returned(1)])
def test_deadline_fails_the_run_whatever_the_handler_did_with_the_stop(ending: Ending):
    found = outcome(ending, Stop("deadline", delivered=True), TWICE)
    assert isinstance(found, Fail)


def test_unrequested_stop_is_released_with_back_off():
    found = outcome(Raised(Stopped("drain"), stop=True), None, TWICE)
    assert isinstance(found, Release)
    assert not found.stopping
    assert found.warning


def test_attempt_that_ends_before_the_first_line_is_rejected_or_released_while_stopping():
    assert outcome(NotStarted(ERROR)) == Reject(ERROR)
    assert outcome(NotStarted(ERROR), Stop("drain", delivered=False)) == Release(stopping=True)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("delivered", [True, False])
def test_without_the_token_nothing_is_written(ending: Ending, delivered: bool):
    assert outcome(ending, Stop("lost", delivered), TWICE) == Nothing()


def test_stop_inside_exception_groups_is_a_stop():
    inner = BaseExceptionGroup("inner", [Stopped("drain"), ERROR])
    judged = mark_stop(Raised(BaseExceptionGroup("outer", [ERROR, inner])))
    assert isinstance(judged, Raised)
    assert judged.stop
    assert outcome(judged, Stop("drain", delivered=False)) == Release(stopping=True)


async def test_group_of_errors_or_own_cancelled_error_is_not_a_stop():
    for error in (ExceptionGroup("g", [ERROR]), asyncio.CancelledError()):
        judged = mark_stop(Raised(error))
        assert isinstance(judged, Raised)
        assert not judged.stop
