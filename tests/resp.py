"""Where a request or a reply ends in a stream of bytes. No more of the protocol than the proxy needs."""

from __future__ import annotations

import socket
from collections.abc import Callable

LINES = b"+-:_#,("  # end with their line
BULKS = b"$=!"  # a length, then so many bytes
LISTS = {b"*": 1, b"~": 1, b">": 1, b"%": 2}  # a count, then so many frames for each


def frame_end(stream: bytes | bytearray, start: int = 0) -> int | None:
    """The index after the frame that begins at `start`; None while it is not complete."""
    line_end = stream.find(b"\r\n", start)
    if line_end < 0:
        return None
    kind, body = bytes(stream[start : start + 1]), line_end + 2
    if kind in LISTS:
        return _list_end(stream, body, int(stream[start + 1 : line_end]) * LISTS[kind])
    if kind in BULKS:
        size = int(stream[start + 1 : line_end])
        end = body + size + 2 if size >= 0 else body  # -1 is a null, which has no bytes
        return end if end <= len(stream) else None
    return body  # a line of its own: a short reply, or an inline request


def _list_end(stream: bytes | bytearray, start: int, frames: int) -> int | None:
    end: int | None = start
    for _ in range(frames):  # none for a null list, whose count is -1
        end = frame_end(stream, end) if end is not None else None
    return end


def words(request: bytes) -> list[bytes]:
    """A request's command and arguments."""
    if not request.startswith(b"*"):
        return request.split()
    found, at = [], request.index(b"\r\n") + 2
    while at < len(request):
        body = request.index(b"\r\n", at) + 2
        size = int(request[at + 1 : body - 2])
        found.append(request[body : body + size])
        at = body + size + 2
    return found


class Frames:
    """A socket, read frame by frame."""

    def __init__(self, source: socket.socket) -> None:
        self.source = source
        self.ended = False
        self._buffer = bytearray()

    def ready(self) -> bytes | None:
        """The next frame, if it is already here."""
        end = frame_end(self._buffer)
        if end is None:
            return None
        frame = bytes(self._buffer[:end])
        del self._buffer[:end]
        return frame

    def fill(self) -> None:
        """Read what has come; a reset is an end as well."""
        try:
            data = self.source.recv(1 << 16)
        except OSError:
            data = b""
        self._buffer += data
        self.ended = self.ended or not data

    def next(self, wait: Callable[[], None] | None = None) -> bytes | None:
        """The next frame; None when the stream has ended before it was complete."""
        while (frame := self.ready()) is None and not self.ended:
            (wait or self.fill)()
        return frame
