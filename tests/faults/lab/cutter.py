"""A proxy that closes the connection after a given number of bytes, in either direction."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Literal

from tests.servers import free_port

Direction = Literal["request", "reply"]


class Cutter:
    """Forward bytes. When armed, forward a number of bytes in one direction and then close both sides, once."""

    def __init__(self, upstream: int) -> None:
        self.upstream, self.port = upstream, free_port()
        self.carried = {"request": 0, "reply": 0}
        self._left: dict[str, int | None] = {"request": None, "reply": None}
        self._lock = threading.Lock()
        self._lines: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._spawn(self._accept)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def arm(self, direction: Direction, after: int) -> None:
        with self._lock:
            self._left[direction] = after

    def disarm(self) -> None:
        """Cut nothing, if nothing was cut since the last call of `arm`."""
        with self._lock:
            self._left = {"request": None, "reply": None}

    @property
    def armed(self) -> bool:
        return any(left is not None for left in self._left.values())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in list(self._lines):
            _hang_up(line)
        for thread in self._threads:
            thread.join()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="cutter", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.upstream))
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._lines |= {client, server}
                for source, target, direction in ((client, server, "request"), (server, client, "reply")):
                    self._spawn(self._carry, source, target, direction)

    def _carry(self, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    self.carried[direction] += len(data)
                    left = self._left[direction]
                    cut = left is not None and len(data) >= left
                    if left is not None:
                        self._left[direction] = None if cut else left - len(data)
                        data = data[:left]
                target.sendall(data)
                if cut:
                    break
        for line in (source, target):
            _hang_up(line)
        self._lines.discard(source)
        source.close()  # Each direction closes its own end.


def _hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
