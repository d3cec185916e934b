"""The connections of an integration to the server: one for threads, one for each event loop, and new ones after a fork."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Generator
from typing import Any, TypeVar

from coordinator.config import Settings
from coordinator.store import server_checks as checks
from coordinator.store.keys import Keys, Tag
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.script import Request
from coordinator.store.transport.wire import AsyncWire, Wire, drive, drive_async

logger = logging.getLogger(__name__)
T = TypeVar("T")
Steps = Generator[Request | list[Request], Any, T]


class Connections:
    """The connections of one saver or session to the server. Threads and event loops may share this object.

    Args:
        settings: The server, the namespace and the timeout.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._own = _ProcessConnections(os.getpid())
        self._replicas = 0
        self._checked = settings.address.scheme == "memory"

    def keys(self, place: str) -> Keys:
        """Return keys that have a hash slot of their own and belong to no partition.

        Args:
            place: The name in the hash tag of the keys. It must not be a number, because numbers name partitions.
        """
        keys = Keys(self.settings.namespace, 0)
        keys.at = Tag(f"{{{self.settings.namespace}:{place}}}", self._replicas)
        return keys

    def check_server(self) -> Steps[None]:
        """Check the server's configuration, and read the durability of the namespace. Only the first call does this."""
        if not self._checked:
            found = yield from checks.examine(self.settings.address, self.settings.namespace)
            checks.refuse(found)
            for finding in found:
                logger.warning("%s", finding.sentence)
            if (space := (yield from namespace_plans.read_facts(self.settings.namespace))) is not None:
                self._replicas = space.keys(0).at.replicas
            self._checked = True

    def drive(self, plan: Steps[T]) -> T:
        """Run a plan on the server from a thread, and return its result."""
        own = self._current()
        if own.wire is None:
            own.wire = Wire(self.settings.address, self.settings.timeout)
        return drive(own.wire, plan)

    async def drive_async(self, plan: Steps[T]) -> T:
        """Run a plan on the server from an event loop, and return its result."""
        loops, loop = self._current().loops, asyncio.get_running_loop()
        if loop not in loops:
            for ended in [one for one in loops if one.is_closed()]:
                del loops[ended]
            loops[loop] = AsyncWire(self.settings.address, self.settings.timeout)
        return await drive_async(loops[loop], plan)

    def close(self) -> None:
        """Close the connections of the threads."""
        wire, self._own.wire = self._own.wire, None
        if wire is not None:
            wire.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop and of the threads."""
        wire = self._own.loops.pop(asyncio.get_running_loop(), None)
        if wire is not None:
            await wire.close()
        self.close()

    def _current(self) -> _ProcessConnections:
        """Return the connections of this process. After a fork, the child process makes its own."""
        if self._own.pid != os.getpid():
            self._own = _ProcessConnections(os.getpid())
        return self._own


class _ProcessConnections:
    """The connections of one process: one wire for threads, and one for each event loop."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.wire: Wire | None = None
        self.loops: dict[asyncio.AbstractEventLoop, AsyncWire] = {}
