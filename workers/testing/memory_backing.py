"""The backing of runs that live in memory: it saves their cuts, and crashes or stops them at the cuts that a test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.encoding.codec import decode
from coordinator.errors import Refused
from coordinator.model.enqueue import Inputs
from coordinator.model.policies.budget import Amount
from coordinator.model.run import Note
from coordinator.store.plans.attempts import Collected, Condition, Received
from coordinator.store.plans.clients import NewRun
from workers.handlers.checkpoint.bookkeeping import Bookkeeping
from workers.handlers.checkpoint.draft import Cut, Draft
from workers.handlers.checkpoint.messages import Messages
from workers.handlers.facts import Stopped
from workers.handlers.operations.children import Child
from workers.handlers.operations.effects import DONE
from workers.handlers.operations.enqueues import Enqueued
from workers.handlers.operations.limits import OpenCall
from workers.testing.memory_server import LimitedCall, MemoryServer


async def _refuse_child(child: Child) -> Any:
    raise Refused(f"the child {child.inputs.kind!r} needs a run in memory")


class Crash(BaseException):
    """The exception that simulates the death of the handler's process.

    Unlike a real death, the exception unwinds the handler. Checkpoints that the handler saves while it unwinds are dropped.
    """


@dataclass
class MemoryBacking:
    """Save the checkpoints of a run in memory, and crash the run at one of its cuts if requested.

    In a worker, an Attempt has this role, and saves to the server. Here there is no throttle: every cut is saved.

    Args:
        crash_at: The number of a cut, counted from 1. The run crashes right after this cut was saved.
        lose_at: The number of a cut, counted from 1. The run crashes right before this cut is saved.
        cuts: The saved cuts, oldest first.
        notes: The notes of the handler, oldest first.
        stopping: The stop that the handler gets at its next cut, if any.
        delivered: True if the stop was raised in the handler.
        at_cut: A function that is called with the number of each saved cut.
        dead: True if the run has crashed.
        threads: Not used; phases with plain functions run in the default executor.
        server: The signals, the clock and the children of the run.
        perform_child: A function that calls the handler of a child, and returns its result. The run sets it.
        life: The life of the run.
        emitted: The number of the last event that the handler has emitted.
        suspends: True to stop the handler at each sleep and timeout too. False to let the time jump to the end of the wait.
        waited: True if the handler has begun a wait.
        condition: The condition that the run waits for, once its handler was stopped at a wait.
        spent_before: The amount that earlier attempts of the run have spent.
        spent: The amount that this attempt has spent.
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
    server: MemoryServer = field(default_factory=MemoryServer)
    suspends: bool = False
    waited: bool = False
    condition: Condition | None = None
    spent_before: Amount = field(default_factory=Amount)
    spent: Amount = field(default_factory=Amount)
    perform_child: Callable[[Child], Awaitable[Any]] = _refuse_child
    life: int = 1
    emitted: int = 0

    def begin(self, emitted: int) -> None:
        """Begin an attempt whose checkpoint covers this number of events. Later events of earlier attempts are dropped."""
        self.emitted = emitted
        del self.server.output[emitted:]

    def emit(self, letter: bytes, data: bytes) -> int:
        """Append an event to the output of the run, unless the run has crashed or was lost to another worker. Return its number."""
        self.emitted += 1
        if not self.dead and not (self.stopping is not None and self.stopping.why == "lost"):
            value = decode(data, "the event")
            self.server.output.append(Note(*value) if letter == b"n" else value)
        return self.emitted

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

    def may_call(self) -> bool:
        """Return True if the external call of an effect may begin now.

        The answer is False between the request of a stop other than a drain and its delivery.
        """
        return self.stopping is None or self.delivered or self.stopping.why == "drain"

    def check_wait(self, cut: Callable[[], Cut]) -> None:
        """Raise the requested stop, even if it was raised in the handler before. If it was not, save a cut first.

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
        return self.server.make_child_base()

    async def enqueue(
        self, run: NewRun, inputs: Inputs[Any], options: Mapping[str, Any], may_drain: Callable[[], bool]
    ) -> Enqueued | None:
        """Store a run that the handler enqueues. The run is not executed."""
        if self.dead:
            raise Crash
        return self.server.enqueue(run.id, inputs, options)

    def call_at_end(self, close: Callable[[], object]) -> None:
        """Do nothing: a run in memory opens no client."""

    def make_child_base(self) -> str:
        """Return the id of the first child of a step."""
        return self.server.make_child_base()

    async def join_children(self, base: str, count: int, old: str) -> None:
        """Do nothing except to check for a crash: children in memory need not be announced."""
        if self.dead:
            raise Crash

    async def drop_steps(self, bases: Sequence[str]) -> bool:
        """Do nothing except to check for a crash: all children in memory have ended."""
        if self.dead:
            raise Crash
        return True

    async def spawn(self, children: Sequence[Child]) -> None:
        """Run the handlers of children to their ends, one after the other. A child that has run before does not run again."""
        for child in children:
            if self.dead:
                raise Crash
            await self.server.run_child(child, self.perform_child)

    async def collect(self, base: str, by: str, start: int) -> Collected:
        """Return the endings of a step's children."""
        if self.dead:
            raise Crash
        return self.server.collect(base, by, start)

    async def look(
        self, condition: Condition, timeout_ms: int | None, may_drain: Callable[[], bool] = lambda: True
    ) -> Received:
        """Return the next signal of the run."""
        if self.dead:
            raise Crash
        return self.server.look(condition, timeout_ms)

    async def linger(self, condition: Condition, now: int) -> None:
        """Set the run's clock forward to the deadline of a wait; stop the handler if the wait has none, or if `suspends` is True.

        Raises:
            Stopped: If the run is suspended, or a stop was requested.
        """
        self._raise_any_stop()
        if condition.deadline is not None and not self.suspends:
            self.server.jump(condition)
            return
        self.condition, self.stopping = condition, Stopped("wait")
        self._raise_any_stop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the test."""
        return asyncio.get_running_loop()

    async def acquire(self, call: OpenCall, may_drain: Callable[[], bool] = lambda: True) -> None:
        """Let an external call start immediately, and append it to the calls of the run.

        Raises:
            Stopped: If a stop was requested.
        """
        if self.dead:
            raise Crash
        self.raise_stop(may_drain)
        self.server.limited.append(LimitedCall(call.name, call.reserved, call.reserved))
        call.number = len(self.server.limited)

    def finish(self, call: OpenCall, cost: int | None) -> None:
        """Record that an external call has ended, and its cost. With None it has cost the reserved tokens."""
        self.server.limited[call.number - 1].is_open = False
        if cost is not None:
            self.server.limited[call.number - 1].cost = cost

    def back_off(self, call: OpenCall, seconds: float) -> None:
        """Record the seconds for which an external call asked all others to wait."""
        self.server.limited[call.number - 1].back_off = seconds

    def set_spend(self, amount: Amount) -> None:
        """Store the total that this attempt has spent."""
        self.spent = amount

    async def report_spend(self, amount: Amount) -> Amount:
        """Return the amount that earlier attempts of the run have spent. In memory, the spending of children is not added."""
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


def restore_draft(cut: Cut) -> Draft:
    """Return the draft with which the next attempt begins after this cut was saved."""
    items = [(data, decode(data, "message")) for data in cut.packed[: cut.length]]
    draft = Draft(Messages(items, cut.generation), decode(cut.state, "state") if cut.state else {}, cut.iteration)
    draft.phases, draft.bookkeeping = dict(cut.phases), Bookkeeping.parse(cut.bookkeeping)
    return draft
