"""Stores of records on Redis or Valkey: `RedisStore` for threads, `AsyncRedisStore` for an event loop.

A store object is an owner with a lease. A thread renews the lease from the first save on. Other processes cannot claim
the owner's runs until the store is closed, or until its process has been dead for a lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TypeVar

from coordinator.clock import Clock, SystemClock
from coordinator.config import settings
from coordinator.errors import CoordinatorError
from coordinator.store.transport.wire import AsyncWire, Wire, drive, drive_async
from workers.durable.records.owned_records import OwnedRecords
from workers.durable.records.record import Checkpoint
from workers.durable.records.record_plans import Steps

logger = logging.getLogger(__name__)
T = TypeVar("T")

LEASE = 30.0  # seconds
TTL = 30 * 86400.0  # seconds


class RedisStore:
    """A store of records on a server. Threads may share a store, and a store may be used after a fork.

    Close the store at a shutdown: other processes can then claim its runs without waiting for its lease to expire.

    Args:
        url: The server's URL. Default: the server of the worker, if a handler makes the store, then `RUNS_URL`, then
            `REDIS_URL` of the environment, then a server on this host.
        namespace: The namespace. Default: the namespace of the worker, then `RUNS_NAMESPACE` of the environment, then `runs`.
        lease: Seconds after which the runs of a dead process may be claimed, from 0.1 to 3600.
        ttl: Seconds after which the server deletes a record that is not saved again. At least the lease.
        timeout: Seconds for which a call is repeated while the server cannot be reached.
        clock: The time source. Only tests pass one.

    Raises:
        BadOption: If the URL, the lease or the ttl is not valid.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        *,
        lease: float = LEASE,
        ttl: float = TTL,
        timeout: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings(url, namespace, timeout)
        self._lease, self._ttl, self._clock = lease, ttl, clock or SystemClock()
        self._records = self._new_owner()
        self._wire = Wire(self._settings.address, timeout)

    def __enter__(self) -> RedisStore:
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
            Fenced: If another process has taken over the run.
            Unreachable: If the server cannot be reached.
            Unconfirmed: If the save was sent, but no answer came. Repeat it.
        """
        self._drive(self._current().save(checkpoint))

    def load(self, run_id: str) -> Checkpoint | None:
        """Return the record of a run, or None if there is none: the run has ended, or never saved.

        Raises:
            Unreadable: If the record is corrupt.
        """
        return self._drive(self._current().load(run_id))

    def delete(self, run_id: str) -> None:
        """Delete the record of a run that has ended. Do nothing if there is none.

        Raises:
            Fenced: If another process has taken over the run.
        """
        self._drive(self._current().delete(run_id))

    def list_interrupted(self) -> list[Checkpoint]:
        """Return all records, except those of other live processes. The result includes the runs of this store itself."""
        return self._drive(self._current().list_interrupted())

    def claim_interrupted(self) -> Iterator[Checkpoint]:
        """Yield the records of interrupted runs. Each run is claimed when it is yielded: no other process gets it."""
        for id, seen in self._drive(self._current().list_ids()).items():
            record = self._drive(self._current().claim(id, seen))
            if record is not None:
                yield record

    def close(self) -> None:
        """End the lease, so that other processes may claim the runs immediately, and close the connections.

        A store that is used again after `close` is a new owner.
        """
        records, self._records = self._current(), self._new_owner()
        if records.has_lease:
            records.stop()
            try:
                self._drive(records.end_lease())
            except CoordinatorError as error:
                _log_kept_lease(error)
        wire, self._wire = self._wire, Wire(self._settings.address, self._wire.timeout)
        wire.close()

    def _new_owner(self) -> OwnedRecords:
        return OwnedRecords(self._settings, self._lease, self._ttl, self._clock)

    def _current(self) -> OwnedRecords:
        """Return the owner for this process. After a fork, make a new owner for the child process."""
        if self._records.pid != os.getpid():
            self._records = self._new_owner()
        return self._records

    def _drive(self, steps: Steps[T]) -> T:
        return drive(self._wire, steps)


class AsyncRedisStore:
    """A store of records on a server, for an event loop. The parameters and errors are the same as those of `RedisStore`.

    Close the store at a shutdown: other processes can then claim its runs without waiting for its lease to expire.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        *,
        lease: float = LEASE,
        ttl: float = TTL,
        timeout: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings(url, namespace, timeout)
        self._lease, self._ttl, self._clock = lease, ttl, clock or SystemClock()
        self._records = self._new_owner()
        self._session: tuple[asyncio.AbstractEventLoop, AsyncWire] | None = None

    async def __aenter__(self) -> AsyncRedisStore:
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
            Fenced: If another process has taken over the run.
            Unreachable: If the server cannot be reached.
            Unconfirmed: If the save was sent, but no answer came. Repeat it.
        """
        await self._drive(self._current().save(checkpoint))

    async def load(self, run_id: str) -> Checkpoint | None:
        """Return the record of a run, or None if there is none: the run has ended, or never saved.

        Raises:
            Unreadable: If the record is corrupt.
        """
        return await self._drive(self._current().load(run_id))

    async def delete(self, run_id: str) -> None:
        """Delete the record of a run that has ended. Do nothing if there is none.

        Raises:
            Fenced: If another process has taken over the run.
        """
        await self._drive(self._current().delete(run_id))

    async def list_interrupted(self) -> list[Checkpoint]:
        """Return all records, except those of other live processes. The result includes the runs of this store itself."""
        return await self._drive(self._current().list_interrupted())

    async def claim_interrupted(self) -> AsyncIterator[Checkpoint]:
        """Yield the records of interrupted runs. Each run is claimed when it is yielded: no other process gets it."""
        for id, seen in (await self._drive(self._current().list_ids())).items():
            record = await self._drive(self._current().claim(id, seen))
            if record is not None:
                yield record

    async def close(self) -> None:
        """End the lease, so that other processes may claim the runs immediately, and close the connections.

        A store that is used again after `close` is a new owner.
        """
        records, self._records = self._current(), self._new_owner()
        if records.has_lease:
            await asyncio.to_thread(records.stop)  # the thread may be in the middle of a renewal
            try:
                await self._drive(records.end_lease())
            except CoordinatorError as error:
                _log_kept_lease(error)
        session, self._session = self._session, None
        if session is not None and session[0] is asyncio.get_running_loop():
            await session[1].close()

    def _new_owner(self) -> OwnedRecords:
        return OwnedRecords(self._settings, self._lease, self._ttl, self._clock)

    def _current(self) -> OwnedRecords:
        """Return the owner for this process. After a fork, make a new owner for the child process."""
        if self._records.pid != os.getpid():
            self._records, self._session = self._new_owner(), None
        return self._records

    async def _drive(self, steps: Steps[T]) -> T:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session[0] is not loop:
            self._session = (loop, AsyncWire(self._settings.address, self._settings.timeout))
        return await drive_async(self._session[1], steps)


def _log_kept_lease(error: CoordinatorError) -> None:
    logger.warning("lease of records not ended: other processes must wait until it expires: %s", error)
