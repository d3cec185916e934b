"""When a failed run is tried again. A pure decision: it keeps no count and waits for nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tenacity import Future, RetryCallState
from tenacity.stop import StopBaseT
from tenacity.wait import WaitBaseT, wait_exponential, wait_random

from coordinator.errors import BadOption

LONGEST = 365 * 86400.0
DEFAULT_WAIT = wait_exponential(multiplier=1, max=299) + wait_random(0, 1)


class RetryLater(Exception):
    """Raised by a handler that knows when to be called again. It asks for a retry whatever the kind's policy is."""

    def __init__(self, message: str = "", *, after: float) -> None:
        if not _is_delay(after):
            raise BadOption(f"RetryLater(after={after!r}): after must be 0 to {LONGEST:.0f} seconds")
        super().__init__(message or f"again after {after:g} s")
        self.after = float(after)


@dataclass(frozen=True, slots=True)
class Retry:
    """Again up to `limit` times in a row, or until a stop of tenacity says no, for errors of the types in `on`; `wait` is seconds,
    or a wait of tenacity. `from_start`: without what the attempt before has saved; then no progress starts the count anew."""

    limit: int | StopBaseT = 0
    wait: WaitBaseT | float = DEFAULT_WAIT
    on: tuple[type[BaseException], ...] = (Exception,)
    from_start: bool = False

    def __post_init__(self) -> None:
        if not (callable(self.limit) or _is_count(self.limit)):
            raise BadOption(f"Retry(limit={self.limit!r}): limit must be an int of 0 or more, or a stop of tenacity")
        if not (callable(self.wait) or _is_delay(self.wait)):
            raise BadOption(f"Retry(wait={self.wait!r}): wait must be seconds of 0 or more, or a wait of tenacity")
        if not _are_error_types(self.on):
            raise BadOption(f"Retry(on={self.on!r}): on must be a tuple of exception types")
        if not isinstance(self.from_start, bool):
            raise BadOption(f"Retry(from_start={self.from_start!r}): from_start must be True or False")

    def next_delay(self, failures: int, error: BaseException, age: float = 0.0) -> float | None:
        """Seconds until the next attempt, or None for no more. `failures` in a row, this one included; `age` of the run."""
        later = _later(error)
        if later is not None:
            return later
        if (not callable(self.limit) and failures > self.limit) or not _matches(error, self.on):
            return None
        state = _state(failures, error, age)
        delay = min(max(float(self.wait(state) if callable(self.wait) else self.wait), 0.0), LONGEST)
        state.upcoming_sleep = delay
        return None if callable(self.limit) and self.limit(state) else delay


def _state(failures: int, error: BaseException, age: float) -> RetryCallState:
    """What the strategies of tenacity ask for: which attempt of those in a row has failed, and the time since the run's begin."""
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


def _later(error: BaseException) -> float | None:
    """What a RetryLater asks for; out of a TaskGroup it comes as a group, and the last of several counts."""
    if isinstance(error, RetryLater):
        return error.after
    if not isinstance(error, BaseExceptionGroup):
        return None
    asked = [_later(one) for one in error.exceptions]
    return None if None in asked else max(after for after in asked if after is not None)


def _matches(error: BaseException, types: tuple[type[BaseException], ...]) -> bool:
    """A group matches as itself, or where each of its errors does."""
    if isinstance(error, types):
        return True
    return isinstance(error, BaseExceptionGroup) and all(_matches(one, types) for one in error.exceptions)
