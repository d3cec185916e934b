"""Save the cuts of one attempt.

The saver sends one save at a time, and only the changes since the last one. The first cut is saved immediately. Inside the
throttle's window the saver holds the newest cut and saves it when the window ends; only a successful save starts a new window.
After a failure the saver tries again by itself. It runs on the worker's event loop.

A saver of a worker sends its saves with those of the other attempts, see save_batch.py. It needs a task of its own only while
it holds a cut, after a failure, and for a save that carries events.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property

from coordinator.clock import Clock
from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import encode
from coordinator.errors import CoordinatorError, Unconfirmed, Unreachable, Unreadable
from coordinator.model.run import Note
from coordinator.store.keys import Keys
from coordinator.store.plans.attempts import Delta, Output
from workers.attempt.deltas import Deltas
from workers.attempt.output.outbox import Outbox
from workers.attempt.save_batch import Item, SaveBatch
from workers.handlers.checkpoint.bookkeeping import Bookkeeping
from workers.handlers.checkpoint.draft import Cut
from workers.handlers.checkpoint.messages import Messages, chunk
from workers.throttle import Throttle

logger = logging.getLogger(__name__)
Send = Callable[[Delta], Awaitable[tuple[str, int]]]
Measure = Callable[[Delta, float, str], None]
LONGEST_BACK_OFF = 5.0


class SaverClosed(Exception):
    """The error of a flush on a closed saver: the run belongs to another owner, or its outcome is being recorded."""


def _ignore() -> None:
    return


async def _yes() -> bool:
    return True


def _no() -> bool:
    return False


async def _refuse_save(delta: Delta) -> tuple[str, int]:
    return "fenced", 0


class SentSave:
    """A save that a batch has sent.

    The batch keeps it until the server has answered. If the saver is closed meanwhile, the save forgets the saver, which holds the
    whole transcript.
    """

    __slots__ = ("begun", "cut", "delta", "item", "note", "number", "saver")

    def __init__(self, saver: Saver, begun: float, number: int, cut: Cut, note: Note | None, delta: Delta) -> None:
        self.saver: Saver | None = saver
        self.begun, self.number, self.note = begun, number, note
        self.cut: Cut | None = cut
        self.delta: Delta | None = delta
        self.item: Item = (saver.id, saver.token, delta.wire())

    def answered(self, word: str, progress: int) -> None:
        """Pass the server's answer word and the run's progress counter to the saver, unless it was closed."""
        saver, cut, delta = self.saver, self.cut, self.delta
        if saver is not None and cut is not None and delta is not None:
            saver.context.run(saver.batch_answered, self, cut, delta, word, progress)

    def failed(self, error: Exception) -> None:
        """Tell the saver that the server did not answer, or refused the whole request."""
        if self.saver is not None:
            self.saver.context.run(self.saver.batch_failed, error)

    def forget(self) -> None:
        """Drop all references to the run. The server's answer will be ignored."""
        self.saver = self.cut = self.delta = None
        self.item = (self.item[0], "", b"")


class Saver:
    """Save the newest cut of an attempt.

    Args:
        head: The head of the stored checkpoint.
        schema: The schema of the handler.
        start: The cut with which the attempt begins.
        throttle: Decides when the next save may be sent.
        clock: The time source.
        send: Sends one save, and returns the server's answer and the run's progress counter.

    Attributes:
        keys: The keys of the run's partition, for a saver that uses a batch.
        id: The id of the run, for a saver that uses a batch.
        token: The token of the run's owner, for a saver that uses a batch.
        context: The context of the attempt, by which log lines name the run, for a saver that uses a batch.
        measure: A function that is called after each save with its changes, its seconds and the server's answer; None to measure
            nothing.
        note: The newest note of the handler.
        note_saved: The note that the last successful save has stored.
        progress: The run's progress counter after the last save.
        on_progress: The function that is called when the progress counter has grown.
        on_fenced: The function that is called when the server refuses a save because the run belongs to another owner.
        may_carry_events: Returns False while a save must not carry events, because a live process does not know outputs. It
            sends most events first if there are many.
        has_unstored_spending: Returns True while the server does not have the total that the attempt has spent. The sender of a
            single save stores the total first, so such a save is not sent with a batch.
        closed: True if the saver is closed.
        offered: The number of cuts that were offered.
        emitted_before: The number of the last event that the checkpoint covered when the attempt began.
        outbox: The events that the handler has emitted, if any. Each save carries the events that the server may not have yet.
        saved_at: The monotonic time at which the newest saved cut was sent; None if this attempt has saved nothing yet.
    """

    # Defaults of the class: most attempts are short, and many of them save nothing.
    keys: Keys
    context: contextvars.Context
    id = token = ""
    measure: Measure | None = None
    note: Note | None = None
    note_saved: Note | None = None
    outbox: Outbox | None = None
    saved_at: float | None = None
    closed = False
    offered = _saved = _sent = 0
    _task: asyncio.Task[None] | None = None
    _batch: SaveBatch | None = None
    _in_batch = False  # whether the saver waits for the next batch, or for the answer to its save
    _in_flight: SentSave | None = None

    def __init__(
        self, head: CheckpointHead, schema: int, start: Cut, throttle: Throttle, clock: Clock, send: Send
    ) -> None:
        self._deltas = Deltas(head, schema, start)
        self._throttle, self._clock, self._send = throttle, clock, send
        self._newest = start
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.progress = head.progress
        self.on_progress: Callable[[], None] = _ignore
        self.on_fenced: Callable[[], None] = _ignore
        self.may_carry_events: Callable[[], Awaitable[bool]] = _yes
        self.has_unstored_spending: Callable[[], bool] = _no
        self.emitted_before = start.emitted

    @cached_property
    def _hurry(self) -> asyncio.Event:
        """Return the event that is set while a save must not wait for its throttle."""
        return asyncio.Event()

    def save_whole(self) -> None:
        """Make the next save replace the whole stored checkpoint, because the stored one has another schema."""
        self._deltas.send_whole_next()

    def use_batch(self, batch: SaveBatch, keys: Keys, id: str, token: str) -> None:
        """Send saves with those of other attempts. Call this in the task of the attempt.

        Args:
            batch: The batch of the process.
            keys: The keys of the run's partition.
            id: The id of the run.
            token: The token of the run's owner.
        """
        self._batch, self.keys, self.id, self.token = batch, keys, id, token
        self.context = contextvars.copy_context()

    # -- offering

    def offer(self, cut: Cut) -> None:
        """Save a cut when the throttle allows. A newer cut that is offered before then replaces this cut."""
        self._newest = cut
        self.offered += 1
        if not self.closed and not self._in_batch and (self._task is None or self._task.done()):
            self._begin()

    def _begin(self) -> None:
        """Save the newest cut: with the next batch if it may be saved now, and otherwise in a task."""
        if self._may_use_batch() and (self._waiters or self._throttle.wait(self._clock.monotonic()) <= 0):
            self._enter_batch()
        else:
            self._start_task()

    def _start_task(self, failures: int = 0) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(failures))

    async def flush(self, cut: Cut) -> None:
        """Save a cut now, and return when it is saved.

        Raises:
            SaverClosed: If the saver was closed.
            Unreadable: If the server refuses every save, because the stored checkpoint is damaged.
        """
        if self.closed:
            raise SaverClosed
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hurry.set()
        self._waiters.append((self.offered + 1, future))
        if self._in_batch and self._in_flight is None and self._batch is not None:
            self._batch.hurry()
        self.offer(cut)
        await future

    # -- saving with the batch of the process

    def _may_use_batch(self) -> bool:
        """Return False if the next save needs its own task: there is no batch, or events or spending have to be stored too."""
        return self._batch is not None and self.outbox is None and not self.has_unstored_spending()

    def _enter_batch(self) -> None:
        assert self._batch is not None
        self._in_batch = True
        self._batch.add(self, at_once=bool(self._waiters))

    def take_save(self) -> SentSave | None:
        """Return the save of the newest cut for a batch that is being sent now.

        Return None if the saver was closed, if the save needs a task of its own, or if the cut could not be encoded.
        """
        if self.closed:
            return None
        if not self._may_use_batch():  # the handler has emitted its first event meanwhile
            self._in_batch = False
            self.context.run(self._start_task)
            return None
        begun, number, cut, note = self._clock.monotonic(), self.offered, self._newest, self.note
        try:
            # The codec of a user encodes the save, and may read the context of the attempt.
            self._in_flight = self.context.run(SentSave, self, begun, number, cut, note, self._changes_in(cut))
        except Exception as error:  # noqa: BLE001  # the other savers of the batch must not be disturbed
            self.context.run(self.batch_failed, error)
            return None
        return self._in_flight

    def batch_answered(self, sent: SentSave, cut: Cut, delta: Delta, word: str, progress: int) -> None:
        """Handle the server's answer to the save that was sent with a batch."""
        self._in_batch, self._in_flight = False, None
        if self.measure is not None:
            self.measure(delta, self._clock.monotonic() - sent.begun, word)
        self._take_answer(word, sent.number, progress, cut, sent.note, delta)
        if self._conclude(word, sent.begun) and self._saved < self.offered and not self.closed:
            self._begin()

    def batch_failed(self, error: Exception) -> None:
        """Log a failed save, and start a task that repeats it after a back-off."""
        self._in_batch, self._in_flight = False, None
        if not self.closed:
            _log_failure(error)
            self._start_task(failures=1)

    # -- saving in a task

    async def _work(self, failures: int = 0) -> None:
        if failures:
            await self._back_off(failures)
        while self._saved < self.offered and not self.closed:
            if not failures:
                await self._pause(self._throttle.wait(self._clock.monotonic()))
                if self._may_use_batch():
                    self._task = None
                    self._enter_batch()
                    return
            begun, number, cut = self._clock.monotonic(), self.offered, self._newest
            word = await self._save(number, cut)
            if word == "failed":
                failures += 1
                await self._back_off(failures)
            elif not self._conclude(word, begun):
                return
            elif word == "ok":
                failures = 0

    async def _back_off(self, failures: int) -> None:
        await self._clock.asleep(min(0.1 * 2 ** min(failures, 10), LONGEST_BACK_OFF))

    def _conclude(self, word: str, begun: float) -> bool:
        """Act on the server's answer to a save that was sent at `begun`. Return False if the server refuses every save."""
        if word == "ok":
            self._throttle.saved(begun)
            self.saved_at = begun
        elif word == "fenced":
            fenced = self.on_fenced
            self.close()
            fenced()
        elif word == "gap":
            self._deltas.send_whole_next()
        else:
            self._fail_waiters(Unreadable(f"the server refused the checkpoint: {word}"))
            return False
        return True

    async def _pause(self, seconds: float) -> None:
        """Wait until the throttle's window ends, or until a flush needs an immediate save."""
        if seconds > 0 and not self._hurry.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._hurry.wait()
            except TimeoutError:
                return

    async def _save(self, number: int, cut: Cut) -> str:
        note, begun = self.note, self._clock.monotonic()
        try:
            changes = self._changes_in(cut)
            delta, output = changes, None  # events that the save does not carry stay in the outbox
            if self._has_output(cut) and await self.may_carry_events():
                delta, output = self._add_output(changes, cut)
            word, progress = await self._send(delta)
        except Exception as error:  # noqa: BLE001  # without a further try, a flush would wait for ever
            _log_failure(error)
            return "failed"
        if self.measure is not None:
            self.measure(delta, self._clock.monotonic() - begun, word)
        if word == "ok" and output is not None and self.outbox is not None:
            self.outbox.stored(output)
        self._take_answer(word, number, progress, cut, note, delta)
        return word

    def _changes_in(self, cut: Cut) -> Delta:
        """Return the changes in a cut, and count the cut as sent."""
        self._sent += 1
        return self._deltas.of(cut, packed_note(self.note) if self.note is not self.note_saved else b"")

    def _take_answer(self, word: str, number: int, progress: int, cut: Cut, note: Note | None, delta: Delta) -> None:
        if word == "ok":
            self._deltas.acknowledged(cut, delta)
            self.note_saved = note
            self._acknowledged(number, progress)
        elif word not in ("fenced", "gap"):
            logger.error("checkpoint refused by the server: %s", word)

    def _has_output(self, cut: Cut) -> bool:
        """Return True if a save of the cut has to carry events, or the number of the last event that it covers."""
        return self.outbox is not None and self.outbox.has_news(cut.emitted)

    def _add_output(self, delta: Delta, cut: Cut) -> tuple[Delta, Output | None]:
        """Return the changes of a cut together with the events that the server may not have yet, and these events.

        So the server never stores a cut without the events that were emitted before the cut.
        """
        output = None if self.outbox is None else self.outbox.take(cut.emitted)
        if output is None:
            return delta, None
        return replace(delta, more=cut.bookkeeping, output=output.wire()), output

    def _acknowledged(self, number: int, progress: int) -> None:
        self._saved = number
        if self._waiters:
            for wanted, future in self._waiters:
                if wanted <= number and not future.done():
                    future.set_result(None)
            self._waiters = [pair for pair in self._waiters if not pair[1].done()]
        if not self._waiters:
            self._hurry.clear()
        if progress > self.progress:
            self.progress = progress
            self.on_progress()

    def _fail_waiters(self, error: Unreadable) -> None:
        """Raise the error in all flushes that wait. The stored checkpoint is damaged, so a retry would fail too."""
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters = []

    # -- ending

    def close(self) -> None:
        """Stop saving. The request that records the outcome carries the newest cut.

        The saver also drops its callbacks. Otherwise reference cycles would keep ended attempts in memory until the garbage
        collector runs, which was measured to cost a third of a worker's time.
        """
        self.closed = True
        self._send = _refuse_save
        self.on_progress = self.on_fenced = _ignore
        self.may_carry_events = _yes
        self.has_unstored_spending = _no
        self.measure = None
        if self._in_flight is not None:
            self._in_flight.forget()
            self._in_flight = None
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        # A cancelled task keeps its frame, and the frame keeps this saver with the whole transcript.
        self._task = None
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(SaverClosed())
                future.exception()  # marks the exception as retrieved, because the task that waited for it may be gone
        self._waiters = []

    def forget_wait(self, field: str) -> None:
        """Drop the value of a wait from the newest cut, so that a revived run waits again for as long as the handler says.

        Signals that the run has received stay received.
        """
        kept = Bookkeeping.parse(self._newest.bookkeeping)
        if kept.deadlines.pop(field, None) is not None or field in self._newest.phases:
            phases = {name: output for name, output in self._newest.phases.items() if name != field}
            self._newest = self._newest._replace(bookkeeping=kept.pack(), phases=phases)
            self.offered += 1

    @property
    def skipped(self) -> int:
        """The number of cuts that were not sent, because a newer cut replaced them first."""
        return (
            max(0, self.offered - self._sent - 1) if self._saved < self.offered else max(0, self.offered - self._sent)
        )

    def progress_since(self, mark: int) -> bool:
        """Return True if the progress counter has passed `mark`, or will pass it when the pending cut is saved."""
        return self.progress > mark or self._deltas.progress_in(self._newest)

    def last_delta(self, unfinished: bytes = b"") -> bytes:
        """Return the encoded changes that the request with the outcome has to carry.

        The changes are the newest cut, if it is not saved yet, the given messages after that cut, and events that the server
        may not have yet.
        """
        if self._saved == self.offered and not unfinished and not self._has_output(self._newest):
            return b""
        delta = self._deltas.of(self._newest, packed_note(self.note) if self.note else b"", unfinished)
        return self._add_output(delta, self._newest)[0].wire()

    def whole_delta(self, unfinished: bytes = b"") -> bytes:
        """Return the whole encoded checkpoint.

        The recorder sends it if the server answered `gap`: the server lacks the checkpoint that the changes are based on.
        """
        self._deltas.send_whole_next()
        return self._add_output(self._deltas.of(self._newest, b"", unfinished), self._newest)[0].wire()

    def unfinished(self, messages: Messages) -> bytes:
        """Return the encoded messages after the newest cut.

        Return empty bytes if the transcript was replaced after that cut: the new messages do not belong to the saved transcript.
        """
        packed = messages.packed[self._newest.length :] if messages.generation == self._newest.generation else []
        return chunk(packed) if packed else b""


def _log_failure(error: Exception) -> None:
    # The heartbeat logs an outage once. Each run need not log it again.
    level = logging.DEBUG if isinstance(error, (Unreachable, Unconfirmed)) else logging.WARNING
    unexpected = None if isinstance(error, CoordinatorError) else error  # for example an error of a user's codec
    logger.log(level, "checkpoint could not be saved and is retried: %s", error, exc_info=unexpected)


def packed_note(note: Note | None) -> bytes:
    """Return a note as bytes. None gives empty bytes."""
    return b"" if note is None else encode([note.text, note.done, note.total], "note")
