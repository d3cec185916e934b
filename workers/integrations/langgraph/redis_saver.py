"""`RedisSaver`: a checkpointer for graphs that a program executes itself, on plain Redis or Valkey."""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from types import TracebackType
from typing import TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from coordinator.config import settings
from coordinator.errors import BadOption
from coordinator.store import server_checks as checks
from coordinator.store.keys import Keys, Tag
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.transport.wire import AsyncWire, Wire, drive, drive_async
from workers.integrations.langgraph.save_plans import Place, Steps
from workers.integrations.langgraph.saver import PlainSaver

logger = logging.getLogger(__name__)
T = TypeVar("T")

SLOTS = 64  # hash slots over which threads are spread. It is part of the stored format, and must never change.


class RedisSaver(PlainSaver):
    """A checkpointer on plain Redis or Valkey, without modules. Threads and event loops may share it.

    All keys of a thread are in one hash slot, and every write is one script. So a thread is never half written, and a Cluster
    works.

    Args:
        url: The server's URL, as for `Client`. By default that of the worker inside whose handler the saver is made, then
            `RUNS_URL`, then `REDIS_URL` of the environment, then a server on this host.
        namespace: The namespace. By default that of the worker, then `RUNS_NAMESPACE` of the environment, then `runs`.
        ttl: Seconds after its last write after which the server deletes a thread. None keeps threads until they are deleted.
        timeout: Seconds for which a call is repeated while the server cannot be reached.
        serde: The serializer. By default that of LangGraph.

    Raises:
        BadOption: The URL or the ttl is not valid.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        *,
        ttl: float | None = None,
        timeout: float = 30.0,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        if ttl is not None and not 0.001 <= ttl < 1e9:
            raise BadOption(f"ttl {ttl!r} is not valid: use at least 0.001 and less than 1e9 seconds, or None")
        self._settings = settings(url, namespace, timeout)
        self._ttl = ttl
        self._session = _Session(os.getpid())
        self._replicas = 0
        self._checked = self._settings.address.scheme == "memory"

    def __enter__(self) -> RedisSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> RedisSaver:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the connections of the methods for threads."""
        wire, self._session.wire = self._session.wire, None
        if wire is not None:
            wire.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those of the methods for threads."""
        wire = self._session.loops.pop(asyncio.get_running_loop(), None)
        if wire is not None:
            await wire.close()
        self.close()

    def _place(self, thread: str) -> Steps[Place]:
        yield from self._check_server()
        return Place(self._keys(zlib.crc32(thread.encode()) % SLOTS), thread, ttl=self._ttl)

    def _all_places(self) -> Steps[list[Place]]:
        yield from self._check_server()
        return [Place(self._keys(number), "", ttl=self._ttl) for number in range(SLOTS)]

    def _keys(self, number: int) -> Keys:
        keys = Keys(self._settings.namespace, 0)
        keys.at = Tag(f"{{{self._settings.namespace}:threads-{number}}}", self._replicas)
        return keys

    def _check_server(self) -> Steps[None]:
        """Check the server's configuration, and read the durability of the namespace. Later calls do nothing."""
        if not self._checked:
            found = yield from checks.examine(self._settings.address, self._settings.namespace)
            checks.refuse(found)
            for finding in found:
                logger.warning("%s", finding.sentence)
            if (space := (yield from namespace_plans.read_facts(self._settings.namespace))) is not None:
                self._replicas = space.keys(0).at.replicas
            self._checked = True

    def _drive(self, plan: Steps[T]) -> T:
        session = self._current()
        if session.wire is None:
            session.wire = Wire(self._settings.address, self._settings.timeout)
        return drive(session.wire, plan)

    async def _drive_async(self, plan: Steps[T]) -> T:
        loops, loop = self._current().loops, asyncio.get_running_loop()
        if loop not in loops:
            for ended in [one for one in loops if one.is_closed()]:
                del loops[ended]
            loops[loop] = AsyncWire(self._settings.address, self._settings.timeout)
        return await drive_async(loops[loop], plan)

    def _current(self) -> _Session:
        """Return the connections of this process. After a fork, the child process makes its own."""
        if self._session.pid != os.getpid():
            self._session = _Session(os.getpid())
        return self._session


class _Session:
    """The connections of one process: one wire for threads, and one for each event loop."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.wire: Wire | None = None
        self.loops: dict[asyncio.AbstractEventLoop, AsyncWire] = {}
