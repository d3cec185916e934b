"""The base of an attempt: its run, its lease, the stop of its handler, and the saves of its cuts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any, TypeVar

from coordinator.errors import Refused
from coordinator.model.outcome import Why
from coordinator.model.policies.deadline import DeadlineExceeded
from coordinator.store.plans.workers import Claimed
from workers.attempt.lifecycle import Lifecycle
from workers.attempt.saver import Saver, SaverClosed
from workers.handlers.checkpoint.draft import Cut
from workers.handlers.facts import Stopped
from workers.handlers.handler import Handler
from workers.handlers.operations.waits import in_awaited_task
from workers.liveness.lease import Lease

T = TypeVar("T")


class BaseAttempt(Lifecycle):
    """The run of an attempt, its stop and its saves. Every wait of the attempt ends when a stop is requested.

    Args:
        claimed: The run, as the claim returned it.
        lease: The lease under which the run was claimed.
        handler: The handler of the run's kind.
        clock: A function that returns the monotonic time in seconds.
    """

    # Defaults of the class: most attempts are short, and an attempt with more than 30 attributes of its own takes longer to make.
    task: asyncio.Task[None] | None = None
    handler_thread: int | None = None  # the id of the thread in which a plain handler runs
    saver: Saver | None = None

    def __init__(self, claimed: Claimed, lease: Lease, handler: Handler[..., Any], clock: Callable[[], float]) -> None:
        super().__init__()
        self.claimed, self.lease, self.handler, self.clock = claimed, lease, handler, clock
        self.id, self.token = claimed.id, claimed.token
        self.key = (claimed.id, claimed.token)
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    # -- saves

    def offer(self, cut: Cut) -> None:
        """Pass a cut to the saver, which saves it later. Any thread may call this."""
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
            await self.unless_stopped(self.saver.flush(cut), may_drain)
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
            await self.unless_stopped(self.lease.wait_until_confirmed(), may_drain)

    def may_call(self) -> bool:
        """Return True if the handler may begin the external call of an effect now. Any thread may call this.

        The answer is False while the lease is in doubt, after the run was lost, and between the request of a stop other than a
        drain and its delivery. After the delivery, the clean-up of the handler may have effects.
        """
        stop = self.stopping
        if stop is not None and (stop.why == "lost" or (stop.why != "drain" and not self.delivered)):
            return False
        return not self.lease.in_doubt

    # -- stops

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
        """Ask the handler to stop because a deadline of the run has passed. The run fails with `error`."""
        super().request_kill(error)
        self._announce_stop()

    @cached_property
    def _stop_requested(self) -> asyncio.Event:
        return asyncio.Event()

    @cached_property
    def _stop_changed(self) -> asyncio.Event:
        return asyncio.Event()

    def _announce_stop(self) -> None:
        """Wake all coroutines that wait in `unless_stopped` at this moment."""
        self._stop_requested.set()
        self._stop_changed.set()
        self._stop_changed = asyncio.Event()

    def raise_any_stop(self) -> None:
        """Raise the requested stop, even if it was raised before: a handler that was asked to stop must not wait."""
        if self.stopping is not None:
            self.deliver_stop()
            raise self.stopping

    async def unless_stopped(self, waiting: Coroutine[Any, Any, T], may_drain: Callable[[], bool]) -> T:
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

    # -- threads and tasks

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

    def on_loop(self, send: Callable[[], None]) -> None:
        """Call a function in the thread of the worker's event loop. Any thread may call this method."""
        if threading.get_ident() == self._thread:
            send()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self.loop.call_soon_threadsafe(send)
