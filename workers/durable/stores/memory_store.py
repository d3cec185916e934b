"""Stores of records in this process's memory: for tests, and for programs that need no recovery."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import TracebackType

from coordinator.clock import Clock, SystemClock
from coordinator.errors import Unreadable
from workers.durable.records.record import Checkpoint, check_run_id, taken_over
from workers.durable.records.record_format import PackedRecord, pack, unpack
from workers.durable.sequence import SEQUENCE

logger = logging.getLogger(__name__)
MOST_TOMBSTONES = 1000


class _SharedRecords:
    """The records, their owners and the marks of deleted records. Stores that simulate several processes share one such object."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: dict[str, PackedRecord] = {}
        self.owners: dict[str, MemoryStore | None] = {}
        self.deleted: dict[
            str, int
        ] = {}  # by run id: the seq of the deletion, so that a late save does not restore the record


class MemoryStore:
    """A store of records in memory.

    Records do NOT survive a restart of the process: `list_interrupted` finds only runs of this process. Use this store for tests,
    or for programs that need no recovery. Use `RedisStore` for anything else.

    Args:
        beside: Another store. Both share their records, like the stores of two processes.
        clock: The time source. Only tests pass one.
    """

    def __init__(self, beside: MemoryStore | None = None, clock: Clock | None = None) -> None:
        self._shared: _SharedRecords = _SharedRecords() if beside is None else beside._shared
        self._clock = clock or SystemClock()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def save(self, checkpoint: Checkpoint) -> None:
        """Save a record.

        If the stored record has a higher seq, nothing changes. An equal seq means that the same save is repeated.

        Raises:
            NotPlain: If a value is not plain data.
            TooLarge: If a value, or the whole record, is too large.
            Fenced: If another store object has taken over the run.
        """
        packed = pack(checkpoint)
        id = packed.run_id
        with self._shared.lock:
            self._check_owner(id)
            stored = self._shared.records.get(id)
            last = stored.seq if stored else self._shared.deleted.get(id, 0)
            seq = packed.seq or SEQUENCE.next(self._clock.now(), last)
            if seq > last:
                self._shared.records[id] = replace(packed, seq=seq)
            if id in self._shared.records:
                self._shared.owners[id] = self

    def load(self, run_id: str) -> Checkpoint | None:
        """Return the record of a run, or None if there is none: the run has ended, or never saved."""
        packed = self._shared.records.get(check_run_id(run_id))
        return None if packed is None else unpack(packed)

    def delete(self, run_id: str) -> None:
        """Delete the record of a run that has ended. Do nothing if there is none.

        Raises:
            Fenced: If another store object has taken over the run.
        """
        with self._shared.lock:
            self._check_owner(check_run_id(run_id))
            self._shared.records.pop(run_id, None)
            self._shared.owners.pop(run_id, None)
            self._shared.deleted[run_id] = SEQUENCE.next(self._clock.now())
            if len(self._shared.deleted) > MOST_TOMBSTONES:
                del self._shared.deleted[next(iter(self._shared.deleted))]

    def list_interrupted(self) -> list[Checkpoint]:
        """Return all records, except those of other open stores."""
        with self._shared.lock:
            found = [packed for id, packed in self._shared.records.items() if self._shared.owners[id] in (None, self)]
        records = (_unpack_or_log(packed) for packed in sorted(found, key=lambda one: one.seq))
        return [record for record in records if record is not None]

    def claim_interrupted(self) -> Iterator[Checkpoint]:
        """Yield the records of interrupted runs. Each run is claimed when it is yielded: no other store gets it."""
        for id in list(self._shared.records):
            with self._shared.lock:
                packed = self._shared.records.get(id)
                if packed is None or self._shared.owners[id] is not None:
                    continue
                self._shared.owners[id] = self
            record = _unpack_or_log(packed)
            if record is not None:
                yield record

    def close(self) -> None:
        """Release the runs, so that other stores may claim them. A store that is used again is a new owner."""
        with self._shared.lock:
            for id, owner in self._shared.owners.items():
                if owner is self:
                    self._shared.owners[id] = None

    def _check_owner(self, id: str) -> None:
        if self._shared.owners.get(id) not in (None, self):
            raise taken_over(id)


class AsyncMemoryStore:
    """A store of records in memory, for an event loop. Records do NOT survive a restart of the process: see `MemoryStore`.

    Args:
        beside: Another store. Both share their records, like the stores of two processes.
        clock: The time source. Only tests pass one.
    """

    def __init__(self, beside: AsyncMemoryStore | None = None, clock: Clock | None = None) -> None:
        self._store: MemoryStore = MemoryStore(None if beside is None else beside._store, clock)

    async def __aenter__(self) -> AsyncMemoryStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def save(self, checkpoint: Checkpoint) -> None:
        """Save a record.

        If the stored record has a higher seq, nothing changes. An equal seq means that the same save is repeated.

        Raises:
            NotPlain: If a value is not plain data.
            TooLarge: If a value, or the whole record, is too large.
            Fenced: If another store object has taken over the run.
        """
        self._store.save(checkpoint)

    async def load(self, run_id: str) -> Checkpoint | None:
        """Return the record of a run, or None if there is none: the run has ended, or never saved."""
        return self._store.load(run_id)

    async def delete(self, run_id: str) -> None:
        """Delete the record of a run that has ended. Do nothing if there is none.

        Raises:
            Fenced: If another store object has taken over the run.
        """
        self._store.delete(run_id)

    async def list_interrupted(self) -> list[Checkpoint]:
        """Return all records, except those of other open stores."""
        return self._store.list_interrupted()

    async def claim_interrupted(self) -> AsyncIterator[Checkpoint]:
        """Yield the records of interrupted runs. Each run is claimed when it is yielded: no other store gets it."""
        for record in self._store.claim_interrupted():
            yield record

    async def close(self) -> None:
        """Release the runs, so that other stores may claim them. A store that is used again is a new owner."""
        self._store.close()


def _unpack_or_log(packed: PackedRecord) -> Checkpoint | None:
    try:
        return unpack(packed)
    except Unreadable as error:
        logger.error("record skipped: run %s: %s", packed.run_id, error)
        return None
