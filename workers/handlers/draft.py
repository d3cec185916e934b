"""A run's checkpoint in the making: messages, state, iteration, phases. The handler changes it; a cut freezes it.

A cut is a moment at which what is held may be saved. Between cuts nothing is. A phase's end is a cut too: what a turn appended
before it is there when the turn is begun again, and the handler has to look (`open_calls`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import decode
from coordinator.errors import Refused, TooLarge, Unreadable
from workers.handlers.messages import Messages, kept, unchunk

CHECKPOINT_LIMIT = 64 * 1024 * 1024
RESULT_LIMIT = 8 * 1024 * 1024
INPUTS = "inputs"  # kept beside the phases where a migration changed what the handler is called with


class Cut(NamedTuple):
    """What was held at a cut. `packed` is shared with the transcript, which only grows: `length` says how much of it counts."""

    packed: list[bytes]
    length: int
    generation: int
    state: bytes
    iteration: int
    phases: Mapping[str, bytes]


@dataclass(slots=True)
class Draft:
    """What a handler works on. Only the handler's thread touches it."""

    messages: Messages = field(default_factory=Messages)
    state: dict[str, Any] = field(default_factory=dict)
    iteration: int = 0
    phases: dict[str, bytes] = field(default_factory=dict)
    turn: int | None = None
    _seen: dict[str, int] = field(default_factory=dict)
    _at_once: set[str] = field(default_factory=set)
    _state_at: dict[str, bytes] = field(default_factory=dict)

    def cut(self) -> Cut:
        """Freezes what is held. What can't be kept raises here, with its place."""
        state = self._packed_state()
        size = self.messages.size + len(state) + sum(map(len, self.phases.values()))
        if size > CHECKPOINT_LIMIT:
            raise TooLarge(
                f"the checkpoint (messages, state and phases) has {size:,} bytes, and the limit is {CHECKPOINT_LIMIT:,}: "
                "shorten the transcript with run.messages.replace(…)"
            )
        messages = self.messages
        return Cut(messages.packed, len(messages.packed), messages.generation, state, self.iteration, dict(self.phases))

    def _packed_state(self) -> bytes:
        return kept(self.state, "state", CHECKPOINT_LIMIT) if self.state else b""

    def end_turn(self, turn: int) -> None:
        """The turn is complete: its phases go with it."""
        self.iteration = turn + 1
        self.turn = None
        for told in (self.phases, self._seen, self._state_at):
            for name in [name for name in told if name != INPUTS and not name.startswith("phase:-:")]:
                del told[name]

    def begin_phase(self, name: str) -> str:
        """The field of the next phase of this name: told apart by name, equal names by order, inside a turn by the turn."""
        if str(name) != name or not 1 <= len(name) <= 200 or not name.isprintable():
            raise Refused(f"a phase needs a name of 1 to 200 printable characters, not {name!r:.220}")
        scope = f"phase:{'-' if self.turn is None else self.turn}:{name}"
        if scope in self._at_once:
            raise Refused(f"phase {name!r} is under way already: equal names at once can't be told apart")
        count, state = self._seen.get(scope, 0), self._packed_state()
        if count and state != self._state_at[scope]:
            raise Refused(
                f"phase {name!r} was there before run.state changed: resumed, the two can't be told apart; give each a name"
            )
        self._seen[scope], self._state_at[scope] = count + 1, state
        self._at_once.add(scope)
        return f"{scope}#{count}"

    def end_phase(self, field: str, output: bytes | None) -> None:
        """The phase is over; without an output it did not complete."""
        scope = field.rpartition("#")[0]
        self._at_once.discard(scope)
        if output is not None:
            self.phases[field] = output
        elif scope in self._seen:  # not where its turn is over
            self._seen[scope] -= 1


def loaded(parts: Any) -> tuple[Draft, CheckpointHead, list[Any]]:
    """A draft from the stored parts (ckpt fields, message chunks); and the messages that a release left unfinished. Unreadable
    where the bytes are not those of a checkpoint."""
    try:
        return _loaded(parts)
    except (TypeError, ValueError) as error:  # a name that is no text, an index that is no number, a list that is none
        raise Unreadable(f"the checkpoint can't be read: {error}") from error
    except RecursionError:
        raise Unreadable("the checkpoint can't be read: its messages are nested too deep") from None


def _loaded(parts: Any) -> tuple[Draft, CheckpointHead, list[Any]]:
    fields = {name.decode(): value for name, value in _pairs(parts[0])}
    if "head" not in fields:
        raise Unreadable("the checkpoint has no head")
    head = CheckpointHead.parse(fields["head"])
    chunks = sorted((int(index), data) for index, data in _pairs(parts[1]))
    items: list[tuple[bytes, Any]] = []
    for index, data in chunks:
        if index != len(items):
            raise Unreadable(f"messages {len(items)} to {index} of the checkpoint are missing")
        items += unchunk(data, f"messages[{index}]")
    if len(items) != head.length:
        raise Unreadable(f"the checkpoint has {len(items)} messages, and its head says {head.length}")
    state = decode(fields["state"], "state") if fields.get("state") else {}
    if not isinstance(state, dict):
        raise Unreadable("the state in the checkpoint is not a dict")
    draft = Draft(Messages(items, head.generation), state, head.iteration)
    draft.phases = {name: value for name, value in fields.items() if name.startswith("phase:") or name == INPUTS}
    unfinished = decode(fields["unfinished"], "unfinished") if fields.get("unfinished") else []
    return draft, head, list(unfinished)


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
