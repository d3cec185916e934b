"""Checkpoints on Redis or Valkey, for programs that execute their runs themselves: `RedisStore`, and the same in an event loop.

A store object is an owner with a lease, kept alive by a thread from its first save on. What it saved or claimed is left alone by
others until it is closed, or dead for a lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TypeVar

from coordinator.clock import Clock, SystemClock
from coordinator.config import Settings, settings
from coordinator.errors import BadOption, CoordinatorError, Unreadable
from coordinator.store import server_checks as checks
from coordinator.store.keys import Keys
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.transport.wire import AsyncWire, Wire, drive, drive_async
from workers.durable import record_plans as plans
from workers.durable.lease_keeper import Keeper
from workers.durable.record import NUMBERS, Checkpoint, valid_id
from workers.durable.record_plans import NOTHING, Known, Steps

logger = logging.getLogger(__name__)
T = TypeVar("T")

LEASE = 30.0
TTL = 30 * 86400.0


class Records:
    """What both stores do, as plans. It belongs to one process: after a fork there is another."""

    def __init__(self, settings: Settings, lease: float, ttl: float, clock: Clock) -> None:
        if not 0.1 <= lease <= 3600:
            raise BadOption(f"lease {lease!r} is not within 0.1 to 3600 seconds")
        if not lease <= ttl < 1e9:
            raise BadOption(f"ttl {ttl!r} is not a time of at least one lease")
        self.pid = os.getpid()
        self.owner = f"{os.urandom(8).hex()}-{round(lease * 1000)}"
        self.keys = Keys(settings.namespace, 0)
        self._settings, self._lease, self._ttl, self._clock = settings, lease, ttl, clock
        self._known: dict[str, Known] = {}
        self._trusted = settings.address.scheme == "memory"
        self._lock = threading.Lock()
        self._keeper: Keeper | None = None

    def save(self, checkpoint: Checkpoint) -> Steps[None]:
        packed = plans.pack(checkpoint)  # before anything is awaited: the caller may go on to change it
        id = packed.run_id

        def steps() -> Steps[None]:
            yield from self._trust()
            self._keep()
            known = self._known.get(id, NOTHING)
            seq = NUMBERS.next(self._clock.now(), known.seq)
            self._known[id] = yield from plans.save(self.keys, self.owner, packed, known, seq=seq, ttl=self._ttl)

        return steps()

    def load(self, id: str) -> Steps[Checkpoint | None]:
        yield from self._trust()
        found = yield from plans.load(self.keys, valid_id(id))
        return None if found is None else found.checkpoint

    def delete(self, id: str) -> Steps[None]:
        yield from self._trust()
        self._known.pop(id, None)
        yield from plans.delete(self.keys, self.owner, valid_id(id), seq=NUMBERS.next(self._clock.now()))

    def list_interrupted(self) -> Steps[list[Checkpoint]]:
        ids = yield from self.interrupted()
        found = []
        for id, one in zip(ids, (yield from plans.load_many(self.keys, list(ids))), strict=True):
            if isinstance(one, Unreadable):
                logger.error("the checkpoint of run %s is left out: %s", id, one)
            elif one is not None:
                found.append(one.checkpoint)
        return sorted(found, key=lambda checkpoint: checkpoint.seq)

    def interrupted(self) -> Steps[dict[str, str]]:
        """Runs that nobody else executes, with their last owners."""
        yield from self._trust()
        return (yield from plans.interrupted(self.keys, self.owner))

    def claim(self, id: str, seen: str) -> Steps[Checkpoint | None]:
        """The checkpoint, and the run is ours; None where another was faster, or it can't be read."""
        self._keep()
        if not (yield from plans.claim(self.keys, self.owner, id, seen=seen, nonce=os.urandom(8).hex())):
            return None
        try:
            found = yield from plans.load(self.keys, id)
        except Unreadable as error:
            logger.error("run %s can't be recovered: %s", id, error)
            return None
        if found is None:
            return None
        self._known[id] = found.known
        return found.checkpoint

    def leave(self) -> Steps[None]:
        """What is held can be taken at once."""
        yield from plans.keep(self.keys, self.owner, "leave")

    @property
    def holds(self) -> bool:
        return self._keeper is not None

    def stop(self) -> None:
        """The lease is not renewed any more."""
        if self._keeper is not None:
            self._keeper.stop()

    def _trust(self) -> Steps[None]:
        if not self._trusted:
            found = yield from checks.examine(self._settings.address, self._settings.namespace)
            checks.refuse(found)
            for finding in found:
                logger.warning("%s", finding.sentence)
            # what the namespace promises holds for its records, too; where nobody founded it there is nothing to wait for
            if (space := (yield from namespace_plans.known(self._settings.namespace))) is not None:
                self.keys = space.keys(0)
            self._trusted = True

    def _keep(self) -> None:
        with self._lock:
            if self._keeper is None:
                self._keeper = Keeper(self._settings.address, self.keys, self.owner, self._lease)
                self._keeper.start()


class RedisStore:
    """Keeps checkpoints on a server. Shared by threads; notices a fork. Close it at a shutdown: others need not wait then."""

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
        self._records = self._anew()
        self._wire = Wire(self._settings.address, timeout)

    def __enter__(self) -> RedisStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def save(self, checkpoint: Checkpoint) -> None:
        """Kept when it returns. A lower seq than the stored one changes nothing, an equal one is a repetition."""
        self._do(self._here().save(checkpoint))

    def load(self, run_id: str) -> Checkpoint | None:
        """The checkpoint; None where there is none: the run ended, or never saved. Unreadable where it is corrupt."""
        return self._do(self._here().load(run_id))

    def delete(self, run_id: str) -> None:
        """The run has ended; one without a checkpoint is fine."""
        self._do(self._here().delete(run_id))

    def list_interrupted(self) -> list[Checkpoint]:
        """Every checkpoint that is left, for a start to recover from; not those of other processes that are alive."""
        return self._do(self._here().list_interrupted())

    def claim_interrupted(self) -> Iterator[Checkpoint]:
        """Interrupted runs that nobody executes, each taken over when it is given out: no other process gets it, too."""
        for id, seen in self._do(self._here().interrupted()).items():
            checkpoint = self._do(self._here().claim(id, seen))
            if checkpoint is not None:
                yield checkpoint

    def close(self) -> None:
        """Lets go of what it holds: another process may take it at once. Used again, it is a new owner."""
        records, self._records = self._here(), self._anew()
        if records.holds:
            records.stop()
            try:
                self._do(records.leave())
            except CoordinatorError as error:
                logger.warning("checkpoints were not let go and wait for a lease: %s", error)
        self._wire.close()

    def _anew(self) -> Records:
        return Records(self._settings, self._lease, self._ttl, self._clock)

    def _here(self) -> Records:
        if self._records.pid != os.getpid():
            self._records = self._anew()
        return self._records

    def _do(self, steps: Steps[T]) -> T:
        return drive(self._wire, steps)


class AsyncRedisStore:
    """Keeps checkpoints on a server, in an event loop. Close it at a shutdown: others need not wait then."""

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
        self._records = self._anew()
        self._session: tuple[asyncio.AbstractEventLoop, AsyncWire] | None = None

    async def __aenter__(self) -> AsyncRedisStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def save(self, checkpoint: Checkpoint) -> None:
        """Kept when it returns. A lower seq than the stored one changes nothing, an equal one is a repetition."""
        await self._do(self._here().save(checkpoint))

    async def load(self, run_id: str) -> Checkpoint | None:
        """The checkpoint; None where there is none: the run ended, or never saved. Unreadable where it is corrupt."""
        return await self._do(self._here().load(run_id))

    async def delete(self, run_id: str) -> None:
        """The run has ended; one without a checkpoint is fine."""
        await self._do(self._here().delete(run_id))

    async def list_interrupted(self) -> list[Checkpoint]:
        """Every checkpoint that is left, for a start to recover from; not those of other processes that are alive."""
        return await self._do(self._here().list_interrupted())

    async def claim_interrupted(self) -> AsyncIterator[Checkpoint]:
        """Interrupted runs that nobody executes, each taken over when it is given out: no other process gets it, too."""
        for id, seen in (await self._do(self._here().interrupted())).items():
            checkpoint = await self._do(self._here().claim(id, seen))
            if checkpoint is not None:
                yield checkpoint

    async def close(self) -> None:
        """Lets go of what it holds: another process may take it at once. Used again, it is a new owner."""
        records, self._records = self._here(), self._anew()
        if records.holds:
            await asyncio.to_thread(records.stop)  # it may be in the middle of a renewal
            try:
                await self._do(records.leave())
            except CoordinatorError as error:
                logger.warning("checkpoints were not let go and wait for a lease: %s", error)
        session, self._session = self._session, None
        if session is not None and session[0] is asyncio.get_running_loop():
            await session[1].close()

    def _anew(self) -> Records:
        return Records(self._settings, self._lease, self._ttl, self._clock)

    def _here(self) -> Records:
        if self._records.pid != os.getpid():
            self._records, self._session = self._anew(), None
        return self._records

    async def _do(self, steps: Steps[T]) -> T:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session[0] is not loop:
            self._session = (loop, AsyncWire(self._settings.address, self._settings.timeout))
        return await drive_async(self._session[1], steps)
