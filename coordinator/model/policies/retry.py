"""Retry policies: whether and when a failed run is retried. A policy only decides. It keeps no state and does not wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenacity import Future, RetryCallState
from tenacity.stop import StopBaseT
from tenacity.wait import WaitBaseT, wait_exponential, wait_random

from coordinator.errors import BadOption, CoordinatorError
from coordinator.model.policies.budget import BudgetExceeded, UnknownPrice

LONGEST = 365 * 86400.0
DEFAULT_WAIT = wait_exponential(multiplier=1, max=299) + wait_random(0, 1)


class RetryLater(Exception):
    """An exception with which a handler asks for a retry after a time, whatever the retry policy of its kind says.

    Args:
        message: The reason, which is shown in the run's story.
        after: Seconds until the next attempt, or a timedelta; up to a year.

    Raises:
        BadOption: If `after` is not a valid delay.
    """

    def __init__(self, message: str = "", *, after: float | timedelta) -> None:
        if isinstance(after, timedelta):
            after = after.total_seconds()
        if not _is_delay(after):
            raise BadOption(f"RetryLater(after={after!r}): after must be from 0 to {LONGEST:.0f} seconds")
        super().__init__(message or f"retry after {after:g} s")
        self.after = float(after)


class OutcomeUnknown(CoordinatorError):
    """The error of `run.once` for an effect that was begun and whose end was not saved, so that its outcome is unknown.

    The function of the effect is not called again. No retry policy retries this error. Find out whether the effect took place, then
    revive the run with `forget_effects` to call the function again; or pass `check=` to `run.once`.

    Attributes:
        effect: The name of the effect.
    """

    def __init__(self, message: str, *, effect: str = "") -> None:
        super().__init__(message)
        self.effect = effect


NEVER_RETRIED = (OutcomeUnknown, BudgetExceeded, UnknownPrice)


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry policy of a kind.

    Attributes:
        limit: The largest number of retries in a row without progress, or a stop strategy of tenacity. 0: no retry.
        wait: Seconds until the next attempt, a timedelta, or a wait strategy of tenacity. The default grows exponentially from
            1 s to 5 min.
        on: The types of errors that are retried.
        from_start: True if a retry starts without the checkpoint. Then progress does not reset the number of retries.
    """

    limit: int | StopBaseT = 0
    wait: WaitBaseT | float | timedelta = DEFAULT_WAIT
    on: tuple[type[BaseException], ...] = (Exception,)
    from_start: bool = False

    def __post_init__(self) -> None:
        if not (callable(self.limit) or _is_count(self.limit)):
            raise BadOption(
                f"Retry(limit={self.limit!r}): limit must be an int of 0 or more, or a stop strategy of tenacity"
            )
        if not (callable(self.wait) or _is_delay(self._wait_seconds)):
            raise BadOption(
                f"Retry(wait={self.wait!r}): wait must be 0 or more seconds, or a wait strategy of tenacity"
            )
        if not _are_error_types(self.on):
            raise BadOption(f"Retry(on={self.on!r}): on must be a tuple of exception types")
        if not isinstance(self.from_start, bool):
            raise BadOption(f"Retry(from_start={self.from_start!r}): from_start must be True or False")

    @property
    def _wait_seconds(self) -> Any:
        return self.wait.total_seconds() if isinstance(self.wait, timedelta) else self.wait

    def next_delay(self, failures: int, error: BaseException, age: float = 0.0) -> float | None:
        """Return the seconds until the next attempt, or None if the run is not retried.

        OutcomeUnknown, BudgetExceeded and UnknownPrice are never retried, because each retry would raise them again.

        Args:
            failures: Failed attempts in a row, including this one.
            error: The error that the handler raised.
            age: Seconds since the run was created.
        """
        if _contains(error, NEVER_RETRIED):
            return None
        later = asked_delay(error)
        if later is not None:
            return later
        if (not callable(self.limit) and failures > self.limit) or not _matches(error, self.on):
            return None
        state = _state(failures, error, age)
        delay = min(max(float(self.wait(state) if callable(self.wait) else self._wait_seconds), 0.0), LONGEST)
        state.upcoming_sleep = delay
        return None if callable(self.limit) and self.limit(state) else delay


def _state(failures: int, error: BaseException, age: float) -> RetryCallState:
    """Return the state object that strategies of tenacity read, with the failed attempts in a row, the error and the run's age."""
    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = failures
    state.outcome = Future(failures)
    state.outcome.set_exception(error)
    state.start_time, state.outcome_timestamp = 0.0, age
    return state


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _is_delay(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= LONGEST


def _are_error_types(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, type) and issubclass(one, BaseException) for one in value)


def asked_delay(error: BaseException) -> float | None:
    """Return the delay in seconds that a RetryLater asks for; None for any other error.

    For an exception group that has only RetryLater errors, return the longest delay.
    """
    if isinstance(error, RetryLater):
        return error.after
    if not isinstance(error, BaseExceptionGroup):
        return None
    asked = [asked_delay(one) for one in error.exceptions]
    return None if None in asked else max(after for after in asked if after is not None)


def is_unknown(error: BaseException) -> bool:
    """Return True if the error is an OutcomeUnknown, or an exception group that contains one."""
    return _contains(error, OutcomeUnknown)


def _contains(error: BaseException, kind: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_contains(one, kind) for one in error.exceptions)
    return isinstance(error, kind)


def _matches(error: BaseException, types: tuple[type[BaseException], ...]) -> bool:
    """Return True if the error has one of the types, or is an exception group in which every error matches."""
    if isinstance(error, types):
        return True
    return isinstance(error, BaseExceptionGroup) and all(_matches(one, types) for one in error.exceptions)
