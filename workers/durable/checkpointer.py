"""Saves the checkpoints of one run for a program with an executor of its own: `Checkpointer`, and the same in an event loop.

The first save goes at once; inside the window the newest is held, and goes by itself when the window ends. A save that completes
a phase does not wait. Complete and fail delete the checkpoint; a shutdown calls neither, so it is there for the next start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from coordinator.clock import Clock, SystemClock
from coordinator.errors import Refused, ServerFull
from workers.durable.record import AsyncCheckpointStore, Checkpoint, CheckpointStore, Fenced, Meta, Phase
from workers.throttle import Throttle

logger = logging.getLogger(__name__)
THROTTLE = 1.0
LONGEST_BACK_OFF = 5.0


class Pace:
    """Which checkpoint is to be saved next, and when. Decides only; whoever asks does it."""

    def __init__(self, meta: Meta, window: float, clock: Clock) -> None:
        self.meta = meta
        self._throttle, self._clock = Throttle(window), clock
        self._held: Checkpoint | None = None
        self._phases = 0  # that were saved
        self._failures, self._retry_at = 0, 0.0
        self._ended = ""
        self._fenced: Fenced | None = None

    def hold(
        self, messages: Sequence[Any], iteration: int, phases: Iterable[Phase], state: Mapping[str, Any], schema: int
    ) -> bool:
        """The newest, as it is now, whatever becomes of its messages. Answers whether it goes at once."""
        if self._fenced is not None:
            raise self._fenced
        if self._ended:
            raise Refused(f"run {self.meta.run_id} has {self._ended}: nothing can be saved of it any more")
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        self._held = Checkpoint(self.meta, messages, iteration, tuple(phases), state, now, schema).frozen()
        return len(self._held.phases) > self._phases or self._throttle.wait(self._clock.monotonic()) <= 0

    def wait(self) -> float | None:
        """Seconds until what is held is due; None where nothing is."""
        if self._held is None:
            return None
        now = self._clock.monotonic()
        return max(0.0, self._retry_at - now) if self._failures else self._throttle.wait(now)

    def begin(self) -> tuple[Checkpoint, float] | None:
        """What is to be saved now, and the time at which that began."""
        held, self._held = self._held, None
        return None if held is None else (held, self._clock.monotonic())

    def saved(self, checkpoint: Checkpoint, begun: float) -> None:
        """The clock advances only now: a save that failed throttles nothing away."""
        self._throttle.saved(begun)
        self._phases, self._failures = len(checkpoint.phases), 0

    def failed(self, checkpoint: Checkpoint, error: BaseException) -> None:
        """It is still the newest, unless a newer one came meanwhile; it is tried again, unless it was refused for good."""
        if isinstance(error, Fenced):
            self._fenced, self._held = error, None
            return
        self._failures += 1
        self._retry_at = self._clock.monotonic() + min(0.1 * 2 ** min(self._failures, 10), LONGEST_BACK_OFF)
        for_good = isinstance(error, Refused) and not isinstance(error, ServerFull)
        if self._held is None and not self._ended and not for_good:
            self._held = checkpoint

    def end(self, how: str) -> None:
        self._ended, self._held = how, None


class Checkpointer:
    """Saves one run's checkpoints, and deletes them at its end. Without a store every call succeeds and does nothing."""

    def __init__(
        self, store: CheckpointStore | None, meta: Meta, throttle: float = THROTTLE, clock: Clock | None = None
    ) -> None:
        self.meta = meta
        self._store, self._clock = store, clock or SystemClock()
        self._pace = Pace(meta, throttle, self._clock)
        self._lock = threading.Lock()  # around the pace
        self._saving = threading.Lock()  # one save at a time, and none after the end
        self._waits = False

    def save(
        self,
        messages: Sequence[Any] = (),
        iteration: int = 0,
        phases: Iterable[Phase] = (),
        state: Mapping[str, Any] | None = None,
        schema: int = 1,
    ) -> None:
        """Saves, or holds it until the window ends. What can't be kept raises here; so does a store that fails."""
        if self._store is None:
            return
        with self._lock:
            at_once = self._pace.hold(messages, iteration, phases, state or {}, schema)
        try:
            if at_once:
                self.flush()
        finally:
            self._see_to_it()

    def flush(self) -> None:
        """What is held is saved when it returns. For a shutdown: the newest is there for the next start."""
        with self._saving:
            with self._lock:
                begun = self._pace.begin()
            if begun is None or self._store is None:
                return
            try:
                self._store.save(begun[0])
            except BaseException as error:
                with self._lock:
                    self._pace.failed(begun[0], error)
                raise
            with self._lock:
                self._pace.saved(*begun)

    def complete(self) -> None:
        """The run is done: its checkpoint is deleted."""
        self._end("completed")

    def fail(self, error: BaseException | None = None) -> None:
        """The run has failed for good: its checkpoint is deleted, so that no start tries it again."""
        self._end("failed")

    def _end(self, how: str) -> None:
        if self._store is None:
            return
        with self._lock:
            self._pace.end(how)
        with self._saving:
            self._store.delete(self.meta.run_id)

    def _see_to_it(self) -> None:
        """What is held, for its window or because it could not be saved, has somebody who waits for its time."""
        with self._lock:
            if self._pace.wait() is not None and not self._waits:
                self._waits = True
                threading.Thread(target=self._when_due, name=f"save-{self.meta.run_id}", daemon=True).start()

    def _when_due(self) -> None:
        """Saves what is held when its time comes; again, with back-off, where that fails."""
        while True:
            with self._lock:
                wait = self._pace.wait()
                if wait is None:
                    self._waits = False
                    return
            if wait > 0:
                self._clock.sleep(wait)
                continue  # a newer one may have been saved meanwhile: its window counts
            try:
                self.flush()
            except Exception as error:  # noqa: BLE001  # any store's: the next save tells of it, or this one is tried again
                logger.warning("the checkpoint of run %s could not be saved: %s", self.meta.run_id, error)


class AsyncCheckpointer:
    """Saves one run's checkpoints, and deletes them at its end. Without a store every call succeeds and does nothing."""

    def __init__(
        self, store: AsyncCheckpointStore | None, meta: Meta, throttle: float = THROTTLE, clock: Clock | None = None
    ) -> None:
        self.meta = meta
        self._store, self._clock = store, clock or SystemClock()
        self._pace = Pace(meta, throttle, self._clock)
        self._saving = asyncio.Lock()  # one save at a time, and none after the end
        self._waiting: asyncio.Task[None] | None = None

    async def save(
        self,
        messages: Sequence[Any] = (),
        iteration: int = 0,
        phases: Iterable[Phase] = (),
        state: Mapping[str, Any] | None = None,
        schema: int = 1,
    ) -> None:
        """Saves, or holds it until the window ends. What can't be kept raises here; so does a store that fails."""
        if self._store is None:
            return
        at_once = self._pace.hold(messages, iteration, phases, state or {}, schema)
        try:
            if at_once:
                await self.flush()
        finally:
            self._see_to_it()

    async def flush(self) -> None:
        """What is held is saved when it returns. For a shutdown: the newest is there for the next start."""
        async with self._saving:
            begun = self._pace.begin()
            if begun is None or self._store is None:
                return
            try:
                await self._store.save(begun[0])
            except BaseException as error:
                self._pace.failed(begun[0], error)
                raise
            self._pace.saved(*begun)

    async def complete(self) -> None:
        """The run is done: its checkpoint is deleted."""
        await self._end("completed")

    async def fail(self, error: BaseException | None = None) -> None:
        """The run has failed for good: its checkpoint is deleted, so that no start tries it again."""
        await self._end("failed")

    async def _end(self, how: str) -> None:
        if self._store is None:
            return
        self._pace.end(how)
        async with self._saving:
            if self._waiting is not None:
                self._waiting.cancel()
            await self._store.delete(self.meta.run_id)

    def _see_to_it(self) -> None:
        """What is held, for its window or because it could not be saved, has somebody who waits for its time."""
        if self._pace.wait() is not None and (self._waiting is None or self._waiting.done()):
            self._waiting = asyncio.get_running_loop().create_task(self._when_due())

    async def _when_due(self) -> None:
        """Saves what is held when its time comes; again, with back-off, where that fails."""
        while (wait := self._pace.wait()) is not None:
            if wait > 0:
                await self._clock.asleep(wait)
                continue  # a newer one may have been saved meanwhile: its window counts
            try:
                await self.flush()
            except Exception as error:  # noqa: BLE001  # any store's: the next save tells of it, or this one is tried again
                logger.warning("the checkpoint of run %s could not be saved: %s", self.meta.run_id, error)
