"""Saves the cuts of one attempt: throttled, one at a time, only what is new, again by itself after a failure.

It lives on the worker's event loop. The rules are those of the seeds: the first goes at once, inside the window the newest is held
and not dropped, the clock advances only after a success.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from coordinator.clock import Clock
from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import encode
from coordinator.errors import CoordinatorError, Unconfirmed, Unreachable, Unreadable
from coordinator.model.run import Note
from coordinator.store.plans.attempts import Delta
from workers.handlers.draft import Cut
from workers.handlers.messages import Messages, chunk
from workers.throttle import Throttle

logger = logging.getLogger(__name__)
Send = Callable[[Delta], Awaitable[tuple[str, int]]]
LONGEST_BACK_OFF = 5.0


class SaverClosed(Exception):
    """The token is lost; nothing can be saved any more."""


class Deltas:
    """What the server has of a checkpoint, and so what is new in a cut. Pure bookkeeping, no I/O."""

    def __init__(self, head: CheckpointHead, schema: int, start: Cut) -> None:
        self._schema = schema
        self._seq = self._acked = head.seq
        self._base, self._generation, self._shift = head.length, head.generation, 0
        self._state, self._unsure = start.state, False
        self._phases, self._sent_phases = set(start.phases), set(start.phases)
        self._peak = head.peak

    def progress_in(self, cut: Cut) -> bool:
        """Whether the server will count a cut as progress, against what it acknowledged last."""
        if cut.iteration > self._peak or not self._phases.issuperset(cut.phases) or cut.state != self._state:
            return True
        return cut.iteration == 0 and cut.generation + self._shift == self._generation and cut.length > self._base

    def of(self, cut: Cut, note: bytes = b"", unfinished: bytes = b"") -> Delta:
        """What is new in a cut. With nothing acknowledged, everything is."""
        self._seq += 1
        whole = self._acked == 0
        generation = cut.generation + self._shift
        base = 0 if whole or generation != self._generation else self._base
        packed = cut.packed[base : cut.length]
        state = cut.state if whole or self._unsure or cut.state != self._state else None
        phases = tuple((name, data) for name, data in cut.phases.items() if whole or name not in self._phases)
        drop = tuple(name for name in self._sent_phases if name not in cut.phases)
        self._sent_phases |= set(cut.phases)
        # until an answer comes, what was sent may be there or not
        self._unsure = True
        return Delta(
            self._seq, self._acked, generation, base, len(packed), chunk(packed) if packed else b"", cut.iteration, self._schema,
            state, phases, drop, note, unfinished,
        )  # fmt: skip

    def acknowledged(self, cut: Cut, delta: Delta) -> None:
        self._acked, self._base, self._generation = delta.seq, cut.length, delta.generation
        self._state, self._unsure = cut.state, False
        self._phases, self._sent_phases = set(cut.phases), set(cut.phases)
        self._peak = max(self._peak, cut.iteration)

    def fallen_back(self) -> None:
        """The server has less than it acknowledged: all is sent anew, in a generation of its own."""
        self._acked = 0
        self._shift += 1


def _nothing() -> None:
    return


async def _nobody(delta: Delta) -> tuple[str, int]:
    return "fenced", 0


class Saver:
    """The newest cut of an attempt, and its way to the server."""

    def __init__(
        self, head: CheckpointHead, schema: int, start: Cut, throttle: Throttle, clock: Clock, send: Send
    ) -> None:
        self._deltas = Deltas(head, schema, start)
        self._throttle, self._clock, self._send = throttle, clock, send
        self._newest, self._offered, self._saved = start, 0, 0
        self._pump: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.note: Note | None = None
        self._note_sent: Note | None = None
        self.progress = head.progress
        self.on_progress: Callable[[], None] = _nothing
        self.on_fenced: Callable[[], None] = _nothing
        self.closed = False

    def save_whole(self) -> None:
        """What is stored is of another schema: the next save replaces it all."""
        self._deltas.fallen_back()

    # -- offering

    def offer(self, cut: Cut) -> None:
        """The newest cut. It is saved when the window allows."""
        self._newest = cut
        self._offered += 1
        if not self.closed and (self._pump is None or self._pump.done()):
            self._pump = asyncio.get_running_loop().create_task(self._work())

    async def flush(self, cut: Cut) -> None:
        """Saved when it returns; SaverClosed where that can't be any more."""
        if self.closed:
            raise SaverClosed
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hurry.set()
        self.offer(cut)
        self._waiters.append((self._offered, future))
        await future

    # -- saving

    async def _work(self) -> None:
        failures = 0
        while self._saved < self._offered and not self.closed:
            if not failures:
                await self._pause(self._throttle.wait(self._clock.monotonic()))
            begun, number, cut = self._clock.monotonic(), self._offered, self._newest
            word = await self._save(number, cut)
            if word == "ok":
                failures = 0
                self._throttle.saved(begun)
            elif word == "fenced":
                fenced = self.on_fenced
                self.close()
                fenced()
            elif word == "gap":
                self._deltas.fallen_back()
            elif word != "failed":
                self._refuse(Unreadable(f"the checkpoint was refused: {word}"))
                return
            else:
                failures += 1
                await self._clock.asleep(min(0.1 * 2 ** min(failures, 10), LONGEST_BACK_OFF))

    async def _pause(self, seconds: float) -> None:
        """Until the window ends, or somebody is in a hurry."""
        if seconds > 0 and not self._hurry.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._hurry.wait()
            except TimeoutError:
                return

    async def _save(self, number: int, cut: Cut) -> str:
        note = self.note
        delta = self._deltas.of(cut, packed_note(note) if note is not self._note_sent else b"")
        try:
            word, progress = await self._send(delta)
        except CoordinatorError as error:
            # an outage is said once, by the heartbeat, and not by each run
            level = logging.DEBUG if isinstance(error, (Unreachable, Unconfirmed)) else logging.WARNING
            logger.log(level, "a checkpoint could not be saved and is tried again: %s", error)
            return "failed"
        if word == "ok":
            self._deltas.acknowledged(cut, delta)
            self._note_sent = note
            self._acknowledged(number, progress)
        elif word not in ("fenced", "gap"):
            logger.error("a checkpoint was refused: %s", word)
        return word

    def _acknowledged(self, number: int, progress: int) -> None:
        self._saved = number
        for wanted, future in self._waiters:
            if wanted <= number and not future.done():
                future.set_result(None)
        self._waiters = [pair for pair in self._waiters if not pair[1].done()]
        if not self._waiters:
            self._hurry.clear()
        if progress > self.progress:
            self.progress = progress
            self.on_progress()

    def _refuse(self, error: Unreadable) -> None:
        """What is there can't be built upon, and trying again does not change that: who waits is told."""
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters = []

    # -- ending

    def close(self) -> None:
        """Nothing is saved any more: the run's ending carries what is new. Whoever it would tell is let go of: an attempt that is
        over is then freed at once, and not by the garbage collector, which took a third of a worker's time."""
        self.closed = True
        self._send = _nobody
        self.on_progress = self.on_fenced = _nothing
        if self._pump is not None and self._pump is not asyncio.current_task():
            self._pump.cancel()
        # a task that was cancelled keeps the frame it was in, and that keeps us, with the whole transcript
        self._pump = None
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(SaverClosed())
                future.exception()  # who waited may be gone
        self._waiters = []

    def progress_since(self, mark: int) -> bool:
        """Whether there was progress after this count of it, with what only the ending will carry."""
        return self.progress > mark or self._deltas.progress_in(self._newest)

    def last_delta(self, unfinished: bytes = b"") -> bytes:
        """What the ending has to carry: the newest cut, where it is not saved yet, and what is unfinished."""
        if self._saved == self._offered and not unfinished:
            return b""
        return self._deltas.of(self._newest, packed_note(self.note) if self.note else b"", unfinished).wire()

    def whole_delta(self, unfinished: bytes = b"") -> bytes:
        """The same after the server answered gap: everything."""
        self._deltas.fallen_back()
        return self._deltas.of(self._newest, b"", unfinished).wire()

    def unfinished(self, messages: Messages) -> bytes:
        """The messages after the newest cut. Those of a transcript that was replaced since belong to no saved one."""
        packed = messages.packed[self._newest.length :] if messages.generation == self._newest.generation else []
        return chunk(packed) if packed else b""


def packed_note(note: Note | None) -> bytes:
    return b"" if note is None else encode([note.text, note.done, note.total], "note")
