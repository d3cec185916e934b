"""The facts of a run that do not change during an attempt, and the exception that stops its handler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordinator.model.outcome import Why
from coordinator.model.policies.budget import Amount, Budget
from coordinator.model.run import Failure


class Stopped(BaseException):
    """The exception that asks a handler to stop. Let the exception propagate: clean up in `finally`, or re-raise it.

    Stopped is a BaseException, so that `except Exception` does not catch it by accident. It is not a CancelledError, because a
    TaskGroup would swallow a CancelledError.

    Attributes:
        why: "drain" (the worker is shutting down, and the run continues on another worker), "cancel" (the run was cancelled),
            "deadline" (a deadline of the run has passed), "wait" (the run is suspended until its wait is over) or "lost" (the run
            belongs to another worker now, so this attempt can save nothing more).
    """

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why: Why = why


@dataclass(frozen=True, slots=True)
class Resumed:
    """The reason why a run was started again, and facts about its previous attempt.

    Attributes:
        cause: "release" (a worker that was shutting down released the run), "recover" (the worker was lost), "retry" (the attempt
            failed), "revive" (an operator revived the run) or "wake" (the wait of the run is over).
        age: Seconds since the checkpoint was saved. None if there is no checkpoint.
        worker: The id of the worker that had the run before.
        code: The code version of that worker.
        unfinished: The messages that were appended after the last cut. They are not part of `run.messages`.
        reason: The reason of a wake: "signal <topic>", "children" or "time". Empty for other causes.
        killed: The error with which the run's previous life was killed at a deadline, if an operator revived the run after that.
    """

    cause: str
    age: float | None
    worker: str
    code: str
    unfinished: tuple[Any, ...]
    killed: Failure | None = None
    reason: str = ""


class Facts(NamedTuple):
    """The properties of a run that do not change during an attempt."""

    id: str
    kind: str
    inputs: Mapping[str, Any]
    meta: Mapping[str, Any]
    attempt: int
    token: str
    resumed: Resumed | None
    budget: Budget | None = None
    spent: Amount = Amount()  # the amount that earlier attempts and children have spent
