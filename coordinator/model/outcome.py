"""How an attempt ended, and what becomes of its run. One pure function decides, on every way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from coordinator.model.retry import Retry, RetryLater

Why = Literal["drain", "cancel", "deadline", "lost"]

# ---- how an attempt ended


@dataclass(frozen=True, slots=True)
class Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """`stop`: it is the stop exception. `own`: it is the worker's own connection that could not be reached."""

    error: BaseException
    stop: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class NotStarted:
    """It ended before the handler's first line."""

    error: BaseException


Ending = Returned | Raised | NotStarted

# ---- what becomes of the run


@dataclass(frozen=True, slots=True)
class Complete:
    value: Any


@dataclass(frozen=True, slots=True)
class Fail:
    error: BaseException


@dataclass(frozen=True, slots=True)
class TryAgain:
    error: BaseException
    delay: float
    from_start: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """`stopping`: the worker was asked to, and it costs the run nothing. `warning` is for the log."""

    stopping: bool
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    error: BaseException


@dataclass(frozen=True, slots=True)
class Nothing:
    """The token is lost: whatever would be written is another's."""


Outcome = Complete | Fail | TryAgain | Release | Reject | Nothing


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop that was asked for; `delivered`: an exception was put into the handler because of it; `error`: what a killed run fails
    with."""

    why: Why
    delivered: bool
    error: BaseException | None = None


def classify(ending: Ending, stop: Stop | None, retry: Retry, failures: int, age: float = 0.0) -> Outcome:
    """What becomes of the run. `failures` in a row, before this attempt; `age` of the run in seconds."""
    if stop is not None and stop.why == "lost":
        return Nothing()
    if isinstance(ending, NotStarted):
        if stop is not None and stop.why == "deadline":
            return _stopped(ending, stop)
        return Release(stopping=True) if stop is not None else Reject(ending.error)
    if stop is not None and (stop.delivered or (isinstance(ending, Raised) and ending.stop)):
        return _stopped(ending, stop)
    if isinstance(ending, Returned):
        return Complete(ending.value)
    if ending.stop:
        return Release(
            stopping=False, warning="the handler raised the stop exception while nobody had asked it to stop"
        )
    if ending.own:
        return Release(stopping=False, warning="the server could not be reached from within the handler")
    if isinstance(ending.error, (KeyboardInterrupt, SystemExit)):
        return Fail(ending.error)
    try:
        delay = retry.next_delay(failures + 1, ending.error, age)
    except Exception as error:  # noqa: BLE001  # a policy of the user's own that raises: the run must come to an ending
        return Fail(error)
    return Fail(ending.error) if delay is None else TryAgain(ending.error, delay, retry.from_start)


def _stopped(ending: Ending, stop: Stop) -> Outcome:
    """Once a stop was delivered, whatever comes out counts as that stop."""
    if stop.why == "deadline":
        late = stop.error or TimeoutError("it was stopped at its deadline")
        if not isinstance(ending, Returned):
            late.__cause__ = ending.error  # its traceback says where the handler was
        return Fail(late)
    if isinstance(ending, Returned):
        return Release(
            stopping=True, warning="the handler swallowed the stop and returned: its result is not taken for success"
        )
    if isinstance(ending, Raised) and not ending.stop and not isinstance(ending.error, RetryLater):
        return Release(stopping=True, warning=f"after the stop {type(ending.error).__name__} came out of the handler")
    return Release(stopping=True)
