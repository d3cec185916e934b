"""One attempt at a run, from its claim to its end. The `Run` that a handler receives works through its attempt."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from coordinator.errors import Refused, Unconfirmed, Unreachable, Unreadable
from coordinator.middleware import NO_MIDDLEWARE, AttemptInfo, MiddlewareChain
from coordinator.model.enqueue import Inputs
from coordinator.model.outcome import Why
from coordinator.model.policies.budget import NOTHING, Amount
from coordinator.model.policies.deadline import DeadlineExceeded
from coordinator.model.run import Counters, Note
from coordinator.store.keys import Keys
from coordinator.store.plans.attempts import Collected, Condition, Received
from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.workers import Claimed
from coordinator.store.transport.drivers import Plan
from workers.attempt.lifecycle import Lifecycle
from workers.attempt.output.emitter import Emitter
from workers.attempt.output.outbox import Outbox
from workers.attempt.saver import Saver, SaverClosed
from workers.handlers.checkpoint.draft import Cut, Draft
from workers.handlers.context import Facts, Stopped
from workers.handlers.handler import Handler
from workers.handlers.operations.children import Child
from workers.handlers.operations.enqueues import Enqueued
from workers.handlers.operations.limits import OpenCall
from workers.handlers.operations.waits import in_awaited_task
from workers.liveness.lease import Lease

T = TypeVar("T")

LOOK_SECONDS = 1.0  # a lingering wait looks for signals this often, because a hint may be lost


class AttemptObserver(Protocol):
    """The methods that an attempt calls on its worker when the attempt is lost, makes progress or is out of time."""

    def on_lost(self, attempt: Attempt) -> None:
        """Handle the loss of an attempt: its run belongs to another owner now."""

    def on_progress(self, attempt: Attempt) -> None:
        """Handle progress of an attempt, as the server counts it."""

    def may_linger(self, attempt: Attempt) -> bool:
        """Return False if a waiting handler must end, because another run could use its slot."""
        ...

    def on_deadline(self, attempt: Attempt, error: DeadlineExceeded) -> None:
        """Kill an attempt whose deadline has passed. Its run fails with this error."""


class Waiter(Protocol):
    """The requests to the server that an attempt makes for its waits, its children and its enqueues."""

    async def look(self, attempt: Attempt, condition: Condition, timeout_ms: int | None) -> Received:
        """Ask for the next signal of a run. Wait while the server cannot be reached."""
        ...

    async def carry_out(self, attempt: Attempt, make_plan: Callable[[], Plan[T]]) -> T:
        """Run a plan on the server. Wait while the server cannot be reached."""
        ...

    def make_child_base(self, attempt: Attempt) -> str:
        """Return a new id for the first child of a step, in the partition of an attempt's run."""
        ...

    def make_id(self, attempt: Attempt, key: str = "") -> str:
        """Return a new run id: in the partition of an idempotency key, or of the attempt's run if the key is empty."""
        ...

    async def enqueue(self, attempt: Attempt, run: NewRun) -> Enqueued | None:
        """Enqueue a run that the attempt does not wait for. Return None if the server refuses the id because of its age."""
        ...

    async def join_children(self, attempt: Attempt, base: str, count: int, old: str, keep: Sequence[str]) -> str:
        """Announce the children of a step to the server, and return the answer word of join_children.lua."""
        ...

    async def spawn(self, attempt: Attempt, runs: Sequence[NewRun]) -> str:
        """Enqueue children. Return `ok`, or `stale` if the parent does not wait for these children any more."""
        ...

    async def collect(self, attempt: Attempt, base: str, by: str, start: int) -> Collected:
        """Return a page of the endings of a step's children."""
        ...

    async def spend(self, attempt: Attempt, amount: Amount) -> tuple[str, Amount]:
        """Store what an attempt has spent. See `spend` in coordinator/store/plans/attempts.py."""
        ...

    async def may_suspend(self, attempt: Attempt) -> bool:
        """Return False if a live worker or coordinator is of a version that does not know waiting runs. Log this process."""
        ...


class Limits(Protocol):
    """The requests to the server that an attempt makes for calls to the outside. See `ServerLimits`."""

    async def acquire(self, attempt: Attempt, call: OpenCall) -> None:
        """Wait until a call may start."""

    def finish(self, call: OpenCall, cost: int | None) -> None:
        """End a call, in the background."""

    def give_back(self, call: OpenCall) -> None:
        """Give back what a call has reserved that did not start."""

    def back_off(self, call: OpenCall, seconds: float) -> None:
        """Let no call of the name start for some time."""


_outboxes = threading.Lock()  # held while an attempt gets its outbox, because several threads of a handler may emit


async def _word(word: str) -> str:
    return word


class Attempt(Lifecycle):
    """One attempt at a claimed run in this process.

    An attempt belongs to the worker's event loop. A handler in a thread uses the attempt through its Run.

    Args:
        claimed: The run, as the claim returned it.
        lease: The lease under which the run was claimed.
        handler: The handler of the run's kind.
        threads: The threads in which plain functions run.
        clock: Returns a time in seconds that never goes back.
        observer: Is called when the attempt is lost, makes progress or is out of time.
        gate: The attempt starts when this future is done. None to start immediately.
    """

    # Defaults of the class, so that an attempt without middleware and metrics does not set them.
    measuring: asyncio.Task[None] | None = None  # measures how long the run had no worker
    began = 0.0  # the monotonic time at which the worker had the answer to its claim
    middleware: MiddlewareChain = NO_MIDDLEWARE
    around_step: Callable[[str, str], contextlib.AbstractContextManager[None]] | None = None  # for middleware
    limited: dict[OpenCall, str] | None = (
        None  # calls that wait for a rate, each with its name and the time in ms since when
    )
    info: AttemptInfo | None = None  # is set if the attempt has middleware, when its spec was read

    def __init__(
        self,
        claimed: Claimed,
        lease: Lease,
        handler: Handler[..., Any],
        threads: Executor,
        observer: AttemptObserver,
        clock: Callable[[], float],
        gate: asyncio.Future[None] | None = None,
    ) -> None:
        super().__init__()
        self.claimed, self.lease, self.handler = claimed, lease, handler
        self.threads, self.observer, self.gate, self.clock = threads, observer, gate, clock
        self.handler_thread: int | None = None  # the id of the thread in which a plain handler runs
        self.loop = asyncio.get_running_loop()
        self.id, self.token = claimed.id, claimed.token
        self.key = (claimed.id, claimed.token)
        self.facts: Facts | None = None
        self.draft: Draft | None = None
        self.saver: Saver | None = None
        self.loading: int | None = None  # while the checkpoint is being loaded: how many loads have failed
        self.task: asyncio.Task[None] | None = None
        self.note: Note | None = None
        self.note_sent: Note | None = None
        self.note_stored: Note | None = None  # the newest note that the server has confirmed after a heartbeat
        self.condition: Condition | None = None  # the condition that the run waits for, once it is to be suspended
        self.waiter: Waiter | None = None
        self.limits: Limits | None = None
        # what the attempt has spent, and the part that the server has confirmed
        self.spend = self.spend_stored = NOTHING
        self.has_group = False  # whether other runs may wait for the place of the run in its group
        self.emitter: Emitter | None = None
        self.outbox: Outbox | None = None  # is made by the first emit
        self.emits_soon = False  # whether the emitter will send the events in the outbox
        self._at_end: list[Callable[[], object]] = []
        self._hint, self._lingering_since = asyncio.Event(), 0.0
        self._stop_requested, self._stop_changed = asyncio.Event(), asyncio.Event()
        self._thread = threading.get_ident()

    @cached_property
    def counters(self) -> Counters:
        """All counters of the run, as they were when it was claimed."""
        return Counters.parse(self.claimed.counters)

    @cached_property
    def number(self) -> int:
        """The number of this attempt. Reading it alone is cheaper than `counters`, and every attempt needs the number."""
        return int(self.claimed.counters.split(" ", 2)[1])

    # -- called by the handler's Run

    def offer(self, cut: Cut) -> None:
        """Offer a cut to the saver, which saves it later. Any thread may call this."""
        if self.saver is None or self.decided:
            return
        if threading.get_ident() == self._thread:
            self.saver.offer(cut)
        else:
            self.loop.call_soon_threadsafe(self.saver.offer, cut)

    async def flush(self, cut: Cut, may_drain: Callable[[], bool] = lambda: True) -> None:
        """Save a cut, and return when it is saved.

        Args:
            cut: The cut.
            may_drain: Returns False where a drain must not stop the handler yet.

        Raises:
            Stopped: If a stop is requested meanwhile, or the cut can no longer be saved.
        """
        assert self.saver is not None
        try:
            await self._unless_stopped(self.saver.flush(cut), may_drain)
        except SaverClosed:
            if not self.decided:  # otherwise the saver is closed because the outcome is being recorded, with our token
                self.request_stop("lost")
            if self.stopping is None:
                raise Stopped("lost") from None
            self.deliver_stop()
            raise self.stopping from None

    async def wait_until_confirmed(self, may_drain: Callable[[], bool] = lambda: True) -> None:
        """Wait until the worker has confirmed its lease.

        Args:
            may_drain: Returns False where a drain must not stop the handler yet.

        Raises:
            Stopped: If a stop is requested meanwhile.
        """
        if self.lease.in_doubt and (self.stopping is None or self.defers_drain(may_drain)):
            await self._unless_stopped(self.lease.wait_until_confirmed(), may_drain)

    # -- waits

    def check_wait(self, cut: Callable[[], Cut]) -> None:
        """Check that a wait may begin here.

        Args:
            cut: Makes a cut. Before a stop is raised, this cut is offered to be saved.

        Raises:
            Refused: If another task or thread than the handler's own calls this method. The run would be suspended, and the other
                task would continue at the same time as the next attempt.
            Stopped: If a stop was requested.
        """
        self.check_task()
        self.start_lingering(cut)

    def check_task(self) -> None:
        """Check that the handler's own task or thread makes the call.

        Raises:
            Refused: If another task or thread makes the call.
        """
        if self.handler.is_async:
            own = asyncio.current_task() is self.task or in_awaited_task.get()
            inside = threading.get_ident() == self._thread and own
        else:
            inside = self.handler_thread in (None, threading.get_ident())
        if not inside:
            raise Refused(
                "a run can wait and enqueue only in its handler's own task or thread, not in one that the handler started"
            )

    def start_lingering(self, cut: Callable[[], Cut]) -> None:
        """Begin to count the time for which a wait lingers.

        Args:
            cut: As for `check_wait`.

        Raises:
            Stopped: If a stop was requested.
        """
        self._lingering_since = self.clock()
        if self.stopping is not None and not self.delivered:
            # Every wait begins with a cut, so the next attempt repeats nothing that the turn has done before the wait.
            self.offer(cut())
        self._raise_any_stop()

    def _raise_any_stop(self) -> None:
        """Raise the stop that was requested, even if it was raised before: a handler that was asked to stop must not wait."""
        if self.stopping is not None:
            self.deliver_stop()
            raise self.stopping

    async def _ask(self, asking: Coroutine[Any, Any, T], may_drain: Callable[[], bool] = lambda: True) -> T:
        """Await a request to the server. The request is repeated during an outage, and abandoned when a stop is requested.

        Raises:
            Stopped: If a stop was requested.
        """
        try:
            return await self._unless_stopped(asking, may_drain)
        except (Unconfirmed, Unreachable):
            self._raise_any_stop()
            raise

    async def carry_out(self, make_plan: Callable[[Keys], Plan[T]]) -> T:
        """Run a plan on the server of the run, for code that stores data beside the run. Wait while the server cannot be reached.

        Args:
            make_plan: Returns the plan for the keys of the run's partition. It is called again if the plan must be repeated.

        Raises:
            Unreachable: If a stop was requested while the server could not be reached.
        """
        assert self.waiter is not None
        return await self.waiter.carry_out(self, lambda: make_plan(self.lease.keys))

    async def look(
        self, condition: Condition, timeout_ms: int | None, may_drain: Callable[[], bool] = lambda: True
    ) -> Received:
        """Ask the server for the next signal. See `WaitBacking` and `BudgetBacking`.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
            Unreadable: If the signals of the run are damaged.
        """
        assert self.waiter is not None
        self._hint.clear()
        found = await self._ask(self.waiter.look(self, condition, timeout_ms), may_drain)
        if found.word == "fenced":
            self.request_stop("lost")
            self._raise_any_stop()
        if found.word not in ("signal", "timeout", "none"):
            raise Unreadable(f"the signals of run {self.id} can't be read: {found.word}")
        return found

    async def linger(self, condition: Condition, now: int) -> None:
        """Wait until there is a reason to look again, or suspend the run. See `WaitBacking`.

        Raises:
            Stopped: If a stop was requested, or the attempt has lingered long enough and its run is to be suspended.
        """
        assert self.waiter is not None
        self._raise_any_stop()  # another task of the handler may have got the stop, and it is raised only once elsewhere
        left = self.handler.linger - (self.clock() - self._lingering_since)
        to_deadline = math.inf if condition.deadline is None else max(0.0, (condition.deadline - now) / 1000)
        # In a sleep only the deadline can end the wait, so the attempt lingers only if the deadline is near.
        stays = (
            left > 0
            and (condition.received or condition.children or to_deadline <= left)
            and self.observer.may_linger(self)
        )
        if not stays and await self._unless_stopped(self.waiter.may_suspend(self), lambda: True):
            self.condition = condition
            self.request_stop("wait")
            self._raise_any_stop()
        seconds = min(LOOK_SECONDS, to_deadline, left if left > 0 else LOOK_SECONDS)
        await self._unless_stopped(self._wait_for_hint(seconds), lambda: True)

    # -- children

    @property
    def life(self) -> int:
        """The life of the run."""
        return self.counters.life

    def make_child_base(self) -> str:
        """Return a new id for the first child of a step, in the partition of the run."""
        assert self.waiter is not None
        return self.waiter.make_child_base(self)

    async def join_children(self, base: str, count: int, old: str, keep: Sequence[str]) -> None:
        """Announce the children of a step to the server.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
            Unreadable: If the stored data about the children is damaged.
        """
        assert self.waiter is not None
        await self._require_owner(self.waiter.join_children(self, base, count, old, keep))

    async def spawn(self, children: Sequence[Child]) -> None:
        """Enqueue children.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
            TreeCancelled: If the run was cancelled together with its tree.
        """
        assert self.waiter is not None
        await self._require_owner(self.waiter.spawn(self, [child.run for child in children]))

    async def collect(self, base: str, by: str, start: int) -> Collected:
        """Return a page of the endings of a step's children.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
        """
        assert self.waiter is not None
        self._hint.clear()
        found = await self._ask(self.waiter.collect(self, base, by, start))
        await self._require_owner(_word(found.word))
        return found

    # -- runs that the handler enqueues

    def make_run_id(self, key: str) -> str:
        """Return a new run id: in the partition of the group or idempotency key, or of this run if `key` is empty."""
        assert self.waiter is not None
        return self.waiter.make_id(self, key)

    async def enqueue(
        self, run: NewRun, inputs: Inputs[Any], options: Mapping[str, Any], may_drain: Callable[[], bool]
    ) -> Enqueued | None:
        """Enqueue a run. See `EnqueueBacking`."""
        assert self.waiter is not None
        return await self._unless_stopped(self.waiter.enqueue(self, run), may_drain)

    def call_at_end(self, close: Callable[[], object]) -> None:
        """Register a function that is called when the handler has ended."""
        self._at_end.append(close)

    def close(self) -> None:
        """Call the functions that were passed to `call_at_end`, in the handler's thread, after the handler has ended."""
        while self._at_end:
            with contextlib.suppress(Exception):  # an error of a function must not change the outcome of the handler
                self._at_end.pop()()

    async def _require_owner(self, asking: Coroutine[Any, Any, str]) -> None:
        word = await self._ask(asking)
        if word in ("fenced", "stale"):
            self.request_stop("lost")
            self._raise_any_stop()
        if word != "ok":
            raise Unreadable(f"the children of run {self.id} can't be read: {word}")

    async def _wait_for_hint(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hint.wait()

    def hint(self) -> None:
        """Make a lingering wait look again immediately, because a signal was sent or a child has ended."""
        self._hint.set()

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, T], may_drain: Callable[[], bool]) -> T:
        """Await a coroutine, but end the wait if a stop is requested meanwhile.

        Raises:
            Stopped: If a stop was requested, and `may_drain` allows the stop here.
        """
        task = self.loop.create_task(waiting)
        requested = self.loop.create_task(self._stop_requested.wait())
        try:
            await asyncio.wait({task, requested}, return_when=asyncio.FIRST_COMPLETED)
            while not task.done():
                # raise_stop raises nothing in two cases: the stop was delivered before, and the handler's clean-up may save; or
                # the stop is a drain that has to wait for the end of the turn. Another stop may still be requested.
                requested = self.loop.create_task(self._stop_changed.wait())
                self.raise_stop(may_drain)
                await asyncio.wait({task, requested}, return_when=asyncio.FIRST_COMPLETED)
            return task.result()
        finally:
            task.cancel()
            requested.cancel()

    def emit(self, letter: bytes, data: bytes) -> int:
        """Hand an event to the emitter, which sends it soon. Any thread may call this.

        Args:
            letter: e for an event, n for a note.
            data: The encoded value.

        Returns:
            The number of the event.
        """
        outbox = self.outbox or self._make_outbox()
        number = outbox.add(letter, data)
        if not self.emits_soon and not outbox.closed:
            self.emits_soon = True
            assert self.emitter is not None
            if threading.get_ident() == self._thread:
                self.emitter.schedule(self)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                    self.loop.call_soon_threadsafe(self.emitter.schedule, self)
        return number

    def _make_outbox(self) -> Outbox:
        with _outboxes:
            if self.outbox is None:
                assert self.saver is not None
                self.outbox = self.saver.outbox = Outbox(self.saver.emitted_before)
                if self.decided:
                    self.outbox.close()
            return self.outbox

    def set_note(self, note: Note) -> None:
        """Keep the handler's note for the next save or heartbeat."""
        self.note = note
        if self.saver is not None:
            self.saver.note = note

    # -- calls to the outside

    async def acquire(self, call: OpenCall, may_drain: Callable[[], bool]) -> None:
        """Wait until a call to the outside may start. See `LimitBacking`."""
        assert self.limits is not None
        try:
            await self._unless_stopped(self.limits.acquire(self, call), may_drain)
        except (Unconfirmed, Unreachable):
            self.limits.give_back(call)
            self._raise_any_stop()
            raise
        except BaseException:
            self.limits.give_back(call)
            raise

    def finish(self, call: OpenCall, cost: int | None) -> None:
        """End a call to the outside. See `LimitBacking`."""
        assert self.limits is not None
        self._on_loop(partial(self.limits.finish, call, cost))

    def back_off(self, call: OpenCall, seconds: float) -> None:
        """Let no call of a limit start for some time. See `LimitBacking`."""
        assert self.limits is not None
        self._on_loop(partial(self.limits.back_off, call, seconds))

    def _on_loop(self, send: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            send()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self.loop.call_soon_threadsafe(send)

    # -- the budget

    def set_spend(self, amount: Amount) -> None:
        """Store in memory what the attempt has spent in all. The next report, heartbeat or ending sends it."""
        self.spend = amount

    async def report_spend(self, amount: Amount) -> Amount:
        """Store what the attempt has spent in all. See `BudgetBacking`."""
        assert self.waiter is not None
        word, settled = await self._ask(self.waiter.spend(self, amount))
        await self._require_owner(_word(word))
        self.spend_stored = amount
        return settled

    # -- called by the worker

    @property
    def unsaved_note(self) -> Note | None:
        """The handler's newest note if the server has not confirmed it yet; otherwise None."""
        stored = self.note is self.note_stored or (self.saver is not None and self.note is self.saver.note_saved)
        return None if stored else self.note

    def request_stop(self, why: Why) -> bool:
        """Ask the handler to stop. The handler stops at its next cut, or where it waits for the server.

        Returns:
            False if an earlier request stays in force.
        """
        requested = super().request_stop(why)
        if requested:
            self._announce_stop()
        return requested

    def request_kill(self, error: DeadlineExceeded) -> None:
        """Ask the handler to stop because a deadline of the run has passed. The run fails with this error."""
        super().request_kill(error)
        self._announce_stop()

    def _announce_stop(self) -> None:
        """Wake all coroutines that wait in `_unless_stopped` at this moment."""
        self._stop_requested.set()
        self._stop_changed.set()
        self._stop_changed = asyncio.Event()

    def cancel(self) -> None:
        """Cancel the task of an async handler. For a plain handler do nothing: it stops at its next cut."""
        if self.performing and self.handler.is_async and self.task is not None and self.task.cancel():
            self.deliver_stop()

    def lose(self) -> None:
        """Stop the attempt and its saver immediately, because the run belongs, or may belong, to another owner."""
        self.request_stop("lost")
        if self.saver is not None:
            self.saver.close()
        self.cancel()
        self.observer.on_lost(self)
