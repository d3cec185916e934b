"""How long a run may take, what an escalator is shown of it, and what it may say. Only nouns; who watches is elsewhere.

Times are seconds of the run's own time: over all its attempts (a crashed one until its worker's last heartbeat), not the waiting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.errors import BadOption
from coordinator.model.run import Note

# ---- what an escalator says


@dataclass(frozen=True, slots=True)
class Extend:
    """So many seconds more, from now on; then the escalator is asked again. The hard deadline stays where it is."""

    seconds: float

    def __post_init__(self) -> None:
        if not _is_time(self.seconds):
            raise BadOption(f"Extend({self.seconds!r}): the seconds must be more than 0")


@dataclass(frozen=True, slots=True)
class Kill:
    """The run ends as failed, and says why."""

    reason: str = "its escalator said so"


@dataclass(frozen=True, slots=True)
class Leave:
    """The attempt goes on, and the escalator is not asked again in it."""


Verdict = Extend | Kill | Leave


class DeadlineExceeded(TimeoutError):
    """What a run that was killed at a deadline has failed with; the message says which and why."""


# ---- what it is shown


@dataclass(frozen=True, slots=True)
class Watched:
    """A run as its escalator sees it. `age` is all the time that it has used, `idle` the part of it since its last progress."""

    id: str
    kind: str
    inputs: Mapping[str, Any]
    meta: Mapping[str, Any]
    attempt: int
    age: float
    idle: float
    iteration: int
    phases: tuple[str, ...]
    messages: tuple[Any, ...]  # the last ones of the transcript
    note: Note | None
    extensions: int
    extended: float
    deadline: Deadline


Escalator = Callable[[Watched], Verdict | Awaitable[Verdict]]


# ---- the deadlines of a kind


@dataclass(frozen=True, slots=True)
class Deadline:
    """Seconds: at `soft` the escalator decides, at `hard` the run is killed, after `progress` without any it is too."""

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
        return any(limit is not None for limit in (self.soft, self.hard, self.progress))


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 < value < 1e11


def extend_once(run: Watched) -> Verdict:
    """The escalator where none is given: the soft time once more, once per run, and then no more."""
    soft = run.deadline.soft or 0.0
    if run.extensions == 0:
        return Extend(soft)
    return Kill(f"its soft deadline of {soft:g} s has passed, and so has the time that it was given more")


# ---- what a run has used up


# The numbers in the field `spent` of a run, in their stored order: ms used, ms since the last progress, the progress counter then,
# the number of extensions, ms of all extensions.
SPENT_NUMBERS = ("used", "idle", "progress", "extensions", "extended")
_MOST_DIGITS = 15  # no time in milliseconds has more


@dataclass(frozen=True, slots=True)
class Spent:
    """What the attempts before have used. Kept by the scripts as numbers in one field (see lua/shared/run.lua)."""

    used: float = 0.0
    idle: float = 0.0
    extensions: int = 0
    extended: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Spent:
        """Nothing yet where nothing can be read, as in the scripts."""
        numbers = text.split()
        readable = all(number.isdecimal() and len(number) <= _MOST_DIGITS for number in numbers)
        if len(numbers) != len(SPENT_NUMBERS) or not readable:
            return cls()
        of = dict(zip(SPENT_NUMBERS, map(int, numbers), strict=True))
        return cls(of["used"] / 1000, of["idle"] / 1000, of["extensions"], of["extended"] / 1000)
