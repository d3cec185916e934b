"""One attempt at a run, from its claim to its end: what stands behind the `Run` that a handler is given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import cached_property
from typing import Any

from coordinator.model.deadline import DeadlineExceeded
from coordinator.model.outcome import Stop, Why
from coordinator.model.run import Counters, Note
from coordinator.store.plans.workers import Claimed
from workers.attempt.saver import Saver, SaverClosed
from workers.handlers.context import Facts, Stopped
from workers.handlers.draft import Cut, Draft
from workers.handlers.handler import Handler
from workers.liveness.lease import Lease


class Attempt:
    """A claimed run in this process. Lives on the worker's event loop; handlers in threads reach it through their Run."""

    def __init__(self, claimed: Claimed, lease: Lease, handler: Handler[..., Any], threads: Executor) -> None:
        self.claimed, self.lease, self.handler = claimed, lease, handler
        self.loop = asyncio.get_running_loop()
        self.id, self.token = claimed.id, claimed.token
        self.key = (claimed.id, claimed.token)
        self.stopping: Stopped | None = None
        self.delivered = False
        self.performing = False
        self.ended = False  # its outcome is decided: whatever the handler still does counts no more
        self.unrecorded = (
            False  # its outcome could not be written: nobody here holds the run, and the server does not know
        )
        self.killed: DeadlineExceeded | None = None
        self.facts: Facts | None = None
        self.draft: Draft | None = None
        self.saver: Saver | None = None
        self.task: asyncio.Task[None] | None = None
        self.threads = threads
        self.note: Note | None = None
        self.note_told: Note | None = None
        self.gate: asyncio.Future[None] | None = None  # it begins when this is done
        self.on_lost: Callable[[Attempt], None] = lambda attempt: None
        self.on_progress: Callable[[Attempt], None] = lambda attempt: None
        self._stop_asked = asyncio.Event()
        self._thread = threading.get_ident()

    @cached_property
    def counters(self) -> Counters:
        return Counters.parse(self.claimed.counters)

    @cached_property
    def number(self) -> int:
        """Which attempt at the run this is. Asked of every one: all its counters are asked of few."""
        return int(self.claimed.counters.split(" ", 2)[1])

    # -- what the handler's Run asks for

    def offer(self, cut: Cut) -> None:
        if self.saver is None or self.ended:
            return
        if threading.get_ident() == self._thread:
            self.saver.offer(cut)
        else:
            self.loop.call_soon_threadsafe(self.saver.offer, cut)

    async def flush(self, cut: Cut) -> None:
        assert self.saver is not None
        try:
            await self._unless_stopped(self.saver.flush(cut))
        except SaverClosed:
            if not self.ended:  # else it is closed because its outcome is being recorded, and the token is ours
                self.stop("lost")
            self.delivered = True
            raise self.stopping or Stopped("lost") from None

    async def wait_until_confirmed(self) -> None:
        if self.lease.in_doubt and self.stopping is None:
            await self._unless_stopped(self.lease.wait_until_confirmed())

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Waits for it; a stop that is asked for meanwhile is raised here."""
        task = self.loop.create_task(waiting)
        asked = self.loop.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            self._raise_stop()
            await task  # delivered before: whoever cleans up may still save
        finally:
            task.cancel()
            asked.cancel()

    def _raise_stop(self) -> None:
        if self.stopping is not None and not self.delivered:
            self.delivered = True
            raise self.stopping

    def say(self, note: Note) -> None:
        self.note = note
        if self.saver is not None:
            self.saver.note = note

    # -- what the worker asks for

    def stop(self, why: Why) -> None:
        """Tells the handler; at its next cut, or where it waits for the server, it is raised. A lost token overrides."""
        if self.stopping is None or (why == "lost" and self.stopping.why != "lost"):
            self.stopping = Stopped(why)
            self._stop_asked.set()

    @property
    def may_be_killed(self) -> bool:
        """One that is being cancelled, or is lost, ends anyway. A drain may take long, and the run would go on after it."""
        return self.killed is None and (self.stopping is None or self.stopping.why == "drain")

    def kill(self, error: DeadlineExceeded) -> None:
        """Its time is over: whatever comes of it now, except a result that is there first, it has failed with this."""
        self.killed = error
        self.stopping = Stopped("deadline")
        self._stop_asked.set()

    def cancel(self) -> None:
        """Puts a cancellation into an async handler. A plain one stops at its cuts."""
        if self.performing and self.handler.is_async and self.task is not None and self.task.cancel():
            self.delivered = True

    def lose(self) -> None:
        """The token is another's: stop at once."""
        self.stop("lost")
        if self.saver is not None:
            self.saver.close()
        self.cancel()
        self.on_lost(self)

    @property
    def lost(self) -> bool:
        return self.stopping is not None and self.stopping.why == "lost"

    @property
    def stop_asked(self) -> Stop | None:
        return None if self.stopping is None else Stop(self.stopping.why, self.delivered, self.killed)
