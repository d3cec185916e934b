"""Deadlines: how long a run may take, the view of a run for its escalator, and the verdicts of an escalator.

Times are seconds of the run's own time: the sum of its attempts, without the time in which it waits. A crashed attempt counts until
its worker's last heartbeat. workers/attempt/deadlines/critic.py watches the deadlines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.errors import BadOption
from coordinator.model.run import Note

# ---- what an escalator may decide


@dataclass(frozen=True, slots=True)
class Extend:
    """The verdict that gives the run more seconds from now on. When they have passed, the escalator is asked again.

    The hard deadline does not move.
    """

    seconds: float

    def __post_init__(self) -> None:
        if not _is_time(self.seconds):
            raise BadOption(f"Extend({self.seconds!r}): seconds must be more than 0")


@dataclass(frozen=True, slots=True)
class Kill:
    """The verdict that fails the run, with a reason."""

    reason: str = "its escalator said so"


@dataclass(frozen=True, slots=True)
class Leave:
    """The verdict that lets the attempt continue. The escalator is not asked again during this attempt."""


Verdict = Extend | Kill | Leave


class DeadlineExceeded(TimeoutError):
    """The error of a run that was killed at a deadline. Its message says which deadline and why."""


# ---- what an escalator sees


@dataclass(frozen=True, slots=True)
class Watched:
    """A run as its escalator sees it.

    Attributes:
        id: The id of the run.
        kind: The kind of its handler.
        inputs: Its inputs.
        meta: Its meta.
        attempt: The number of this attempt.
        age: Seconds that the run has used.
        idle: The part of `age` since the run's last progress.
        iteration: The handler's iteration.
        phases: The finished phases.
        messages: The last messages of the transcript.
        note: The handler's last note.
        extensions: Number of extensions so far.
        extended: Seconds of all extensions.
        deadline: The deadlines of the kind.
    """

    id: str
    kind: str
    inputs: Mapping[str, Any]
    meta: Mapping[str, Any]
    attempt: int
    age: float
    idle: float
    iteration: int
    phases: tuple[str, ...]
    messages: tuple[Any, ...]
    note: Note | None
    extensions: int
    extended: float
    deadline: Deadline


Escalator = Callable[[Watched], Verdict | Awaitable[Verdict]]


# ---- the deadlines of a kind


@dataclass(frozen=True, slots=True)
class Deadline:
    """The deadlines of a kind, in seconds. None means that there is no such deadline.

    Attributes:
        soft: The escalator decides when the run has used this time.
        hard: The run is killed when it has used this time.
        progress: The run is killed after this time without progress.
        escalator: A function or coroutine function that gets a `Watched` and returns `Extend`, `Kill` or `Leave`. Without one, the
            run gets the soft time once more, and is killed after that.
    """

    soft: float | None = None
    hard: float | None = None
    progress: float | None = None
    escalator: Escalator | None = None

    def __post_init__(self) -> None:
        for what in ("soft", "hard", "progress"):
            value = getattr(self, what)
            if value is not None and not _is_time(value):
                raise BadOption(f"Deadline({what}={value!r}): {what} must be more than 0 seconds")
        if self.soft is not None and self.hard is not None and self.soft >= self.hard:
            raise BadOption(f"Deadline(soft={self.soft!r}, hard={self.hard!r}): soft must come before hard")
        if self.escalator is not None and not callable(self.escalator):
            raise BadOption(f"Deadline(escalator={self.escalator!r}): escalator must be callable")
        if self.escalator is not None and self.soft is None:
            raise BadOption("Deadline(escalator=…) needs soft=, the time at which the escalator is asked")

    @property
    def watched(self) -> bool:
        """Return True if the kind has any deadline."""
        return any(limit is not None for limit in (self.soft, self.hard, self.progress))


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 < value < 1e11


def extend_once(run: Watched) -> Verdict:
    """Decide as the default escalator: extend a run by its soft time once, and kill it the next time."""
    soft = run.deadline.soft or 0.0
    if run.extensions == 0:
        return Extend(soft)
    return Kill(f"its soft deadline of {soft:g} s has passed, and its extension is used up")


# ---- the time that a run has used


# The numbers in the field `spent` of a run, in their stored order: ms used, ms since the last progress, the progress counter then,
# the number of extensions, ms of all extensions.
SPENT_NUMBERS = ("used", "idle", "progress", "extensions", "extended")
_MOST_DIGITS = 15  # no time in milliseconds has more


@dataclass(frozen=True, slots=True)
class Spent:
    """The time that the earlier attempts of a run have used, in seconds.

    Attributes:
        used: The whole time.
        idle: The part of the time since the last progress.
        extensions: Number of extensions.
        extended: Seconds of all extensions.
    """

    used: float = 0.0
    idle: float = 0.0
    extensions: int = 0
    extended: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Spent:
        """Return the times from the text of a run's field `spent`. If it can't be read, all are 0, as in the scripts."""
        numbers = text.split()
        readable = all(number.isdecimal() and len(number) <= _MOST_DIGITS for number in numbers)
        if len(numbers) != len(SPENT_NUMBERS) or not readable:
            return cls()
        of = dict(zip(SPENT_NUMBERS, map(int, numbers), strict=True))
        return cls(of["used"] / 1000, of["idle"] / 1000, of["extensions"], of["extended"] / 1000)
