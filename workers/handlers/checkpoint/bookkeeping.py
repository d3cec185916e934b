"""The bookkeeping of a checkpoint: its waits, children and output, beside messages, state and phases.

The server stores this part as one field, `more`. The field is a row of netstrings, which Lua scripts can read: a name, its value,
the next name, and so on. A save sends the field only when it has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.encoding.netstrings import split_netstrings
from coordinator.model.policies.budget import Amount
from coordinator.store.plans.attempts import netstrings

_RECEIVED, _DEADLINE, _BASE, _EMITTED, _GRANTED, _LEFT = "received:", "deadline:", "base:", "emitted", "granted", "left"
_OUTSIDE = "wait:-:"  # the fields of steps that do not belong to a turn of `loop` begin with this


class Base(NamedTuple):
    """The ids of the children of a step: the id of the first child, and how many children were enqueued.

    Attributes:
        life: The life of the run in which the step began.
        id: The id of the first child. The ids of the other children count up from it.
        made: The number of children whose enqueue the server has confirmed.
        old: The base of the step in an earlier life, whose results the step keeps. Empty once the server knows the new base.
    """

    life: int
    id: str
    made: int
    old: str = ""


@dataclass(slots=True)
class Bookkeeping:
    """The signals that a run has received, the deadlines of its waits, the bases of its children, and its emitted events.

    Attributes:
        received: The number of the last signal that the run has received, by topic.
        deadlines: For each open wait, by its field, the server time in ms at which the wait ends.
        bases: The base of the children of each step, by the field of the step.
        emitted: The number of the last event that the run has emitted.
        granted: The amount that was granted to the run in addition to its budget.
        left: The bases of steps whose turn has ended, until the server has confirmed that they are dropped.
        unknown: Entries that a newer version has stored. A save stores them again, unchanged.
    """

    received: dict[str, int] = field(default_factory=dict)
    deadlines: dict[str, int] = field(default_factory=dict)
    bases: dict[str, Base] = field(default_factory=dict)
    emitted: int = 0
    granted: Amount = field(default_factory=Amount)
    left: list[str] = field(default_factory=list)
    unknown: dict[bytes, bytes] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Return the stored form of the bookkeeping. It is empty if there is nothing to store."""
        if not (self.received or self.deadlines or self.bases or self.emitted or self.left or self.unknown):
            return b""
        values: Mapping[str, object] = {
            **{_RECEIVED + topic: number for topic, number in self.received.items()},
            **{_DEADLINE + name: ms for name, ms in self.deadlines.items()},
            **{
                _BASE + name: f"{base.life} {base.id} {base.made} {base.old}".rstrip()
                for name, base in self.bases.items()
            },
            **({_EMITTED: self.emitted} if self.emitted else {}),
            **({_GRANTED: " ".join(map(str, self.granted))} if any(self.granted) else {}),
            **({_LEFT: " ".join(self.left)} if self.left else {}),
        }
        parts = [part for name, value in values.items() for part in (name.encode(), str(value).encode())]
        parts += [part for pair in self.unknown.items() for part in pair]
        return netstrings(parts)

    @classmethod
    def parse(cls, data: bytes) -> Bookkeeping:
        """Return the bookkeeping from its stored form.

        Raises:
            Unreadable: If the bytes are not netstrings, or a value is not a number.
        """
        found, parts = cls(), split_netstrings(data)
        for name, value in zip(parts[::2], parts[1::2], strict=True):
            text = name.decode()
            if text.startswith(_RECEIVED):
                found.received[text.removeprefix(_RECEIVED)] = int(value)
            elif text.startswith(_DEADLINE):
                found.deadlines[text.removeprefix(_DEADLINE)] = int(value)
            elif text.startswith(_BASE):
                life, id, made, *old = value.decode().split(" ")
                found.bases[text.removeprefix(_BASE)] = Base(int(life), id, int(made), *old)
            elif text == _EMITTED:
                found.emitted = int(value)
            elif text == _GRANTED:
                found.granted = Amount(*map(int, value.split()))
            elif text == _LEFT:
                found.left = value.decode().split()
            else:
                found.unknown[name] = value
        return found

    def end_turn(self) -> None:
        """Drop the deadlines of waits and the bases of steps inside a turn of `loop`."""
        self.left += [
            id for name, base in self.bases.items() if not name.startswith(_OUTSIDE) for id in (base.id, base.old) if id
        ]
        for by_field in (self.deadlines, self.bases):
            for name in [name for name in by_field if not name.startswith(_OUTSIDE)]:
                del by_field[name]
