"""The checkpoint that a handler works on: messages, state, iteration and phases.

The handler changes the draft. A cut freezes the draft, and only cuts are saved. The end of a phase is a cut too, so a cut may
be in the middle of a turn: messages that the turn appended before a phase are still there when the turn begins again. The handler
must expect such messages, for example with `open_calls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from coordinator.encoding.checkpoint_head import NO_CHECKPOINT, CheckpointHead
from coordinator.encoding.codec import decode
from coordinator.errors import NotPlain, Refused, TooLarge, Unreadable
from workers.handlers.checkpoint.bookkeeping import Bookkeeping
from workers.handlers.checkpoint.messages import Messages, encode_plain, unchunk
from workers.handlers.checkpoint.phase_table import PhaseTable

CHECKPOINT_LIMIT = 64 * 1024 * 1024
RESULT_LIMIT = 8 * 1024 * 1024
NO_PHASES: Mapping[str, bytes] = MappingProxyType({})
MOST_WAITS = 1000  # the limit of waits outside of a loop, because each of them stays in the checkpoint
INPUTS = "inputs"  # stored beside the phases if a migration has changed the inputs of the handler


# The field of the phase whose function is running. Empty outside of phases.
current_phase: ContextVar[str] = ContextVar("current_phase", default="")


class Cut(NamedTuple):
    """The content of a draft at a cut.

    Attributes:
        packed: The encoded messages. The list is shared with the transcript, which only grows.
        length: How many of the messages belong to this cut.
        generation: The number of the transcript. It grows when the transcript is replaced.
        state: The encoded state.
        iteration: The number of completed turns.
        phases: The encoded outputs of the phases and of the waits that are over, and the effects, by field.
        bookkeeping: The encoded bookkeeping, which the server stores in the field `more`; empty if there is none.
        emitted: The number of the last event that was emitted before this cut.
    """

    packed: list[bytes]
    length: int
    generation: int
    state: bytes
    iteration: int
    phases: Mapping[str, bytes]
    bookkeeping: bytes = b""
    emitted: int = 0


@dataclass(slots=True)
class Draft:
    """The content of a run's next checkpoint. Only the handler's thread changes the draft.

    Attributes:
        messages: The transcript.
        state: The handler's own values.
        iteration: The number of completed turns.
        phases: The encoded outputs of the phases and of the waits that are over, and the effects, by field.
        turn: The number of the turn that is running; None outside of `loop`.
        bookkeeping: The waits, children and events of the run.
        last_wait: The field of the last wait that began.
    """

    messages: Messages = field(default_factory=Messages)
    state: dict[str, Any] = field(default_factory=dict)
    iteration: int = 0
    phases: dict[str, bytes] = field(default_factory=dict)
    turn: int | None = None
    bookkeeping: Bookkeeping = field(default_factory=Bookkeeping)
    last_wait: str = ""
    _waiting: bool = False
    _turn_start: tuple[int, int, bytes | None] = (
        0,
        0,
        None,
    )  # generation, length and encoded state when the turn began
    _cut_state: bytes | None = None  # the encoded state at the last cut; None if it is unknown or cannot be stored
    _seen: dict[str, int] = field(default_factory=dict)  # how many phases and waits of each name have begun
    _running: set[str] = field(default_factory=set)  # the phases and effects that are running
    _state_at: dict[str, bytes] = field(default_factory=dict)  # the encoded state when the last phase of a name began
    _calls_at: dict[str, set[str]] = field(default_factory=dict)  # the open tool calls at the first wait of a name

    def cut(self) -> Cut:
        """Return the frozen content of the draft.

        Raises:
            NotPlain: If the state contains a value that cannot be stored. The message names its place.
            TooLarge: If the checkpoint exceeds its limit.
        """
        state = self._cut_state = self._packed_state()
        size = self._size_with(state)
        if size > CHECKPOINT_LIMIT:
            raise TooLarge(
                f"the checkpoint (messages, state and phases) has {size:,} bytes, and the limit is {CHECKPOINT_LIMIT:,}: "
                "shorten the transcript with run.messages.replace(…)"
            )
        messages = self.messages
        return Cut(
            messages.packed,
            len(messages.packed),
            messages.generation,
            state,
            self.iteration,
            self._phase_table().snapshot() if self.phases else NO_PHASES,
            self.bookkeeping.pack(),
            self.bookkeeping.emitted,
        )

    @property
    def size(self) -> int:
        """The bytes of the messages, the state, the phases and the effects. The state counts as it was at the last cut."""
        return self._size_with(self._cut_state or b"")

    def _size_with(self, state: bytes) -> int:
        return self.messages.size + len(state) + (self._phase_table().size if self.phases else 0)

    def _phase_table(self) -> PhaseTable:
        """Return the phases. They are a plain dict until the first cut with a phase, because most short runs have none."""
        phases = self.phases
        if not isinstance(phases, PhaseTable):
            phases = self.phases = PhaseTable(phases)
        return phases

    def _packed_state(self) -> bytes:
        return encode_plain(self.state, "state", CHECKPOINT_LIMIT) if self.state else b""

    def begin_loop(self) -> None:
        """Remember the encoded state, with which the state after the first turn is compared."""
        try:
            self._cut_state = self._packed_state()
        except (NotPlain, TooLarge):  # the cut after the turn raises the error, unless the turn repairs the state
            self._cut_state = None

    def begin_turn(self, turn: int) -> None:
        """Begin a turn. The encoded state before the turn is known already, from the previous cut or from `begin_loop`."""
        self.turn = turn
        self._turn_start = self.messages.generation, len(self.messages.packed), self._cut_state

    def resumes_without_repeating(self) -> bool:
        """Return True if an attempt that resumes from a cut at this moment would repeat no work of this attempt.

        After a cut inside a turn the next attempt begins the turn again. It repeats no work in two cases: the turn has not
        changed the transcript and the state (the outputs of its phases are saved), or the transcript has open tool calls
        (by which the handler notices that the model has replied already).
        """
        if self.turn is None:
            return True
        generation, length, state = self._turn_start
        same_messages = self.messages.generation == generation and len(self.messages.packed) == length
        return (same_messages and self._packed_state() == state) or bool(self.messages.open_calls())

    def end_turn(self, turn: int) -> None:
        """Complete a turn, and drop the outputs of its phases."""
        self.iteration = turn + 1
        self.turn = None
        for by_field in (self.phases, self._seen, self._state_at, self._calls_at):
            if not by_field:
                continue
            for name in [
                name for name in by_field if name != INPUTS and not name.startswith(("phase:-:", "wait:-:", "effect:"))
            ]:
                del by_field[name]
        bookkeeping = self.bookkeeping
        if bookkeeping.deadlines or bookkeeping.bases:
            bookkeeping.end_turn()

    @property
    def in_phase(self) -> bool:
        """Return True if a phase is running."""
        return bool(self._running)

    def begin_phase(self, name: str) -> str:
        """Begin a phase, and return the field under which its output is stored.

        The field consists of the turn, if there is one, the name of the phase, and the number of earlier phases with the
        same name in the same turn.

        Raises:
            Refused: If the name is not valid, if a phase of this name is running, if the run waits, or if `run.state` has changed
                since a phase of this name began: after a resume, the new phase could get the output of the earlier one.
        """
        if str(name) != name or not 1 <= len(name) <= 200 or not name.isprintable():
            raise Refused(f"a phase needs a name of 1 to 200 printable characters, not {name!r:.220}")
        if self._waiting:
            raise Refused(f"phase {name!r} can't begin while the run waits: it would overlap the next attempt")
        scope = f"phase:{'-' if self.turn is None else self.turn}:{name}"
        if scope in self._running:
            raise Refused(f"phase {name!r} is already running: phases that run at the same time need different names")
        count, state = self._seen.get(scope, 0), self._packed_state()
        if count and state != self._state_at[scope]:
            raise Refused(
                f"phase {name!r} is called twice, and run.state changed between the two calls: after a resume, the second "
                "call could get the output of the first; give each of the two phases its own name"
            )
        self._seen[scope], self._state_at[scope] = count + 1, state
        self._running.add(scope)
        return f"{scope}#{count}"

    def end_phase(self, field: str, output: bytes | None) -> None:
        """End a phase, and keep its output.

        Args:
            field: The field that `begin_phase` returned.
            output: The encoded output, or None if the phase did not complete.
        """
        scope = field.rpartition("#")[0]
        self._running.discard(scope)
        if output is not None:
            self.phases[field] = output
        elif scope in self._seen:  # the end of the turn may have removed the phase
            self._seen[scope] -= 1
        if output is None:  # a second call of the function repeats its checks for signals, as in a later attempt
            looks = f"wait:{field.split(':', 2)[1]}:{field}/"
            for name in [name for name in self._seen if name.startswith(looks)]:
                del self._seen[name]

    # -- effects

    def begin_effect(self, name: str) -> None:
        """Begin a call of an effect.

        Raises:
            Refused: If an effect of this name is running, or if the run waits.
        """
        if self._waiting:
            raise Refused(f"effect {name!r} can't begin while the run waits: it would overlap the next attempt")
        if f"effect:{name}" in self._running:
            raise Refused(f"effect {name!r} is already running: effects that run at the same time need different names")
        self._running.add(f"effect:{name}")

    def end_effect(self, name: str) -> None:
        """End a call of an effect."""
        self._running.discard(f"effect:{name}")

    # -- waits

    def begin_wait(self, name: str) -> str:
        """Begin a wait, and return the field under which its value is stored.

        Raises:
            Refused: If a phase or another wait is under way, if the run has too many waits outside of `loop`, or if a tool call was
                answered since an earlier wait of this name. A resumed handler waits only for the tool calls that are still open,
                and its first wait would get the stored signal of the answered call.
        """
        if self._running:
            method = name.split()[0]
            why = "" if method == "enqueue" else ", because the run would hold its slot while it waits"
            raise Refused(f"run.{method} can't be called inside a phase or an effect{why}: call it before or after it")
        if self._waiting:
            raise Refused("a run can wait for one thing at a time: name several topics in one run.receive instead")
        field = self._next_wait(self._wait_scope(name))
        self._check_calls(name, field)
        self._seen[field.rpartition("#")[0]] += 1
        self._waiting, self.last_wait = True, field
        return field

    def _check_calls(self, name: str, field: str) -> None:
        open_calls = {call.id for call in self.messages.open_calls()}
        before = self._calls_at.setdefault(field.rpartition("#")[0], open_calls)
        if before - open_calls:
            raise Refused(
                f"run.{name.split()[0]} was called with the same name before tool call {min(before - open_calls)!r} was answered: "
                "a resumed run could not tell the two waits apart; use one topic or name for each call, for example "
                'run.receive(f"approval.{call.id}")'
            )

    def resume_wait(self, field: str) -> None:
        """Begin another wait of a step that waits several times: the `gather` or `as_completed` of this field.

        Raises:
            Refused: If a phase or another wait is under way.
        """
        if self._running or self._waiting:
            raise Refused("a run can't wait for its children while a phase or another wait is under way")
        self._waiting, self.last_wait = True, field

    def runs_beside(self, own: str) -> bool:
        """Return True if a phase or effect other than this one is running."""
        return bool(self._running - {own})

    def end_wait(self, given_up: str = "") -> None:
        """End the wait that is under way.

        Args:
            given_up: The field of a wait that ended without a value; otherwise empty. The next wait of the same name gets the same
                field. A later attempt would give it this field too, because it does not find the first wait in its checkpoint.
        """
        self._waiting = False
        scope = given_up.rpartition("#")[0]
        if scope in self._seen:  # the end of the turn may have removed the wait
            self._seen[scope] -= 1

    def next_poll(self, name: str) -> str:
        """Return the field of a check for signals that does not wait. If the check finds a signal, the caller calls `keep_poll`."""
        return self._next_wait(self._wait_scope(name, current_phase.get()))

    def keep_poll(self, field: str) -> None:
        """Record that a check for signals has found a signal: the check becomes a step, and the next check gets another field.

        Args:
            field: The field that `next_poll` returned.
        """
        scope = field.rpartition("#")[0]
        self._seen[scope] = self._seen.get(scope, 0) + 1  # the end of the turn may have removed the check

    def _wait_scope(self, name: str, phase: str = "") -> str:
        # A check for signals inside a phase belongs to the phase: an attempt that does not call the phase again does not repeat the
        # check.
        return f"wait:{'-' if self.turn is None else self.turn}:{phase + '/' if phase else ''}{name}"

    def _next_wait(self, scope: str) -> str:
        field = f"{scope}#{self._seen.setdefault(scope, 0)}"
        new = self.turn is None and field not in self.phases
        if new and sum(name.startswith("wait:-:") for name in self.phases) >= MOST_WAITS:
            raise Refused(
                f"a run can wait or enqueue {MOST_WAITS:,} times outside of run.loop, because each of these steps stays in its "
                "checkpoint: use run.loop, which drops the steps of a turn when the turn ends"
            )
        return field


def loaded(parts: Any) -> tuple[Draft, CheckpointHead, list[Any]]:
    """Build a draft from a stored checkpoint.

    Args:
        parts: The fields of the checkpoint's hash, the chunks of its messages and, if there are some, the effects of the run, each
            as a flat list of names and values. The first two are empty if the run has effects and no checkpoint.

    Returns:
        The draft, the head of the checkpoint, and the messages that were appended after the last cut before a release.

    Raises:
        Unreadable: If the checkpoint is damaged: a part cannot be decoded, or messages are missing.
    """
    try:
        return _loaded(parts)
    except (TypeError, ValueError) as error:  # for example a name that is not text, or an index that is not a number
        raise Unreadable(f"the checkpoint can't be read: {error}") from error
    except RecursionError:
        raise Unreadable("the checkpoint can't be read: its messages are nested too deep") from None


def _loaded(parts: Any) -> tuple[Draft, CheckpointHead, list[Any]]:
    fields = {name.decode(): value for name, value in _pairs(parts[0])}
    effects = {f"effect:{name.decode()}": value for name, value in _pairs(parts[2] if len(parts) > 2 else [])}
    if effects and not fields:
        return Draft(phases=effects), NO_CHECKPOINT, []
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
    draft.phases = {
        name: value for name, value in fields.items() if name.startswith(("phase:", "wait:")) or name == INPUTS
    }
    draft.phases |= effects
    draft.bookkeeping = Bookkeeping.parse(fields.get("more", b""))
    unfinished = decode(fields["unfinished"], "unfinished") if fields.get("unfinished") else []
    return draft, head, list(unfinished)


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
