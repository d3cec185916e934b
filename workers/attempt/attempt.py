"""One attempt at a run, from its claim to its end. The `Run` that a handler receives works through its attempt.

An attempt is built in layers: lifecycle.py has its states, base.py its stop and its saves, waits/waiting.py its waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import cached_property, partial
from typing import Any, Protocol

from coordinator.middleware import NO_MIDDLEWARE, AttemptInfo, MiddlewareChain
from coordinator.model.policies.deadline import DeadlineExceeded
from coordinator.model.run import Counters, Note
from coordinator.store.plans.workers import Claimed
from workers.attempt.output.emitter import Emitter
from workers.attempt.output.outbox import Outbox
from workers.attempt.waits.waiting import WaitingAttempt
from workers.handlers.checkpoint.draft import Draft
from workers.handlers.facts import Facts
from workers.handlers.handler import Handler
from workers.liveness.lease import Lease


class AttemptObserver(Protocol):
    """The methods that an attempt calls on its worker when the attempt is lost, makes progress or is out of time."""

    def on_lost(self, attempt: Attempt) -> None:
        """Stop the handler of a lost attempt. Its run belongs, or may belong, to another owner."""

    def on_progress(self, attempt: Attempt) -> None:
        """Record that the server has counted progress of the attempt's run."""

    def may_linger(self, attempt: Attempt) -> bool:
        """Return False if a waiting handler must end, because another run could use its slot."""
        ...

    def on_deadline(self, attempt: Attempt, error: DeadlineExceeded) -> None:
        """Kill an attempt whose deadline has passed. Its run fails with `error`."""


_outboxes = threading.Lock()  # held while an attempt gets its outbox, because several threads of a handler may emit


class Attempt(WaitingAttempt):
    """One attempt at a claimed run in this process.

    An attempt belongs to the worker's event loop. A handler in a thread uses the attempt through its Run.

    Args:
        claimed: The run, as the claim returned it.
        lease: The lease under which the run was claimed.
        handler: The handler of the run's kind.
        threads: The threads in which plain functions run.
        clock: A function that returns the monotonic time in seconds.
        observer: The object that is called when the attempt is lost, makes progress or is out of time.
        gate: The attempt starts when this future is done. None to start immediately.
    """

    # Defaults of the class, as in `BaseAttempt`.
    facts: Facts | None = None
    draft: Draft | None = None
    loading: int | None = None  # while the checkpoint is being loaded: how many loads have failed
    note: Note | None = None
    note_sent: Note | None = None  # the note that the last heartbeat carried
    note_stored: Note | None = None  # the newest note that the server has confirmed after a heartbeat
    has_group = False  # whether other runs may wait for the place of the run in its group
    emitter: Emitter | None = None
    outbox: Outbox | None = None  # the first call of `emit` makes it
    emits_soon = False  # whether the emitter will send the events in the outbox
    measuring: asyncio.Task[None] | None = None  # measures how long the run had no worker
    began = 0.0  # the monotonic time at which the worker had the answer to its claim
    middleware: MiddlewareChain = NO_MIDDLEWARE
    around_step: Callable[[str, str], contextlib.AbstractContextManager[None]] | None = None  # for middleware
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
        super().__init__(claimed, lease, handler, clock)
        self.threads, self.observer, self.gate = threads, observer, gate
        self._at_end: list[Callable[[], object]] = []

    @cached_property
    def counters(self) -> Counters:
        """All counters of the run, as they were when it was claimed."""
        return Counters.parse(self.claimed.counters)

    @cached_property
    def number(self) -> int:
        """The number of this attempt. Reading it alone is cheaper than `counters`, and every attempt needs the number."""
        return int(self.claimed.counters.split(" ", 2)[1])

    @property
    def life(self) -> int:
        """The life of the run: 1, and 1 more after each time it was revived."""
        return self.counters.life

    # -- called by the handler's Run

    def emit(self, letter: bytes, data: bytes) -> int:
        """Pass an event to the emitter, which sends it soon. Any thread may call this.

        Args:
            letter: `e` for an event, `n` for a note.
            data: The encoded value.

        Returns:
            The number of the event.
        """
        outbox = self.outbox or self._make_outbox()
        number = outbox.add(letter, data)
        if not self.emits_soon and not outbox.closed:
            self.emits_soon = True
            assert self.emitter is not None
            self.on_loop(partial(self.emitter.schedule, self))
        return number

    def _make_outbox(self) -> Outbox:
        with _outboxes:
            if self.outbox is None:
                assert self.saver is not None
                assert self.emitter is not None
                self.outbox = self.saver.outbox = Outbox(self.saver.emitted_before, self.emitter.unsent)
                if self.decided:
                    self.outbox.close()
            return self.outbox

    def set_note(self, note: Note) -> None:
        """Keep the handler's note for the next save or heartbeat."""
        self.note = note
        if self.saver is not None:
            self.saver.note = note

    def call_at_end(self, close: Callable[[], object]) -> None:
        """Register a function that is called when the handler has ended."""
        self._at_end.append(close)

    def close(self) -> None:
        """Call the functions that were passed to `call_at_end`, in the handler's thread, after the handler has ended."""
        while self._at_end:
            with contextlib.suppress(Exception):  # an error of a function must not change the outcome of the handler
                self._at_end.pop()()

    def may_linger(self) -> bool:
        """Return False if the waiting handler must end, because another run could use its slot."""
        return self.observer.may_linger(self)

    # -- called by the worker

    @property
    def unsaved_note(self) -> Note | None:
        """The handler's newest note if the server has not confirmed it yet; otherwise None."""
        stored = self.note is self.note_stored or (self.saver is not None and self.note is self.saver.note_saved)
        return None if stored else self.note

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
