"""Runs that live in memory, for tests that call a handler directly."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeVar

from coordinator.encoding.codec import decode
from coordinator.errors import Refused
from coordinator.model.enqueue import Inputs
from coordinator.model.outcome import Why
from coordinator.model.policies.budget import TOPIC, Amount
from coordinator.model.run import Note
from coordinator.store.plans.attempts import Collected, Condition, Received
from coordinator.store.plans.clients import NewRun
from workers.handlers import async_run, run
from workers.handlers.checkpoint.bookkeeping import More
from workers.handlers.checkpoint.draft import Cut, Draft
from workers.handlers.checkpoint.messages import Messages
from workers.handlers.context import BaseRun, Facts, Resumed, Stopped, entered_run
from workers.handlers.conversion import to_plain
from workers.handlers.operations.children import Child
from workers.handlers.operations.effects import DONE
from workers.handlers.operations.enqueues import Enqueued
from workers.handlers.operations.limits import OpenCall
from workers.testing.mailbox import EnqueuedRun, LimitedCall, Mailbox, deadline_of

T = TypeVar("T")


class Crash(BaseException):
    """The exception that simulates the death of the handler's process.

    Unlike a real death, the exception unwinds the handler. Checkpoints that the handler saves while it unwinds are dropped.
    """


@dataclass
class MemoryBacking:
    """Save the checkpoints of a run in memory, and crash the run at one of its cuts if requested.

    In a worker, an Attempt has this role, and saves to the server. Here there is no throttle: every cut is saved.

    Args:
        crash_at: the number of a cut, counted from 1. The run crashes right after this cut was saved.
        lose_at: the number of a cut, counted from 1. The run crashes right before this cut is saved.
        cuts: the saved cuts, oldest first.
        notes: the notes of the handler, oldest first.
        stopping: the stop that the handler gets at its next cut, if any.
        delivered: whether the handler has got the stop.
        at_cut: called with the number of each saved cut.
        dead: whether the run has crashed.
        threads: not used; phases with plain functions run in the default executor.
        mailbox: the signals, the clock and the children of the run.
        resources: the value of `run.resources` in the handlers of children.
        life: the life of the run.
        emitted: the number of the last event that the handler has emitted.
        suspends: whether the handler is stopped at each sleep and timeout too, instead of letting the time jump to its end.
        waited: whether the handler has begun a wait.
        condition: the condition that the run waits for, once its handler was stopped at a wait.
        spent_before: what earlier attempts of the run have spent.
        spent: what this attempt has spent.
    """

    crash_at: int | None = None
    lose_at: int | None = None
    cuts: list[Cut] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    stopping: Stopped | None = None
    delivered: bool = False
    at_cut: Callable[[int], None] = lambda number: None
    dead: bool = False
    threads: None = None
    mailbox: Mailbox = field(default_factory=Mailbox)
    suspends: bool = False
    waited: bool = False
    condition: Condition | None = None
    spent_before: Amount = field(default_factory=Amount)
    spent: Amount = field(default_factory=Amount)
    resources: Any = None
    life: int = 1
    emitted: int = 0

    def begin(self, emitted: int) -> None:
        """Begin an attempt whose checkpoint covers this number of events. Later events of earlier attempts are dropped."""
        self.emitted = emitted
        del self.mailbox.output[emitted:]

    def emit(self, letter: bytes, data: bytes) -> int:
        """Append an event to the output of the run, unless the run has crashed or was lost to another worker."""
        self.emitted += 1
        if not self.dead and not (self.stopping is not None and self.stopping.why == "lost"):
            value = decode(data, "the event")
            self.mailbox.output.append(Note(*value) if letter == b"n" else value)
        return self.emitted

    async def perform_child(self, child: Child) -> Any:
        """Call the handler of a child, and return its result.

        Raises:
            Refused: If the child was made from a kind, so that its handler is not known.
        """
        handler: Any = child.inputs.handler
        if handler is None:
            raise Refused(f"a run in memory can't run the child {child.inputs.kind!r}: make it with handler.inputs(…)")
        values = handler.arguments(dict(child.inputs.values))
        kind: type[AsyncRun] | type[Run] = AsyncRun if handler.is_async else Run
        run = kind(self.resources, inputs=child.inputs.values)
        with entered_run(run):
            result = handler.function(run, **values)
            return handler.plain_result(await result if handler.is_async else result)

    def offer(self, cut: Cut) -> None:
        """Save a cut, unless the run has crashed or was lost to another worker.

        Raises:
            Crash: If the run crashes at this cut, or has crashed before.
        """
        if self.dead:
            raise Crash
        if self.stopping is not None and self.stopping.why == "lost":
            return
        if self.lose_at == len(self.cuts) + 1:
            self.dead = True
            raise Crash
        self.cuts.append(cut)
        if self.crash_at == len(self.cuts):
            self.dead = True
            raise Crash
        self.at_cut(len(self.cuts))

    @property
    def effect_cuts(self) -> list[int]:
        """The numbers of the cuts, from 1, that saved an effect of `run.once` as done."""
        found, before = list[int](), set[str]()
        for number, cut in enumerate(self.cuts, 1):
            done = {field for field in cut.phases if field.startswith(DONE)}
            if number > 1 and done - before:
                found.append(number)
            before = done
        return found

    async def flush(self, cut: Cut, may_drain: Callable[[], bool] = lambda: True) -> None:
        """Save a cut in the same way as `offer`. A save in memory never waits."""
        self.offer(cut)

    async def wait_until_confirmed(self, may_drain: Callable[[], bool] = lambda: True) -> None:
        """Return immediately, because without a server no lease can be in doubt.

        Raises:
            Crash: If the run has crashed before.
        """
        if self.dead:
            raise Crash

    def check_wait(self, cut: Callable[[], Cut]) -> None:
        """Raise the stop that was requested, even if the handler has got it before. Save a cut first if it has not.

        Raises:
            Crash: If the run has crashed before.
            Stopped: If a stop was requested.
        """
        self.waited = True
        if self.stopping is not None and not self.delivered:
            self.offer(cut())
        self._raise_any_stop()

    def _raise_any_stop(self) -> None:
        if self.dead:
            raise Crash
        if self.stopping is not None:
            self.delivered = True
            raise self.stopping

    def start_lingering(self, cut: Callable[[], Cut]) -> None:
        """Do the same as `check_wait`: in memory a waiting handler does not stay in its process."""
        self.check_wait(cut)

    def check_task(self) -> None:
        """Return immediately: a test may call the handler in any task."""

    def make_run_id(self, key: str) -> str:
        """Return a new run id."""
        return self.mailbox.make_child_base()

    async def enqueue(
        self, run: NewRun, inputs: Inputs[Any], options: Mapping[str, Any], may_drain: Callable[[], bool]
    ) -> Enqueued | None:
        """Store a run that the handler enqueues. The run is not executed."""
        if self.dead:
            raise Crash
        return self.mailbox.enqueue(run.id, inputs, options)

    def call_at_end(self, close: Callable[[], object]) -> None:
        """Do nothing: a run in memory opens no client."""

    def make_child_base(self) -> str:
        """Return the id of the first child of a step."""
        return self.mailbox.make_child_base()

    async def join_children(self, base: str, count: int, old: str, keep: Sequence[str]) -> None:
        """Do nothing except to check for a crash: children in memory need not be announced."""
        if self.dead:
            raise Crash

    async def spawn(self, children: Sequence[Child]) -> None:
        """Run the handlers of children to their ends, one after the other. A child that has run before does not run again."""
        for child in children:
            if self.dead:
                raise Crash
            await self.mailbox.run_child(child, self.perform_child)

    async def collect(self, base: str, by: str, start: int) -> Collected:
        """Return the endings of a step's children."""
        if self.dead:
            raise Crash
        return self.mailbox.collect(base, by, start)

    async def look(
        self, condition: Condition, timeout_ms: int | None, may_drain: Callable[[], bool] = lambda: True
    ) -> Received:
        """Return the next signal of the mailbox."""
        if self.dead:
            raise Crash
        return self.mailbox.look(condition, timeout_ms)

    async def linger(self, condition: Condition, now: int) -> None:
        """Set the run's clock forward to the deadline of a wait. Stop the handler at a wait that only a signal can end.

        Raises:
            Stopped: If the run is suspended, or a stop was requested.
        """
        self._raise_any_stop()
        if condition.deadline is not None and not self.suspends:
            self.mailbox.jump(condition)
            return
        self.condition, self.stopping = condition, Stopped("wait")
        self._raise_any_stop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the test."""
        return asyncio.get_running_loop()

    async def acquire(self, call: OpenCall, may_drain: Callable[[], bool] = lambda: True) -> None:
        """Let a call to the outside start at once, and append it to the calls of the run.

        Raises:
            Stopped: If a stop was requested.
        """
        if self.dead:
            raise Crash
        self.raise_stop(may_drain)
        self.mailbox.limited.append(LimitedCall(call.name, call.reserved, call.reserved))
        call.number = len(self.mailbox.limited)

    def finish(self, call: OpenCall, cost: int | None) -> None:
        """Record what a call to the outside has cost."""
        self.mailbox.limited[call.number - 1].is_open = False
        if cost is not None:
            self.mailbox.limited[call.number - 1].cost = cost

    def back_off(self, call: OpenCall, seconds: float) -> None:
        """Record that a call to the outside asked all others to wait."""
        self.mailbox.limited[call.number - 1].back_off = seconds

    def set_spend(self, amount: Amount) -> None:
        """Store what this attempt has spent."""
        self.spent = amount

    async def report_spend(self, amount: Amount) -> Amount:
        """Return what the run has spent in earlier attempts. In memory, the spending of children is not added."""
        if self.dead:
            raise Crash
        return self.spent_before

    def set_note(self, note: Note) -> None:
        """Append a note of the handler to `notes`."""
        self.notes.append(note)

    def raise_stop(self, may_drain: Callable[[], bool] = lambda: True) -> None:
        """Raise the requested stop, unless it was raised before, or is a drain that has to wait for the end of the turn.

        Raises:
            Stopped: If a stop was requested.
        """
        if self.stopping is None or self.delivered or (self.stopping.why == "drain" and not may_drain()):
            return
        self.delivered = True
        raise self.stopping


class _NoClient:
    """The client behind the handles of runs in memory. Such a handle has an id, and refuses every call."""

    def __getattr__(self, name: str) -> Any:
        raise Refused("a run in memory does not execute the runs that it enqueues: look at run.enqueued in the test")


class _MemoryRun(BaseRun[Any]):
    """The methods that test runs have in addition to the methods of a run from a worker."""

    _first_cut: Cut

    def stop(self, why: Why = "drain") -> None:
        """Ask the handler to stop at its next cut, as a worker does.

        Args:
            why: `drain` if the worker shuts down, `cancel` if the run was cancelled, `deadline` if its deadline passed, `lost`
                if it belongs to another worker now.
        """
        self._memory.stopping = Stopped(why)

    def send(self, topic: str, payload: Any = None, *, key: str | None = None) -> bool:
        """Send a signal to the run, as `handle.send` does. The signal may be sent before the handler is called.

        Args:
            topic: the topic.
            payload: the value that the handler receives: plain data, or an object of the type that it declares for the topic.
            key: the idempotency key. A second signal with the same key is not stored.

        Returns:
            False if a signal with this key was sent before.

        Raises:
            BadName: the topic is not a valid name.
            NotPlain: the payload cannot be stored.
        """
        return self._memory.mailbox.send(topic, to_plain(payload, f"a signal of topic {topic!r}"), key)

    def grant(self, *, usd: float | Decimal = 0, tokens: int = 0, requests: int = 0) -> None:
        """Grant the run an amount in addition to its budget, as `handle.grant` does."""
        self._memory.mailbox.send(TOPIC, [*Amount.of(usd, tokens, requests)], None)

    @property
    def now(self) -> datetime:
        """The time of the run's clock, in UTC. It stands still while the handler works, and jumps to the end of each sleep."""
        return self._memory.mailbox.now

    def advance(self, seconds: float | timedelta) -> None:
        """Let the run's clock jump forward, for example beyond the timeout of a wait at which the run is suspended."""
        step = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        self._memory.mailbox.now_ms += round(step / timedelta(milliseconds=1))

    @property
    def suspended(self) -> bool:
        """Return True if the handler was stopped at a wait."""
        return self._memory.condition is not None

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The topics that the run waits for. Empty for a sleep, or if the handler was not stopped at a wait."""
        return () if self._memory.condition is None else tuple(self._memory.condition.received)

    @property
    def enqueued(self) -> list[EnqueuedRun]:
        """The runs that the handler enqueued with `run.enqueue`, in all attempts, oldest first. They are not executed."""
        return [*self._memory.mailbox.enqueued.values()]

    @property
    def limited(self) -> list[LimitedCall]:
        """The calls under `run.limit` in all attempts, oldest first. In memory each call starts at once."""
        return [*self._memory.mailbox.limited]

    @property
    def effects(self) -> dict[str, str]:
        """The state of each effect of `run.once` by its name: "begun" or "done"."""
        fields = [field.split(":", 2) for field in self._draft.phases if field.startswith("effect:")]
        return {name: state for _, state, name in fields}

    @cached_property
    def _client(self) -> Any:
        return _NoClient()

    @property
    def waits_until(self) -> datetime | None:
        """The time in UTC at which the run's wait ends. None if only a signal ends the wait, or if the handler was not stopped."""
        return None if self._memory.condition is None else deadline_of(self._memory.condition)

    @property
    def saved(self) -> int:
        """The number of cuts that were saved in this attempt."""
        return len(self._memory.cuts)

    @property
    def notes(self) -> list[Note]:
        """The notes of this attempt, oldest first."""
        return self._memory.notes

    @property
    def emitted(self) -> list[Any]:
        """The values that the handler emitted in all attempts, as a reader has them at the end.

        After a crash the events after the last cut are dropped, as a `Rewind` tells a reader. A note is a `coordinator.Note`.
        """
        return [*self._memory.mailbox.output]

    @property
    def _memory(self) -> MemoryBacking:
        assert isinstance(self._backing, MemoryBacking)
        return self._backing

    @property
    def _last_cut(self) -> Cut:
        return self._memory.cuts[-1] if self._memory.cuts else self._first_cut

    def _next_attempt(self, cause: str, unfinished: tuple[Any, ...], reason: str = "") -> tuple[Facts, Draft]:
        facts = self._facts
        resumed = Resumed(cause, 0.0, "w-test", "-", unfinished, reason=reason)
        token = f"{self.epoch + 1}-1-w-test"
        spent = facts.spent.plus(self._memory.spent)
        following = Facts(
            facts.id, facts.kind, facts.inputs, facts.meta, facts.attempt + 1, token, resumed, facts.budget, spent
        )
        return following, restore_draft(self._last_cut)

    def _next_backing(self, backing: MemoryBacking | None) -> MemoryBacking:
        backing = backing or MemoryBacking(suspends=self._memory.suspends)
        backing.mailbox = self._memory.mailbox
        backing.spent_before = self._facts.spent.plus(self._memory.spent)
        return backing

    def _wake(self) -> tuple[Facts, Draft]:
        """Return the facts and the draft of the next attempt after a wake.

        The time jumps to the end of the wait if no signal is there.

        Raises:
            Refused: The handler was not stopped at a wait; or only a signal can end the wait, and none was sent.
        """
        condition, mailbox = self._memory.condition, self._memory.mailbox
        if condition is None:
            raise Refused("the run is not suspended: its handler was not stopped at a wait")
        if not mailbox.wake_reason(condition):
            mailbox.jump(condition)
        reason = mailbox.wake_reason(condition)
        if not reason:
            topics = " or ".join(map(repr, condition.received))
            raise Refused(f"nothing wakes the run: it waits for a signal of topic {topics}, so call run.send first")
        return self._next_attempt("wake", (), reason)

    def _unsaved_messages(self) -> tuple[Any, ...]:
        return tuple(self.messages[self._last_cut.length :])


def restore_draft(cut: Cut) -> Draft:
    """Return the draft with which the next attempt begins after this cut was saved."""
    items = [(data, decode(data, "message")) for data in cut.packed[: cut.length]]
    draft = Draft(Messages(items, cut.generation), decode(cut.state, "state") if cut.state else {}, cut.iteration)
    draft.phases, draft.more = dict(cut.phases), More.parse(cut.more)
    return draft


def _first_facts(inputs: Mapping[str, Any] | None, meta: Mapping[str, Any] | None) -> Facts:
    return Facts("test-00", "test", inputs or {}, meta or {}, 1, "1-1-w-test", None)


def _choose_backing(backing: MemoryBacking | None, desk: MemoryBacking | None, suspends: bool) -> MemoryBacking:
    if desk is not None:
        warnings.warn("the parameter desk is now called backing", DeprecationWarning, stacklevel=3)
    chosen = backing or desk or MemoryBacking()
    chosen.suspends = chosen.suspends or suspends
    return chosen


def _run_without_loop(awaitable: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the backing without an event loop, and return its result. The coroutine never waits."""
    try:
        awaitable.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("a run in memory has to wait for something")


class AsyncRun(_MemoryRun, async_run.AsyncRun[Any]):
    """A run for an async handler, without a server: `await handler(testing.AsyncRun(resources=fake), "tides")`.

    Args:
        resources: the value of `run.resources` in the handler.
        inputs: the value of `run.inputs` in the handler. The test itself passes the parameters of the handler.
        meta: the value of `run.meta` in the handler.
        facts: the identity of the run and its attempt; made up by default.
        draft: the checkpoint of an earlier attempt; empty by default.
        backing: saves the checkpoints in memory, and may crash the run at a cut.
        desk: the old name of `backing`.
        suspends: stop the handler at each sleep and timeout too, as when its run is suspended. By default the time jumps to the
            end of a sleep or a timeout, and the handler continues. A wait that only a signal can end always stops the handler.
    """

    def __init__(
        self,
        resources: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        facts: Facts | None = None,
        draft: Draft | None = None,
        backing: MemoryBacking | None = None,
        desk: MemoryBacking | None = None,
        suspends: bool = False,
    ) -> None:
        super().__init__(
            facts or _first_facts(inputs, meta), resources, draft or Draft(), _choose_backing(backing, desk, suspends)
        )
        self._first_cut = self._draft.cut()
        self._memory.resources = resources
        self._memory.begin(self._first_cut.emitted)

    def _wait_in_thread(self, awaitable: Coroutine[Any, Any, None]) -> None:
        _run_without_loop(awaitable)

    def after_crash(self, backing: MemoryBacking | None = None) -> AsyncRun:
        """Return the next attempt after a crash of this attempt. The next attempt starts from the last saved cut."""
        facts, draft = self._next_attempt("recover", ())
        return AsyncRun(self.resources, facts=facts, draft=draft, backing=self._next_backing(backing))

    def after_wake(self, backing: MemoryBacking | None = None) -> AsyncRun:
        """Return the next attempt after the run was suspended at a wait and woken.

        If no signal for the wait was sent, the time jumps to the end of the wait.

        Raises:
            Refused: The handler was not stopped at a wait; or only a signal can end the wait, and none was sent.
        """
        facts, draft = self._wake()
        return AsyncRun(self.resources, facts=facts, draft=draft, backing=self._next_backing(backing))

    def after_release(self, backing: MemoryBacking | None = None) -> AsyncRun:
        """Return the next attempt after a release of this attempt. Messages after the last cut are in `run.resumed.unfinished`."""
        facts, draft = self._next_attempt("release", self._unsaved_messages())
        return AsyncRun(self.resources, facts=facts, draft=draft, backing=self._next_backing(backing))


class Run(_MemoryRun, run.Run[Any]):
    """A run for a plain handler, without a server: `handler(testing.Run(resources=fake), "tides")`.

    Args:
        resources: the value of `run.resources` in the handler.
        inputs: the value of `run.inputs` in the handler. The test itself passes the parameters of the handler.
        meta: the value of `run.meta` in the handler.
        facts: the identity of the run and its attempt; made up by default.
        draft: the checkpoint of an earlier attempt; empty by default.
        backing: saves the checkpoints in memory, and may crash the run at a cut.
        desk: the old name of `backing`.
        suspends: stop the handler at each sleep and timeout too, as when its run is suspended. By default the time jumps to the
            end of a sleep or a timeout, and the handler continues. A wait that only a signal can end always stops the handler.
    """

    def __init__(
        self,
        resources: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        facts: Facts | None = None,
        draft: Draft | None = None,
        backing: MemoryBacking | None = None,
        desk: MemoryBacking | None = None,
        suspends: bool = False,
    ) -> None:
        super().__init__(
            facts or _first_facts(inputs, meta), resources, draft or Draft(), _choose_backing(backing, desk, suspends)
        )
        self._first_cut = self._draft.cut()
        self._memory.resources = resources
        self._memory.begin(self._first_cut.emitted)

    def _await(self, awaitable: Coroutine[Any, Any, T]) -> T:
        return _run_without_loop(awaitable)

    def after_crash(self, backing: MemoryBacking | None = None) -> Run:
        """Return the next attempt after a crash of this attempt. The next attempt starts from the last saved cut."""
        facts, draft = self._next_attempt("recover", ())
        return Run(self.resources, facts=facts, draft=draft, backing=self._next_backing(backing))

    def after_wake(self, backing: MemoryBacking | None = None) -> Run:
        """Return the next attempt after the run was suspended at a wait and woken.

        If no signal for the wait was sent, the time jumps to the end of the wait.

        Raises:
            Refused: The handler was not stopped at a wait; or only a signal can end the wait, and none was sent.
        """
        facts, draft = self._wake()
        return Run(self.resources, facts=facts, draft=draft, backing=self._next_backing(backing))

    def after_release(self, backing: MemoryBacking | None = None) -> Run:
        """Return the next attempt after a release of this attempt. Messages after the last cut are in `run.resumed.unfinished`."""
        facts, draft = self._next_attempt("release", self._unsaved_messages())
        return Run(self.resources, facts=facts, draft=draft, backing=self._next_backing(backing))
