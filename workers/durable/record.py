"""The checkpoint of a run that a program executes by itself, and what a place to keep it must do.

A checkpoint that is there means: this run was under way and has not ended. Completing and failing delete it, a shutdown does not.
Phases are kept at their boundaries: a resumed run skips those that completed, and the one that was interrupted begins anew.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

from coordinator.encoding.codec import decode, encode
from coordinator.errors import BadName, BadOption, Refused

T = TypeVar("T")

ID_LIMIT = 200
MESSAGE_LIMIT = 8 * 1024 * 1024


class Fenced(Refused):
    """Another process has taken the run over: nothing of this one is kept any more, and it has to stop."""


# ---- nouns -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Meta:
    """Whose run it is: what is needed to start it again from nothing."""

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
        valid_id(self.run_id)

    @classmethod
    def of(cls, info: Meta | Mapping[str, Any]) -> Meta:
        """From what an executor knows of a run: the names above; the prompt may also stand among its inputs."""
        if isinstance(info, Meta):
            return info
        inputs = info.get("inputs")
        asked = inputs.get("prompt") if isinstance(inputs, Mapping) else None
        found: dict[str, Any] = {"prompt": asked if isinstance(asked, str) else ""}
        found |= {name.name: info[name.name] for name in fields(cls) if info.get(name.name) is not None}
        if "run_id" not in found:
            raise BadOption("what is known of a run must have its run_id")
        return cls(**{name: str(value) for name, value in found.items()})


def valid_id(text: str) -> str:
    """The text, if a run may be called so."""
    if not 1 <= len(text) <= ID_LIMIT or not text.isprintable():
        raise BadName(f"run id {text!r:.220} is none: 1 to {ID_LIMIT} printable characters")
    return text


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase that completed."""

    name: str
    output: Any = None


class Transcript(Sequence[Any]):
    """Messages as they were when they were handed over: kept as bytes, read when they are asked for."""

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

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is kept of a run. `seq` grows with every save; 0 leaves the number to the store, which makes it the newest."""

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
            raise BadOption("iteration and seq of a checkpoint are 0 or more")
        if not 1 <= self.schema <= 99:
            raise BadOption(f"schema {self.schema!r} is not within 1..99")

    def frozen(self) -> Checkpoint:
        """A copy that later changes of its messages, state and outputs don't reach. What can't be kept is refused."""
        return replace(
            self,
            messages=Transcript(self.messages),
            phases=tuple(Phase(phase.name, _copied(phase.output, f"phase {phase.name!r}")) for phase in self.phases),
            state=_copied(dict(self.state), "state"),
        )


def _copied(value: T, place: str) -> T:
    copy: T = decode(encode(value, place), place)
    return copy


class Phases:
    """The phases of one attempt: what an earlier one completed is given back once, in order, also where names are equal."""

    def __init__(self, completed: Iterable[Phase] = ()) -> None:
        # apart from what completes now: else the second of two phases of one name would be skipped in a fresh run
        self._left = list(completed)
        self._completed: list[Phase] = []

    def earlier(self, name: str) -> Phase | None:
        """The next phase of this name, if it has completed before: it is to be skipped, and its output used."""
        for index, phase in enumerate(self._left):
            if phase.name == name:
                self._completed.append(self._left.pop(index))
                return phase
        return None

    def complete(self, name: str, output: Any = None) -> None:
        """A phase of this attempt has completed."""
        self._completed.append(Phase(name, output))

    @property
    def completed(self) -> tuple[Phase, ...]:
        """All that is to be kept, in order; those that this attempt has not come to again are last."""
        return (*self._completed, *self._left)


# ---- places to keep them ---------------------------------------------------------------------------------------------


class CheckpointStore(Protocol):
    """Keeps checkpoints by run id. Whoever brings a store of their own implements these four."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Kept when it returns. A lower seq than the stored one changes nothing, an equal one is a repetition."""
        ...

    def load(self, run_id: str) -> Checkpoint | None:
        """The checkpoint; None where there is none: the run ended, or never saved. Unreadable where it is corrupt."""
        ...

    def delete(self, run_id: str) -> None:
        """The run has ended; one without a checkpoint is fine."""
        ...

    def list_interrupted(self) -> list[Checkpoint]:
        """Every checkpoint that is left, for a start to recover from; not those of other processes that are alive."""
        ...


class AsyncCheckpointStore(Protocol):
    """The same in an event loop."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """Kept when it returns. A lower seq than the stored one changes nothing, an equal one is a repetition."""
        ...

    async def load(self, run_id: str) -> Checkpoint | None:
        """The checkpoint; None where there is none: the run ended, or never saved. Unreadable where it is corrupt."""
        ...

    async def delete(self, run_id: str) -> None:
        """The run has ended; one without a checkpoint is fine."""
        ...

    async def list_interrupted(self) -> list[Checkpoint]:
        """Every checkpoint that is left, for a start to recover from; not those of other processes that are alive."""
        ...


@runtime_checkable
class Claims(Protocol):
    """What a store may offer besides: recovery by several processes that start at once."""

    def claim_interrupted(self) -> Iterator[Checkpoint]:
        """Interrupted runs that nobody executes, each taken over when it is given out: no other process gets it, too."""
        ...


@runtime_checkable
class AsyncClaims(Protocol):
    """The same in an event loop."""

    def claim_interrupted(self) -> AsyncIterator[Checkpoint]:
        """Interrupted runs that nobody executes, each taken over when it is given out: no other process gets it, too."""
        ...


# ---- order -----------------------------------------------------------------------------------------------------------


class Numbers:
    """Numbers that grow within a process, and as a rule also from one process to the next: never below the time in ms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self, now: float, after: int = 0) -> int:
        with self._lock:
            self._last = max(self._last + 1, after + 1, int(now * 1000))
            return self._last


# one for the process: two handles of one run, one after the other, never give the same number to different content
NUMBERS = Numbers()
