"""When a failed run is tried again. A pure decision: it keeps no count and waits for nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tenacity import Future, RetryCallState
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
    """Again up to `limit` times in a row for errors of the types in `on`; `wait` is seconds or a wait of tenacity."""

    limit: int = 0
    wait: WaitBaseT | float = DEFAULT_WAIT
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if not _is_count(self.limit):
            raise BadOption(f"Retry(limit={self.limit!r}): limit must be an int of 0 or more")
        if not (callable(self.wait) or _is_delay(self.wait)):
            raise BadOption(f"Retry(wait={self.wait!r}): wait must be seconds of 0 or more, or a wait of tenacity")
        if not _are_error_types(self.on):
            raise BadOption(f"Retry(on={self.on!r}): on must be a tuple of exception types")

    def next_delay(self, failures: int, error: BaseException) -> float | None:
        """Seconds until the next attempt, or None for no more. `failures` in a row, this one included."""
        later = _later(error)
        if later is not None:
            return later
        if failures > self.limit or not _matches(error, self.on):
            return None
        return min(max(float(self._delay(failures, error)), 0.0), LONGEST)

    def _delay(self, failures: int, error: BaseException) -> float:
        if not callable(self.wait):
            return self.wait
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        state.attempt_number = failures
        state.outcome = Future(failures)
        state.outcome.set_exception(error)
        return self.wait(state)


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
