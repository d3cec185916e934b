"""The record of a run that a program executes itself.

A record exists while its run is under way or interrupted. The end of the run deletes the record; a shutdown of the
program does not. Phases are recorded when they complete: a resumed run skips the completed phases, and repeats the
interrupted phase from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypeVar, overload

from coordinator.encoding.codec import decode, encode
from coordinator.errors import BadName, BadOption, Refused

T = TypeVar("T")

ID_LIMIT = 200
MESSAGE_LIMIT = 8 * 1024 * 1024


class Fenced(Refused):
    """The error for a process whose run was taken over by another process.

    The process must stop executing the run, because the store accepts no more saves from it.
    """


def taken_over(run_id: str) -> Fenced:
    """Return the error for a process that no longer owns a run."""
    return Fenced(f"run {run_id} was taken over by another process: stop executing it. Nothing was saved or deleted")


def check_run_id(text: str) -> str:
    """Return the text if it is a valid run id.

    Raises:
        BadName: If the text is not 1 to 200 printable characters.
    """
    if not 1 <= len(text) <= ID_LIMIT or not text.isprintable():
        raise BadName(f"run id {text!r:.220} is not valid: use 1 to {ID_LIMIT} printable characters")
    return text


@dataclass(frozen=True, slots=True)
class Meta:
    """The facts that a program needs to start a run again from the beginning. Only `run_id` is required."""

    run_id: str
    agent_id: str = ""
    agent_name: str = ""
    caller_id: str = ""
    channel_id: str = ""
    guild_id: str = ""
    prompt: str = ""
    model_tier: str = ""
    parent_run_id: str = ""

    def __post_init__(self) -> None:
        check_run_id(self.run_id)

    @classmethod
    def of(cls, info: Meta | Mapping[str, Any]) -> Meta:
        """Return the metadata of a run, from a mapping that has its fields as keys.

        Args:
            info: A `Meta`, which is returned as it is, or a mapping with its fields as keys. Other keys are ignored, except that a
                missing `prompt` is taken from `info["inputs"]["prompt"]`.

        Raises:
            BadOption: If the mapping has no `run_id`.
        """
        if isinstance(info, Meta):
            return info
        inputs = info.get("inputs")
        asked = inputs.get("prompt") if isinstance(inputs, Mapping) else None
        found: dict[str, Any] = {"prompt": asked if isinstance(asked, str) else ""}
        found |= {name.name: info[name.name] for name in fields(cls) if info.get(name.name) is not None}
        if "run_id" not in found:
            raise BadOption("the metadata of a run must have a run_id")
        return cls(**{name: str(value) for name, value in found.items()})


@dataclass(frozen=True, slots=True)
class Phase:
    """A completed phase of a run, with its output."""

    name: str
    output: Any = None


class Transcript(Sequence[Any]):
    """An immutable list of messages. The messages are kept as bytes, and each is decoded when it is read."""

    __slots__ = ("packed",)

    def __init__(self, messages: Iterable[Any]) -> None:
        if isinstance(messages, Transcript):
            self.packed: tuple[bytes, ...] = messages.packed
        else:
            packed = (encode(item, f"messages[{i}]", MESSAGE_LIMIT) for i, item in enumerate(messages))
            self.packed = tuple(packed)

    def __len__(self) -> int:
        return len(self.packed)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [decode(data, "message") for data in self.packed[index]]
        return decode(self.packed[index], "message")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Transcript):
            return self.packed == other.packed
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a list has no hash either

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The record of a run: all data of the run that a store saves.

    Attributes:
        meta: The facts that are needed to start the run again.
        messages: The messages so far, as plain data.
        iteration: A count of the run's progress. The program chooses what it counts.
        phases: The completed phases, in order.
        state: A small dict of plain data.
        updated_at: When the program made the record.
        schema: The version of the program's own data, from 1 to 99.
        seq: The number of the save. It grows with every save. A store ignores a save with a lower number than the stored one. With
            0 the store chooses the number, so that this save is the newest.
    """

    meta: Meta
    messages: Sequence[Any] = ()
    iteration: int = 0
    phases: tuple[Phase, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    updated_at: datetime | None = None
    schema: int = 1
    seq: int = 0

    def __post_init__(self) -> None:
        if self.iteration < 0 or self.seq < 0:
            raise BadOption(f"iteration {self.iteration!r} and seq {self.seq!r} must be 0 or more")
        if not 1 <= self.schema <= 99:
            raise BadOption(f"schema {self.schema!r} is not within 1..99")

    def frozen(self) -> Checkpoint:
        """Return a copy that does not change when the program changes its messages, state or outputs.

        Raises:
            NotPlain: If a value is not plain data.
            TooLarge: If a value is too large.
        """
        return replace(
            self,
            messages=Transcript(self.messages),
            phases=tuple(Phase(phase.name, _copy(phase.output, f"phase {phase.name!r}")) for phase in self.phases),
            state=_copy(dict(self.state), "state"),
        )


def _copy(value: T, place: str) -> T:
    copy: T = decode(encode(value, place), place)
    return copy


class Phases:
    """The phases of one execution of a run: which ones to skip, and which ones to save.

    A phase that an earlier execution completed is returned once, so that a run may have several phases of the same name.

    Args:
        completed: The phases of the record from which the run resumes.
    """

    def __init__(self, completed: Iterable[Phase] = ()) -> None:
        # Phases of earlier executions and phases of this execution are kept apart. Otherwise a new run with two phases of the
        # same name would skip the second one.
        self._earlier = list(completed)
        self._completed: list[Phase] = []

    def earlier(self, name: str) -> Phase | None:
        """Return the next phase of this name that an earlier execution completed, or None.

        If there is one, skip the phase and use its output.
        """
        for index, phase in enumerate(self._earlier):
            if phase.name == name:
                self._completed.append(self._earlier.pop(index))
                return phase
        return None

    def complete(self, name: str, output: Any = None) -> None:
        """Add a phase that this execution has completed."""
        self._completed.append(Phase(name, output))

    @property
    def completed(self) -> tuple[Phase, ...]:
        """All phases to save, in order. Earlier phases that this execution has not reached yet come last."""
        return (*self._completed, *self._earlier)
