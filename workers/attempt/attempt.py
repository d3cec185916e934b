"""One attempt at a run, from its claim to its end. The `Run` that a handler receives works through its attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import cached_property
from typing import Any, Protocol

from coordinator.model.deadline import DeadlineExceeded
from coordinator.model.outcome import Why
from coordinator.model.run import Counters, Note
from coordinator.store.plans.workers import Claimed
from workers.attempt.lifecycle import Lifecycle
from workers.attempt.saver import Saver, SaverClosed
from workers.handlers.context import Facts, Stopped
from workers.handlers.draft import Cut, Draft
from workers.handlers.handler import Handler
from workers.liveness.lease import Lease


class AttemptObserver(Protocol):
    """The methods that an attempt calls on its worker when the attempt is lost, makes progress or is out of time."""

    def on_lost(self, attempt: Attempt) -> None:
        """Handle the loss of an attempt: its run belongs to another owner now."""

    def on_progress(self, attempt: Attempt) -> None:
        """Handle progress of an attempt, as the server counts it."""

    def on_deadline(self, attempt: Attempt, error: DeadlineExceeded) -> None:
        """Kill an attempt whose deadline has passed. Its run fails with this error."""


class Attempt(Lifecycle):
    """A claimed run in this process.

    An attempt belongs to the worker's event loop. A handler in a thread uses the attempt through its Run.

    Args:
        claimed: The run, as the claim returned it.
        lease: The lease under which the run was claimed.
        handler: The handler of the run's kind.
        threads: The threads in which plain functions run.
        observer: Is called when the attempt is lost, makes progress or is out of time.
        gate: The attempt starts when this future is done. None to start immediately.
    """

    def __init__(
        self,
        claimed: Claimed,
        lease: Lease,
        handler: Handler[..., Any],
        threads: Executor,
        observer: AttemptObserver,
        gate: asyncio.Future[None] | None = None,
    ) -> None:
        super().__init__()
        self.claimed, self.lease, self.handler = claimed, lease, handler
        self.threads, self.observer, self.gate = threads, observer, gate
        self.loop = asyncio.get_running_loop()
        self.id, self.token = claimed.id, claimed.token
        self.key = (claimed.id, claimed.token)
        self.facts: Facts | None = None
        self.draft: Draft | None = None
        self.saver: Saver | None = None
        self.task: asyncio.Task[None] | None = None
        self.note: Note | None = None
        self.note_sent: Note | None = None
        self.note_stored: Note | None = None  # the newest note that the server has confirmed after a heartbeat
        self._stop_requested, self._stop_changed = asyncio.Event(), asyncio.Event()
        self._thread = threading.get_ident()

    @cached_property
    def counters(self) -> Counters:
        """All counters of the run at its claim."""
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

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, None], may_drain: Callable[[], bool]) -> None:
        """Await a coroutine, but end the wait if a stop is requested meanwhile.

        Raises:
            Stopped: If a stop was requested, and `may_drain` allows to raise it here.
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

    def set_note(self, note: Note) -> None:
        """Keep the handler's note for the next save or heartbeat."""
        self.note = note
        if self.saver is not None:
            self.saver.note = note

    # -- called by the worker

    @property
    def unsaved_note(self) -> Note | None:
        """The newest note, unless the server has confirmed it."""
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
