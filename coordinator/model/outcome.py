"""The endings of attempts, and the outcomes that follow for their runs.

An ending says how a handler ended. An outcome says what the worker does with the run. `classify` is the only function that decides
the outcome. It has no side effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from coordinator.model.policies.retry import Retry, RetryLater

Why = Literal["drain", "cancel", "deadline", "wait", "lost"]

# ---- how an attempt ended


@dataclass(frozen=True, slots=True)
class Returned:
    """The ending of a handler that returned a value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The ending of a handler that raised an exception.

    Attributes:
        error: The exception.
        stop: True if the exception is a stop or a cancellation, which is not a failure of the handler.
    """

    error: BaseException
    stop: bool = False


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The ending of an attempt that did not reach the handler's first line."""

    error: BaseException


Ending = Returned | Raised | NotStarted

# ---- the outcome for the run


@dataclass(frozen=True, slots=True)
class Complete:
    """The outcome that completes the run with a value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fail:
    """The outcome that fails the run with an error."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The outcome that retries the run after a delay.

    Attributes:
        error: The error that the handler raised.
        delay: Seconds until the next attempt.
        from_start: True if the next attempt starts without the checkpoint.
    """

    error: BaseException
    delay: float
    from_start: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """The outcome that releases the run, so that another worker continues it.

    Attributes:
        stopping: True if the worker was asked to stop the run. Then the release neither delays the run nor counts as a strike.
        warning: A text for the log; may be empty.
    """

    stopping: bool
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Suspend:
    """The outcome that suspends the run on the server until its wait ends.

    Attributes:
        warning: A text for the log; may be empty.
    """

    warning: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """The outcome that delays the run, because its handler could not be started."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Nothing:
    """The outcome in which the worker writes nothing, because it has lost the run and another worker may own it."""


Outcome = Complete | Fail | TryAgain | Release | Suspend | Reject | Nothing


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to stop the handler of a run.

    Attributes:
        why: The reason: drain, cancel, deadline, wait (the handler waits, and the run is suspended), or lost (the worker does not
            own the run any more).
        delivered: True if the stop exception was raised in the handler.
        error: The error with which the run fails, if a deadline killed it.
    """

    why: Why
    delivered: bool
    error: BaseException | None = None


def classify(ending: Ending, stop: Stop | None, retry: Retry, failures: int, age: float = 0.0) -> Outcome:
    """Return the outcome for the run after an attempt.

    Args:
        ending: How the attempt ended.
        stop: The stop that was requested, if any.
        retry: The retry policy of the kind.
        failures: The number of failed attempts in a row before this one.
        age: Seconds since the run was created.
    """
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
        return Release(stopping=False, warning="the handler raised the stop exception without a stop request")
    if isinstance(ending.error, (KeyboardInterrupt, SystemExit)):
        return Fail(ending.error)
    try:
        delay = retry.next_delay(failures + 1, ending.error, age)
    except Exception as error:  # noqa: BLE001  # the user's retry policy raised: the run must still end
        return Fail(error)
    return Fail(ending.error) if delay is None else TryAgain(ending.error, delay, retry.from_start)


def _stopped(ending: Ending, stop: Stop) -> Outcome:
    """Return the outcome of an attempt that was stopped. A result or an error of the handler after the stop is not used."""
    if stop.why == "deadline":
        late = stop.error or TimeoutError("the run was stopped at its deadline")
        if not isinstance(ending, Returned):
            late.__cause__ = ending.error  # its traceback shows where the handler was
        return Fail(late)
    warning = ""
    if isinstance(ending, Returned):
        warning = "the handler caught the stop exception and returned: its result is discarded"
    elif isinstance(ending, Raised) and not ending.stop and not isinstance(ending.error, RetryLater):
        warning = f"after the stop, the handler raised {type(ending.error).__name__}"
    return Suspend(warning) if stop.why == "wait" else Release(stopping=True, warning=warning)
