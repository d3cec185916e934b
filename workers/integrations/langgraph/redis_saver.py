"""`RedisSaver`: a checkpointer for graphs that a program executes itself, on plain Redis or Valkey."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from coordinator.config import settings
from coordinator.errors import BadOption
from coordinator.store.keys import Keys
from workers.integrations.connections import Connections
from workers.integrations.langgraph.save_plans import Place, Steps
from workers.integrations.langgraph.saver import PlainSaver

T = TypeVar("T")

SLOTS = 64  # hash slots over which threads are spread. It is part of the stored format, and must never change.


class RedisSaver(PlainSaver):
    """A checkpointer on plain Redis or Valkey, without modules. Threads and event loops may share it.

    All keys of a thread are in one hash slot, and every write is one script. So a thread is never half written, and a Cluster
    works.

    Args:
        url: The server's URL, as for `Client`. Default: the server of the worker, if a handler makes the saver, then `RUNS_URL`,
            then `REDIS_URL` of the environment, then a server on this host.
        namespace: The namespace. Default: the namespace of the worker, then `RUNS_NAMESPACE` of the environment, then `runs`.
        ttl: Seconds after its last write after which the server deletes a thread. None keeps threads until they are deleted, also
            those that were written with a ttl before.
        timeout: Seconds for which a call is repeated while the server cannot be reached.
        serde: The serializer. Default: the serializer of LangGraph.

    Raises:
        BadOption: If the URL or the ttl is not valid.
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
        self._connections = Connections(settings(url, namespace, timeout))
        self._ttl = ttl

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
        self._connections.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop and of the methods for threads."""
        await self._connections.aclose()

    def _place(self, thread: str) -> Steps[Place]:
        yield from self._connections.check_server()
        return Place(self._keys(zlib.crc32(thread.encode()) % SLOTS), thread, ttl=self._ttl)

    def _all_places(self) -> Steps[list[Place]]:
        yield from self._connections.check_server()
        return [Place(self._keys(number), "", ttl=self._ttl) for number in range(SLOTS)]

    def _keys(self, number: int) -> Keys:
        return self._connections.keys(f"threads-{number}")

    def _drive(self, make_plan: Callable[[], Steps[T]]) -> T:
        return self._connections.drive(make_plan())

    async def _drive_async(self, make_plan: Callable[[], Steps[T]]) -> T:
        return await self._connections.drive_async(make_plan())
