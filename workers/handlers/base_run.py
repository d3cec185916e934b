"""The common base of `Run` and `AsyncRun`.

A cut is a place where a checkpoint may be saved: the end of a turn, the end of a phase, the beginning and the end of
a wait, `checkpoint()` and `flush()`. A stop that was requested is raised once, at the next cut. A drain is raised inside a turn of
`loop` only where the next attempt can resume the turn without repeating work. Otherwise the drain is raised at the end of the turn.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Unpack

from coordinator.encoding.codec import encode
from coordinator.errors import Refused
from coordinator.model import limits
from coordinator.model.policies.budget import Amount, Budget, Spending, spending
from coordinator.model.run import Note
from workers.handlers.backing import Backing
from workers.handlers.checkpoint.draft import Draft
from workers.handlers.checkpoint.messages import Messages, encode_plain
from workers.handlers.facts import Facts, Resumed, Stopped
from workers.handlers.operations.budgets import Budgets
from workers.handlers.operations.children import Children, Step
from workers.handlers.operations.effects import Effects, check_name, effect_key
from workers.handlers.operations.enqueues import Enqueues
from workers.handlers.operations.prices import ModelUsage
from workers.handlers.operations.reservations import Reserving, count
from workers.handlers.operations.waits import Waits

if TYPE_CHECKING:  # type variables have defaults only since Python 3.13, and only type checkers need this one
    from typing_extensions import TypeVar

    R_co = TypeVar("R_co", covariant=True, default=object)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)

NOTE_CHARACTERS = 1000
_MAKING = threading.Lock()
_NO_STEP: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class BaseRun(Generic[R_co]):
    """The part of a run that is the same in plain and async handlers."""

    def __init__(
        self,
        facts: Facts,
        resources: R_co,
        draft: Draft,
        backing: Backing,
        read_signal: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self._facts, self._resources, self._draft, self._backing = facts, resources, draft, backing
        self._read_signal, self._looping = read_signal, False
        self._made_budgets: Budgets | None = None

    def _step(self, what: str, name: str = "") -> contextlib.AbstractContextManager[object]:
        """Return the context manager of the middleware around a step. It does nothing if there is no middleware.

        Args:
            what: The method of the run, for example "phase".
            name: The name of the step, if it has one.
        """
        make = getattr(self._backing, "around_step", None)
        return _NO_STEP if make is None else make(what, name)

    @cached_property
    def _waits(self) -> Waits:
        return Waits(self._draft, self._backing, self._read_signal or (lambda topic, payload: payload))

    def _declare_topics(self, read_signal: Callable[[str, Any], Any]) -> None:
        """Set the conversion of payloads, for a handler that a test calls directly. A run from a worker has it already."""
        self._read_signal = self._read_signal or read_signal

    def _declare_budget(self, budget: Budget | None) -> None:
        """Set the budget, for a handler that a test calls directly. A run from a worker has the budget of its handler already."""
        if self._facts.budget is None and budget is not None:
            self._facts = self._facts._replace(budget=budget)

    @cached_property
    def _children(self) -> Children:
        return Children(self._draft, self._backing, self._facts.id, self._facts.meta)

    @cached_property
    def _enqueues(self) -> Enqueues:
        return Enqueues(self._draft, self._backing, self._facts.id, self._facts.meta)

    @cached_property
    def _effects(self) -> Effects:
        return Effects(self._draft, self._backing, self._facts.attempt, self._facts.token)

    @property
    def _budgets(self) -> Budgets:
        if self._made_budgets is None:
            with _MAKING:  # two threads may spend at the same time
                if self._made_budgets is None:
                    self._made_budgets = Budgets(self._draft, self._backing, self._facts.budget, self._facts.spent)
        return self._made_budgets

    @property
    def _spends(self) -> bool:
        """Return True if the run has a budget, or has spent something in this attempt."""
        return self._facts.budget is not None or self._made_budgets is not None

    def _begin_children(
        self, name: str, children: Sequence[Any], options: Mapping[str, Any], at_once: int | None
    ) -> Step:
        """Begin a step with children. The spending of the children counts for this run."""
        step = self._children.begin(name, children, options, at_once)
        if self._spends:
            self._budgets.expect_children()
        return step

    def spend(
        self, *, usd: float | Decimal = 0, tokens: int = 0, requests: int = 0, **usage: Unpack[ModelUsage]
    ) -> None:
        """Add an amount to the spending of the run. Call it where the money is spent, for example in the function of a phase.

        The call only counts. If the budget of the run is spent, the handler is stopped where it begins new work: at the next turn
        of `loop`, phase or effect. Amounts that a handler spends a second time after a crash are counted a second time.

        Args:
            usd: Dollars.
            tokens: Tokens.
            requests: Requests.
            **usage: The call of a model: model, provider, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens. Its
                tokens are counted, and its dollars are computed from the table of the package genai-prices.

        Raises:
            BadOption: If a value is not valid. Nothing is counted.
            UnknownPrice: If the table does not know the model, or the package is not installed. The dollars are not counted.
        """
        count(self._budgets.spend, usd, tokens, requests, usage)

    def reserve(self, *, usd: float | Decimal = 0, tokens: int = 0, requests: int = 0) -> Reserving:
        """Reserve a part of the budget for a call, so that calls that run at the same time do not exceed the budget together.

        `with run.reserve(usd=0.10) as call:` reserves the amount while the block runs. Inside, `call.spend(usd=0.07)` counts the
        amount that the call has really spent. A reservation belongs to this attempt and ends with it.

        In an async handler, use `async with`: before it refuses an amount, it asks the server for grants that the run has not
        received yet. `with` does so too in a plain handler, and in a thread of an async handler.

        Args:
            usd: Dollars.
            tokens: Tokens.
            requests: Requests.

        Returns:
            A context manager that gives a `Reservation`.

        Raises:
            BudgetExceeded: If less than the amount is left, whatever `then` of the budget says.
            BadOption: If a number is not valid.
            Stopped: If a stop was requested while the server was asked. Let the exception propagate.
        """
        return Reserving(self._budgets, Amount.of(usd, tokens, requests), self._ask_for_grants)

    def _ask_for_grants(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ask the server for grants, by calling `ask`. `Run` and `AsyncRun` define it."""
        raise NotImplementedError

    @property
    def spent(self) -> Spending:
        """Return the total that all attempts of the run have spent, including ended children of `gather` and `as_completed`."""
        return spending(self._budgets.total)

    @property
    def left(self) -> Spending:
        """Return the rest of the budget, without reserved amounts. An amount that the budget does not limit is None."""
        return self._budgets.left

    def effect_key(self, name: str) -> str:
        """Return a key to send to another system, for example as `Idempotency-Key`, so that it can recognise a repeated call.

        The key is the same in all attempts and all lives of the run, and differs between names and between runs.

        Args:
            name: The name of the effect, as for `once`.

        Raises:
            Refused: If the name is not valid.
        """
        check_name(name)
        return effect_key(self._facts.id, name)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._facts.id

    @property
    def kind(self) -> str:
        """The kind of the run."""
        return self._facts.kind

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs with which the handler was called, by name."""
        return self._facts.inputs

    @property
    def meta(self) -> Mapping[str, Any]:
        """The meta data that the run was enqueued with. Runs that the handler enqueues inherit it."""
        return self._facts.meta

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._facts.attempt

    @property
    def token(self) -> str:
        """The token of this attempt. Each new owner of the run gets a new token, so external systems can refuse old tokens."""
        return self._facts.token

    @property
    def epoch(self) -> int:
        """The part of the token that grows with each new owner of the run."""
        return int(self._facts.token.partition("-")[0])

    @property
    def resources(self) -> R_co:
        """The value that the registry's lifespan yielded, or None without a lifespan."""
        return self._resources

    @property
    def resumed(self) -> Resumed | None:
        """The reason why the run was started again. None in a first attempt."""
        return self._facts.resumed

    @property
    def messages(self) -> Messages:
        """The transcript of the run: a list to which the handler appends, part of the checkpoint."""
        return self._draft.messages

    @property
    def iteration(self) -> int:
        """The number of completed turns of `loop`."""
        return self._draft.iteration

    @property
    def state(self) -> dict[str, Any]:
        """A dict for the handler's own values, part of the checkpoint.

        Raises:
            Refused: If the handler assigns a value that is not a dict.
        """
        return self._draft.state

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        if not isinstance(value, dict):
            raise Refused(f"run.state must be a dict, not {type(value).__name__}")
        self._draft.state = value

    @property
    def stopping(self) -> Stopped | None:
        """The stop that was requested, or None. Code without cuts can use `if run.stopping: raise run.stopping`."""
        return self._backing.stopping

    def note(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Describe the progress of the run to people, for example in `coordinator show`.

        The note is sent with the next save or heartbeat.

        Args:
            text: The description. The first 1,000 characters are kept.
            done: How much is done, in any unit.
            total: How much there is to do, in the same unit.

        Raises:
            Refused: If `done` or `total` is not a number.
        """
        shown = str(text)[:NOTE_CHARACTERS].encode(errors="replace").decode()
        note = Note(shown, _number(done, "done"), _number(total, "total"))
        self._backing.set_note(note)
        if self._draft.bookkeeping.emitted:
            self._emit(b"n", encode([note.text, note.done, note.total], "note"))

    def emit(self, value: object) -> None:
        """Emit an event for the readers of the run's output, for example a token of a model or a partial result.

        The call never waits, and never raises an error of the network. The worker sends the event within about 20 ms, and at the
        latest with the next save. Readers use `handle.stream()`. If the run continues from a checkpoint on another worker, the
        readers are told to drop the events that were emitted after the checkpoint. So a handler that continues from its
        checkpoint emits these events again. If more than 1 MiB of events wait to be sent, the oldest are dropped, and
        the readers get a `Gap`.

        Args:
            value: Plain data of up to 256 KiB.

        Raises:
            NotPlain: If the value is not plain data.
            TooLarge: If the value is larger than 256 KiB.
        """
        self._emit(b"e", encode_plain(value, "the event", limits.EVENT_BYTES))

    def _emit(self, letter: bytes, data: bytes) -> None:
        number = self._backing.emit(letter, data)
        bookkeeping = self._draft.bookkeeping
        bookkeeping.emitted = max(bookkeeping.emitted, number)  # other threads of the handler may emit, too

    def checkpoint(self) -> None:
        """Offer messages, state, iteration and phases to be saved, and return immediately. This is a cut.

        The worker saves them when the throttle of the kind allows, and only the newest offer.

        Raises:
            Stopped: If a stop was requested. If the current turn of `loop` has changed the messages or the state, and no tool call
                is open, a drain is raised only at the end of the turn.
            NotPlain: If the state contains a value that cannot be stored.
            TooLarge: If the checkpoint is larger than 64 MiB.
        """
        self._backing.offer(self._draft.cut())
        self._raise_stop()

    def _raise_stop(self) -> None:
        """Raise the requested stop, if there is one.

        A drain that would make the next attempt repeat work of this turn is raised at the end of the turn instead.

        Raises:
            Stopped: If a stop was requested.
        """
        self._backing.raise_stop(self._draft.resumes_without_repeating)

    def _turns(self, limit: int) -> range:
        if self._looping:
            raise Refused("a run can have only one loop, because the checkpoint counts its turns")
        if self._draft.in_phase:
            raise Refused("the loop of a run can't be inside a phase")
        self._looping = True
        self._draft.begin_loop()
        return range(self._draft.iteration, limit)

    def _end_turn(self, turn: int) -> None:
        self._draft.end_turn(turn)
        self.checkpoint()


def _number(value: float | None, what: str) -> float | None:
    """Return a number of a note as a float, or None for None. A value that is not a number would make a later save fail.

    Raises:
        Refused: If the value is not a number.
    """
    if value is None or (type(value) is int and abs(value) < 2**63):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise Refused(f"run.note({what}=…) must be a number, not {value!r:.80}") from None
