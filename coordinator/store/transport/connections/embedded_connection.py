"""Connections to an embedded server. A connection that finds its server dead starts it again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from coordinator.errors import Unreachable
from coordinator.store.transport.connections.embedded_server import Attachment, attach

_attached: dict[str, Attachment] = {}
_attaching = threading.Lock()


def attach_once(directory: str) -> Attachment:
    """Return this process's attachment to an embedded server. It lasts until the process ends."""
    with _attaching:
        if directory not in _attached:
            _attached[directory] = attach(Path(directory))
        return _attached[directory]


def detach() -> None:
    """Detach this process from its embedded servers.

    A process that ends without running its exit functions must call this. Otherwise the server of the last process
    would run for ever.
    """
    while _attached:
        _, attachment = _attached.popitem()
        attachment.close()


def _revive_server(directory: str) -> str:
    """Start an embedded server again if it has died, and return the path of its socket.

    If several processes come at the same time, the first one starts it.
    """
    attachment = _attached.get(directory)
    if attachment is None:  # a process that has detached must not start a server
        raise ConnectionError(f"this process has detached from embedded://{directory}")
    try:
        attachment.ensure()
    except Unreachable as error:  # a refusal, such as a missing package, is raised as it is: no retry changes it
        raise ConnectionError(str(error)) from error
    return str(attachment.socket)


class EmbeddedConnection(redis.UnixDomainSocketConnection):
    """A connection of a thread to an embedded server."""

    def __init__(self, directory: str, **settings: Any) -> None:
        super().__init__(path=str(attach_once(directory).socket), **settings)  # type: ignore[no-untyped-call]  # redis-py has no types here
        self._directory = directory

    def _connect(self) -> Any:
        try:
            return super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here
        except (ConnectionRefusedError, FileNotFoundError):  # no process listens on the socket
            self.path = _revive_server(self._directory)
            return super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here


class AsyncEmbeddedConnection(redis.asyncio.UnixDomainSocketConnection):
    """A connection of an event loop to an embedded server. The loop is not blocked while the server starts."""

    def __init__(self, directory: str, **settings: Any) -> None:
        super().__init__(path=str(attach_once(directory).socket), **settings)
        self._directory = directory

    async def _connect(self) -> None:
        try:
            await super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here
        except (ConnectionRefusedError, FileNotFoundError):  # no process listens on the socket
            self.path = await asyncio.to_thread(_revive_server, self._directory)
            await super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here
