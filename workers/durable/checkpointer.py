"""Save the record of one run: `Checkpointer` for threads, `AsyncCheckpointer` for an event loop.

The first save goes to the store immediately. Saves within the throttle's window replace each other, and the newest is
saved in the background when the window ends. A save with a newly completed phase does not wait. `complete` and `fail`
delete the record. A program that shuts down calls neither, so the record stays for the next start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordinator.clock import Clock, SystemClock
from workers.durable.records.record import Meta, Phase
from workers.durable.save_pace import SavePace
from workers.durable.stores.store_protocols import AsyncCheckpointStore, CheckpointStore

logger = logging.getLogger(__name__)
THROTTLE = 1.0  # seconds between two saves


class Checkpointer:
    """Save the record of one run, and delete the record when the run ends.

    Args:
        store: Where the record is stored. With None every call succeeds and does nothing.
        meta: The metadata of the run.
        throttle: Seconds between two saves. With 0 every save goes to the store.
        clock: The time source. Only tests pass one.
    """

    def __init__(
        self, store: CheckpointStore | None, meta: Meta, throttle: float = THROTTLE, clock: Clock | None = None
    ) -> None:
        self.meta = meta
        self._store, self._clock = store, clock or SystemClock()
        self._pace = SavePace(meta, throttle, self._clock)
        self._lock = threading.Lock()  # guards the pace
        self._saving = threading.Lock()  # one save at a time, and none after the end
        self._timer_running = False

    def save(
        self,
        messages: Sequence[Any] = (),
        iteration: int = 0,
        phases: Iterable[Phase] = (),
        state: Mapping[str, Any] | None = None,
        schema: int = 1,
    ) -> None:
        """Save the run's state now, or in the background when the throttle's window ends.

        A save that fails raises, and is repeated in the background until it succeeds or a newer save replaces it.

        Args:
            messages: All messages so far. The store gets only the new ones.
            iteration: A count of the progress, for example of completed turns.
            phases: The completed phases: `Phases.completed`.
            state: A small dict of plain data.
            schema: The version of the program's own data.

        Raises:
            NotPlain: If a value is not plain data. The message names its place.
            TooLarge: If a value, or the whole record, is too large.
            Fenced: If another process has taken over the run.
            Refused: If the run has ended.
            Unreachable: If the store could not be reached.
        """
        if self._store is None:
            return
        with self._lock:
            immediately = self._pace.submit(messages, iteration, phases, state or {}, schema)
        try:
            if immediately:
                self.flush()
        finally:
            self._start_timer()

    def flush(self) -> None:
        """Save the pending record now. Call this method before a shutdown, so that the next start finds the newest state.

        Raises:
            CoordinatorError: If the store could not save the record. Unless it refused the record, the record stays pending.
        """
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
        """Delete the record, because the run has completed."""
        self._end("completed")

    def fail(self, error: BaseException | None = None) -> None:
        """Delete the record, because the run has failed for good and must not be resumed.

        Args:
            error: The run's error. It is not stored.
        """
        self._end("failed")

    def _end(self, how: str) -> None:
        if self._store is None:
            return
        with self._lock:
            self._pace.end(how)
        with self._saving:
            self._store.delete(self.meta.run_id)

    def _start_timer(self) -> None:
        """Start a thread that saves the pending record when it is due, unless there is no such record or a thread already waits."""
        with self._lock:
            if self._pace.wait() is not None and not self._timer_running:
                self._timer_running = True
                threading.Thread(target=self._save_when_due, name=f"save-{self.meta.run_id}", daemon=True).start()

    def _save_when_due(self) -> None:
        """Save the pending record when it is due. Repeat a failed save with back-off."""
        while True:
            with self._lock:
                wait = self._pace.wait()
                if wait is None:
                    self._timer_running = False
                    return
            if wait > 0:
                self._clock.sleep(wait)
                continue  # a save may have started a new window meanwhile
            try:
                self.flush()
            except Exception as error:  # noqa: BLE001  # a store may raise anything: it is repeated, or the next save raises it
                _log_failed_save(self.meta, error)


class AsyncCheckpointer:
    """Save the record of one run in an event loop, and delete the record when the run ends.

    Args:
        store: Where the record is stored. With None every call succeeds and does nothing.
        meta: The metadata of the run.
        throttle: Seconds between two saves. With 0 every save goes to the store.
        clock: The time source. Only tests pass one.
    """

    def __init__(
        self, store: AsyncCheckpointStore | None, meta: Meta, throttle: float = THROTTLE, clock: Clock | None = None
    ) -> None:
        self.meta = meta
        self._store, self._clock = store, clock or SystemClock()
        self._pace = SavePace(meta, throttle, self._clock)
        self._saving = asyncio.Lock()  # one save at a time, and none after the end
        self._timer: asyncio.Task[None] | None = None

    async def save(
        self,
        messages: Sequence[Any] = (),
        iteration: int = 0,
        phases: Iterable[Phase] = (),
        state: Mapping[str, Any] | None = None,
        schema: int = 1,
    ) -> None:
        """Save the run's state now, or in the background when the throttle's window ends.

        A save that fails raises, and is repeated in the background until it succeeds or a newer save replaces it.

        Args:
            messages: All messages so far. The store gets only the new ones.
            iteration: A count of the progress, for example of completed turns.
            phases: The completed phases: `Phases.completed`.
            state: A small dict of plain data.
            schema: The version of the program's own data.

        Raises:
            NotPlain: If a value is not plain data. The message names its place.
            TooLarge: If a value, or the whole record, is too large.
            Fenced: If another process has taken over the run.
            Refused: If the run has ended.
            Unreachable: If the store could not be reached.
        """
        if self._store is None:
            return
        immediately = self._pace.submit(messages, iteration, phases, state or {}, schema)
        try:
            if immediately:
                await self.flush()
        finally:
            self._start_timer()

    async def flush(self) -> None:
        """Save the pending record now. Call this method before a shutdown, so that the next start finds the newest state.

        Raises:
            CoordinatorError: If the store could not save the record. Unless it refused the record, the record stays pending.
        """
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
        """Delete the record, because the run has completed."""
        await self._end("completed")

    async def fail(self, error: BaseException | None = None) -> None:
        """Delete the record, because the run has failed for good and must not be resumed.

        Args:
            error: The run's error. It is not stored.
        """
        await self._end("failed")

    async def _end(self, how: str) -> None:
        if self._store is None:
            return
        self._pace.end(how)
        async with self._saving:
            if self._timer is not None:
                self._timer.cancel()
            await self._store.delete(self.meta.run_id)

    def _start_timer(self) -> None:
        """Start a task that saves the pending record when it is due, unless there is no such record or a task already waits."""
        if self._pace.wait() is not None and (self._timer is None or self._timer.done()):
            self._timer = asyncio.get_running_loop().create_task(self._save_when_due())

    async def _save_when_due(self) -> None:
        """Save the pending record when it is due. Repeat a failed save with back-off."""
        while (wait := self._pace.wait()) is not None:
            if wait > 0:
                await self._clock.asleep(wait)
                continue  # a save may have started a new window meanwhile
            try:
                await self.flush()
            except Exception as error:  # noqa: BLE001  # a store may raise anything: it is repeated, or the next save raises it
                _log_failed_save(self.meta, error)


def _log_failed_save(meta: Meta, error: Exception) -> None:
    logger.warning("record not saved: run %s: %s", meta.run_id, error)
