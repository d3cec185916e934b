"""Checkpoints in this process's memory: for tests, and for programs that need no recovery."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import TracebackType

from coordinator.clock import Clock, SystemClock
from coordinator.errors import Unreadable
from workers.durable.record import NUMBERS, Checkpoint, Fenced, valid_id
from workers.durable.record_plans import Packed, pack, unpack

logger = logging.getLogger(__name__)
TOMBSTONES = 1000


class _Shelf:
    """What stores that are beside each other share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: dict[str, Packed] = {}
        self.owners: dict[str, MemoryStore | None] = {}
        self.gone: dict[str, int] = {}


class MemoryStore:
    """Keeps checkpoints in memory. They do NOT survive the restart that they are kept for: `list_interrupted` only means
    something within the life of this process. For tests and light programs; a RedisStore survives.

    `beside` another one, it sees the same checkpoints as a second process would.
    """

    def __init__(self, beside: MemoryStore | None = None, clock: Clock | None = None) -> None:
        self._shelf: _Shelf = _Shelf() if beside is None else beside._shelf
        self._clock = clock or SystemClock()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def save(self, checkpoint: Checkpoint) -> None:
        """Kept when it returns. A lower seq than the stored one changes nothing, an equal one is a repetition."""
        packed = pack(checkpoint)
        id = packed.run_id
        with self._shelf.lock:
            self._check(id)
            stored = self._shelf.records.get(id)
            last = stored.seq if stored else self._shelf.gone.get(id, 0)
            seq = packed.seq or NUMBERS.next(self._clock.now(), last)
            if seq > last:
                self._shelf.records[id] = replace(packed, seq=seq)
            if id in self._shelf.records:
                self._shelf.owners[id] = self

    def load(self, run_id: str) -> Checkpoint | None:
        """The checkpoint; None where there is none: the run ended, or never saved. Unreadable where it is corrupt."""
        packed = self._shelf.records.get(valid_id(run_id))
        return None if packed is None else unpack(packed)

    def delete(self, run_id: str) -> None:
        """The run has ended; one without a checkpoint is fine."""
        with self._shelf.lock:
            self._check(valid_id(run_id))
            self._shelf.records.pop(run_id, None)
            self._shelf.owners.pop(run_id, None)
            self._shelf.gone[run_id] = NUMBERS.next(self._clock.now())
            if len(self._shelf.gone) > TOMBSTONES:
                del self._shelf.gone[next(iter(self._shelf.gone))]

    def list_interrupted(self) -> list[Checkpoint]:
        """Every checkpoint that is left, for a start to recover from; not those of other processes that are alive."""
        with self._shelf.lock:
            left = [packed for id, packed in self._shelf.records.items() if self._shelf.owners[id] in (None, self)]
        return [found for packed in sorted(left, key=lambda one: one.seq) if (found := _readable(packed)) is not None]

    def claim_interrupted(self) -> Iterator[Checkpoint]:
        """Interrupted runs that nobody executes, each taken over when it is given out: no other process gets it, too."""
        for id in list(self._shelf.records):
            with self._shelf.lock:
                packed = self._shelf.records.get(id)
                if packed is None or self._shelf.owners[id] is not None:
                    continue
                self._shelf.owners[id] = self
            checkpoint = _readable(packed)
            if checkpoint is not None:
                yield checkpoint

    def close(self) -> None:
        """Lets go of what it holds: another process may take it at once. Used again, it is a new owner."""
        with self._shelf.lock:
            for id, owner in self._shelf.owners.items():
                if owner is self:
                    self._shelf.owners[id] = None

    def _check(self, id: str) -> None:
        if self._shelf.owners.get(id) not in (None, self):
            raise Fenced(
                f"run {id} was taken over by another process: this one has to stop, and nothing of it was kept"
            )


class AsyncMemoryStore:
    """Keeps checkpoints in memory, in an event loop. They do NOT survive the restart that they are kept for: see MemoryStore."""

    def __init__(self, beside: AsyncMemoryStore | None = None, clock: Clock | None = None) -> None:
        self._store: MemoryStore = MemoryStore(None if beside is None else beside._store, clock)

    async def __aenter__(self) -> AsyncMemoryStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def save(self, checkpoint: Checkpoint) -> None:
        """Kept when it returns. A lower seq than the stored one changes nothing, an equal one is a repetition."""
        self._store.save(checkpoint)

    async def load(self, run_id: str) -> Checkpoint | None:
        """The checkpoint; None where there is none: the run ended, or never saved. Unreadable where it is corrupt."""
        return self._store.load(run_id)

    async def delete(self, run_id: str) -> None:
        """The run has ended; one without a checkpoint is fine."""
        self._store.delete(run_id)

    async def list_interrupted(self) -> list[Checkpoint]:
        """Every checkpoint that is left, for a start to recover from; not those of other processes that are alive."""
        return self._store.list_interrupted()

    async def claim_interrupted(self) -> AsyncIterator[Checkpoint]:
        """Interrupted runs that nobody executes, each taken over when it is given out: no other process gets it, too."""
        for checkpoint in self._store.claim_interrupted():
            yield checkpoint

    async def close(self) -> None:
        """Lets go of what it holds: another process may take it at once. Used again, it is a new owner."""
        self._store.close()


def _readable(packed: Packed) -> Checkpoint | None:
    try:
        return unpack(packed)
    except Unreadable as error:
        logger.error("the checkpoint of run %s is left out: %s", packed.run_id, error)
        return None
