"""A small model of a run that waits: its workers, its senders, the clock, cancels and losses.

Every call of a worker or sender can lose its reply, so that it is repeated, and can be executed late. The model was written
from the design. A variant of it contains one bug, which must break an invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

NAMES = "abc"


class Saved(NamedTuple):
    """A checkpoint: its number, what the waits returned, the number of the last received signal, and the open deadline."""

    seq: int = 0
    got: tuple[str, ...] = ()
    received: int = 0
    deadline: int | None = None


class Signal(NamedTuple):
    number: int
    name: str
    at: int


class Attempt(NamedTuple):
    """One process that works on the run, or believes so."""

    token: int
    at: str  # the next step: cut, look, flush, linger, suspend, release, complete
    draft: Saved


class Call(NamedTuple):
    """A call that is executed by the server, now or late."""

    what: str
    token: int = 0
    saved: Saved | None = None
    name: str = ""
    operation: str = ""
    key: str = ""


class State(NamedTuple):
    """Everything: the server, the processes, the calls on their way, and the faults that may still happen."""

    faults: tuple[int, ...]
    now: int = 0
    status: str = "queued"
    epoch: int = 0
    token: int = 0
    last: tuple[int, str, str] | None = None
    cancel: bool = False
    wait: tuple[int, int | None] | None = None
    saved: Saved = Saved()
    signals: tuple[Signal, ...] = ()
    first: int = 1
    newest: int = 0
    operations: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    failures: int = 0
    losses: int = 0
    attempts: tuple[Attempt, ...] = ()
    late: frozenset[Call] = frozenset()
    sending: int = 0  # the next signal of the sender
    sent: frozenset[str] = frozenset()  # signals whose sender knows that they are stored
    decided: tuple[str, ...] = ()  # what each wait returned, in any attempt of this life
    results: tuple[str, ...] = ()
    broken: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "cancelled")


FAULTS = ("lost", "late", "crash", "pause", "drain", "cancel", "tick", "restart", "again")


@dataclass(frozen=True)
class Model:
    """A handler that waits several times and then completes, a sender of signals, and a bounded number of faults.

    Attributes:
        waits: For each wait, its timeout in ticks of the clock; None for none.
        signals: The number of signals that the sender sends, each after the answer to the one before.
        faults: How often each fault happens at most.
        limit: The number of stored signals from which on received ones are removed.
        bug: The bug of this variant; empty for none.
    """

    waits: tuple[int | None, ...]
    signals: int
    faults: dict[str, int] = field(default_factory=dict)
    limit: int = 9
    bug: str = ""

    # -- invariants

    def start(self) -> State:
        return State(tuple(self.faults.get(name, 0) for name in FAULTS))

    def check(self, state: State) -> str | None:
        if state.broken:
            return state.broken
        for got in (state.saved.got, state.results):
            names = [name for name in got if name != "timeout"]
            if len(set(names)) != len(names):
                return "a signal was received twice"
            if names != sorted(names):
                return "signals were received out of order"
        if state.failures:
            return "an attempt that waits was counted as a failure"
        if state.losses > sum(self.faults.get(name, 0) for name in ("crash", "pause")):
            return "an attempt that waits was counted as lost"
        if state.results and state.status != "completed":
            return "an ended run continued"
        if not state.ended:
            stored = {signal.name for signal in state.signals} | set(state.saved.got)
            if not state.sent <= stored:
                return "a signal was lost"
        if state.status == "waiting":
            if state.cancel:
                return "a run waits although its cancel was requested"
            if state.token or state.wait is None:
                return "a waiting run has an owner, or no condition"
            if self.find_signal(state, state.saved.received):
                return "a wake-up was lost: the run waits although its signal is stored"
        return None

    def is_end(self, state: State) -> bool:
        return state.ended

    # -- the server

    def find_signal(self, state: State, received: int) -> Signal | None:
        number = max(received + 1, state.first)
        return next((signal for signal in state.signals if signal.number == number), None)

    def execute(self, state: State, call: Call) -> tuple[State, str]:
        """Execute a call. Return the next state and the answer."""
        if call.what == "send":
            return self._send(state, call)
        if state.token != call.token and not (self.bug == "no token" and call.what == "suspend"):
            answer = state.last[2] if state.last and state.last[:2] == (call.token, call.what) else "fenced"
            return state, answer
        saved = call.saved
        assert saved is not None
        if saved.seq > state.saved.seq:
            state = state._replace(saved=saved)
            if self.bug == "trim at the save":
                kept = tuple(signal for signal in state.signals if signal.number > saved.received)
                state = state._replace(signals=kept, first=max(state.first, saved.received + 1))
        if call.what == "save":
            return state, "ok"
        state = state._replace(token=0, epoch=state.epoch + 1)
        answer, state = self._end_attempt(state, call, saved)
        return state._replace(last=(call.token, call.what, answer)), answer

    def _end_attempt(self, state: State, call: Call, saved: Saved) -> tuple[str, State]:
        if state.cancel and self.bug != "cancel forgotten":
            return "cancelled", state._replace(status="cancelled")
        if call.what == "complete":
            return "ok", state._replace(status="completed", results=saved.got)
        if call.what == "restart":
            return "ok", state._replace(status="queued", saved=Saved(seq=state.saved.seq), decided=())
        if call.what == "release":
            return "ok", state._replace(status="queued")
        condition = (saved.received, saved.deadline)
        if self.bug == "counted":
            state = state._replace(failures=state.failures + 1)
        if self.bug != "unchecked" and self._holds(state, condition):
            return "ok", state._replace(status="queued")
        return "waiting", state._replace(status="waiting", wait=condition)

    def _holds(self, state: State, condition: tuple[int, int | None]) -> bool:
        received, deadline = condition
        return self.find_signal(state, received) is not None or (deadline is not None and state.now >= deadline)

    def _wake(self, state: State) -> State:
        return state._replace(status="queued", wait=None)

    def _send(self, state: State, call: Call) -> tuple[State, str]:
        if call.operation in state.operations:
            return state, "sent"
        if call.key in state.keys:
            return state, "found"
        if state.ended:
            return state, "ended"
        if len(state.signals) >= self.limit:
            gone = [signal for signal in state.signals if signal.number <= state.saved.received]
            state = state._replace(
                signals=state.signals[len(gone) :], first=gone[-1].number + 1 if gone else state.first
            )
            if self.bug == "ids trimmed":
                names = {signal.name for signal in gone}
                state = state._replace(
                    operations=frozenset(o for o in state.operations if o[0] not in names), keys=state.keys - names
                )
        if len(state.signals) >= self.limit:
            return state, "full"
        # The bug decides before the signal is stored whether the run is woken.
        held_before = state.wait is not None and self._holds(state, state.wait)
        signal = Signal(state.newest + 1, call.name, state.now)
        state = state._replace(
            signals=(*state.signals, signal),
            newest=signal.number,
            operations=state.operations | {call.operation},
            keys=state.keys | {call.key},
        )
        holds = held_before if self.bug == "woken first" else state.wait is not None and self._holds(state, state.wait)
        if state.status == "waiting" and holds:
            state = self._wake(state)
        return state, "sent"

    # -- steps

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._server_steps(state)
        for index, attempt in enumerate(state.attempts):
            yield from self._attempt_steps(state, index, attempt)
        if state.sending < self.signals:
            yield from self._sender_steps(state)
        for call in state.late:
            yield (
                f"late {call.what} {call.token or call.name}",
                self.execute(state, call)[0]._replace(late=state.late - {call}),
            )

    def _fault(self, state: State, name: str) -> State | None:
        index = FAULTS.index(name)
        left = state.faults[index]
        if not left:
            return None
        return state._replace(faults=(*state.faults[:index], left - 1, *state.faults[index + 1 :]))

    def _server_steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.status == "queued" and len(state.attempts) < 2:
            epoch = state.epoch + 1
            saved = state.saved
            if self.bug == "deadline forgotten":
                saved = saved._replace(deadline=None)
            attempt = Attempt(epoch, "look", saved)
            yield (
                "claim",
                state._replace(status="running", epoch=epoch, token=epoch, attempts=(*state.attempts, attempt)),
            )
        deadline = state.wait[1] if state.wait else None
        if state.status == "waiting" and deadline is not None and state.now >= deadline and self.bug != "never due":
            yield "due", self._wake(state)
        if state.status == "running":
            alive = any(attempt.token == state.token for attempt in state.attempts)
            next_state = self._fault(state, "pause") if alive else state
            if next_state:
                status = "cancelled" if state.cancel else "queued"
                yield (
                    "recover",
                    next_state._replace(status=status, token=0, epoch=state.epoch + 1, losses=state.losses + 1),
                )
        if next_state := self._fault(state, "tick"):
            yield "tick", next_state._replace(now=state.now + 1)
        if not state.ended and not state.cancel and (next_state := self._fault(state, "cancel")):
            if state.status == "running":
                yield "cancel", next_state._replace(cancel=True)
            else:
                yield "cancel", next_state._replace(status="cancelled", wait=None)

    def _sender_steps(self, state: State) -> Iterator[tuple[str, State]]:
        name = NAMES[state.sending]
        call = Call("send", name=name, operation=f"{name}1", key=name)
        for how, after, answer in self._deliver(state, call):
            if answer in ("sent", "found"):
                after = after._replace(sending=state.sending + 1, sent=after.sent | {name})
            elif answer == "ended":
                after = after._replace(sending=state.sending + 1)
            yield f"send {name}{how}", after
        # The sender's process is started again and sends with the same key in another operation.
        if next_state := self._fault(state, "again"):
            again = call._replace(operation=f"{name}2")
            yield f"send {name} in another operation", self.execute(next_state, again)[0]

    def _deliver(self, state: State, call: Call) -> Iterator[tuple[str, State, str]]:
        """Execute a call; or lose its reply, or let it be executed late: then the caller repeats it."""
        after, answer = self.execute(state, call)
        yield "", after, answer
        if next_state := self._fault(state, "lost"):
            yield ", reply lost", self.execute(next_state, call)[0], "lost"
        if next_state := self._fault(state, "late"):
            yield ", late", next_state._replace(late=state.late | {call}), "lost"

    def _attempt_steps(self, state: State, index: int, attempt: Attempt) -> Iterator[tuple[str, State]]:
        def move(after: State, to: str, draft: Saved | None = None) -> State:
            moved = attempt._replace(at=to, draft=draft or attempt.draft)
            return after._replace(attempts=(*after.attempts[:index], moved, *after.attempts[index + 1 :]))

        def gone(after: State) -> State:
            return after._replace(attempts=after.attempts[:index] + after.attempts[index + 1 :])

        who, draft = f"{attempt.token}", attempt.draft
        if next_state := self._fault(state, "crash"):
            yield f"crash of {who}", gone(next_state)
        if attempt.at not in ("suspend", "release", "restart", "complete"):
            stopping = state if state.cancel and state.token == attempt.token else self._fault(state, "drain")
            if stopping:
                yield f"{who} is stopped", move(stopping, "release", self._next(draft))
            if next_state := self._fault(state, "restart"):
                yield f"{who} raises, to retry from the start", move(next_state, "restart", self._next(draft))
        match attempt.at:
            case "look":
                yield f"{who} looks", self._look(state, attempt, move, gone)
            case "linger":
                yield f"{who} looks again", move(state, "look")
                yield f"{who} stops at its wait", move(state, "suspend", self._next(draft))
            case "cut" | "flush":
                for how, after, answer in self._deliver(state, Call("save", attempt.token, draft)):
                    if answer == "fenced":
                        yield f"{who} is fenced", gone(after)
                    else:
                        to = attempt.at if answer == "lost" else "look" if attempt.at == "cut" else "linger"
                        yield f"{who} saves{how}", move(after, to)
            case call:
                for how, after, answer in self._deliver(state, Call(call, attempt.token, draft)):
                    yield f"{who} {call}{how}", after if answer == "lost" else gone(after)

    def _next(self, draft: Saved) -> Saved:
        return draft._replace(seq=draft.seq + 1)

    def _look(
        self, state: State, attempt: Attempt, move: Callable[..., State], gone: Callable[[State], State]
    ) -> State:
        """Look for the signal of the next wait, as receive does."""
        draft = attempt.draft
        if state.token != attempt.token:
            return gone(state)
        wait = len(draft.got)
        timeout = self.waits[wait]
        fixed, deadline = draft.deadline is not None, draft.deadline
        if timeout is not None and deadline is None:
            deadline = state.now + timeout
        signal = self.find_signal(state, draft.received)
        if signal and fixed and deadline is not None:
            in_time = signal.at <= deadline if self.bug == "at the deadline" else signal.at < deadline
            if not in_time and self.bug != "first look":
                signal = None
        if signal:
            outcome, received = signal.name, signal.number
        elif deadline is not None and state.now >= deadline:
            outcome, received = "timeout", draft.received
        else:
            if deadline is None or fixed:
                return move(state, "linger")
            return move(state, "flush", self._next(draft)._replace(deadline=deadline))
        state = self._decide(state, wait, outcome)
        draft = Saved(draft.seq + 1, (*draft.got, outcome), received, None)
        return move(state, "complete" if len(draft.got) == len(self.waits) else "cut", draft)

    def _decide(self, state: State, wait: int, outcome: str) -> State:
        """Compare what a wait returns with what it returned in an earlier attempt."""
        if wait < len(state.decided):
            if state.decided[wait] != outcome:
                return state._replace(broken="a wait that was repeated returned something else")
            return state
        return state._replace(decided=(*state.decided, outcome))
