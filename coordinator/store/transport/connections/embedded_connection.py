"""Connections to an embedded server. A connection that finds its server dead starts it again."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from coordinator.errors import Unreachable
from coordinator.store.transport.connections.embedded_server import Attachment, attach

_attaching = threading.Lock()


@dataclass(slots=True)
class _Shared:
    """This process's attachment to one server, and the number of pools that use it."""

    attachment: Attachment
    pools: int = 0


_attached: dict[str, _Shared] = {}


def hold_server(directory: str) -> Callable[[], None]:
    """Attach this process to an embedded server, for one pool of connections.

    Returns:
        A function that ends the pool's use of the server. After the last pool, the process detaches. A second call does nothing.
    """
    with _attaching:
        shared = _attached.get(directory)
        if shared is None:
            shared = _attached[directory] = _Shared(attach(Path(directory)))
        shared.pools += 1
    released = threading.Event()

    def release() -> None:
        with _attaching:
            if released.is_set() or _attached.get(directory) is not shared:
                return
            released.set()
            shared.pools -= 1
            if shared.pools == 0:
                del _attached[directory]
                shared.attachment.close()

    return release


def detach() -> None:
    """Detach this process from its embedded servers. A server without other users stops.

    Call this before the process ends with `os._exit`, which runs no exit functions.
    """
    while _attached:
        _, shared = _attached.popitem()
        shared.attachment.close()


def _forget_in_child() -> None:
    """Drop the attachments that a forked child has inherited from its parent. If the child uses a server, it attaches itself."""
    global _attaching  # noqa: PLW0603  # another thread of the parent may have held it
    _attaching = threading.Lock()
    while _attached:
        _, shared = _attached.popitem()
        shared.attachment.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def _revive_server(directory: str) -> str:
    """Start an embedded server again if it has died, and return the path of its socket.

    If several processes do this at the same time, the first one starts the server.

    Raises:
        ConnectionError: This process has detached.
        Refused: The server cannot be started on this machine.
    """
    shared = _attached.get(directory)
    if shared is None:  # a process that has detached must not start a server
        raise ConnectionError(f"this process has detached from embedded://{directory}")
    try:
        shared.attachment.ensure()
    except Unreachable as error:  # a refusal, such as a missing package, is raised as it is: no retry changes it
        raise ConnectionError(str(error)) from error
    return str(shared.attachment.socket)


def socket_path(directory: str) -> str:
    """Return the path of the socket of a server that this process is attached to.

    Raises:
        ConnectionError: This process has detached.
    """
    shared = _attached.get(directory)
    if shared is None:
        raise ConnectionError(f"this process has detached from embedded://{directory}")
    return str(shared.attachment.socket)


class EmbeddedConnection(redis.UnixDomainSocketConnection):
    """A connection of a thread to an embedded server."""

    def __init__(self, directory: str, **settings: Any) -> None:
        super().__init__(path=socket_path(directory), **settings)  # type: ignore[no-untyped-call]  # redis-py has no types here
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
        super().__init__(path=socket_path(directory), **settings)
        self._directory = directory

    async def _connect(self) -> None:
        try:
            await super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here
        except (ConnectionRefusedError, FileNotFoundError):  # no process listens on the socket
            self.path = await asyncio.to_thread(_revive_server, self._directory)
            await super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here
