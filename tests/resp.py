"""Find where a request or a reply ends in a stream of bytes: the part of the RESP protocol that the proxy needs."""

from __future__ import annotations

import socket
from collections.abc import Callable

LINES = b"+-:_#,("  # frames that end with their line
BULKS = b"$=!"  # frames with a length and that number of bytes
LISTS = {
    b"*": 1,
    b"~": 1,
    b">": 1,
    b"%": 2,
}  # frames with a count; each counted element consists of this number of frames


def frame_end(stream: bytes | bytearray, start: int = 0) -> int | None:
    """Return the index after the frame that begins at `start`, or None if the frame is not complete."""
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
    return body  # a single line: a short reply or an inline request


def _list_end(stream: bytes | bytearray, start: int, frames: int) -> int | None:
    end: int | None = start
    for _ in range(frames):  # a null list has the count -1 and no frames
        end = frame_end(stream, end) if end is not None else None
    return end


def words(request: bytes) -> list[bytes]:
    """Return the command and the arguments of a request."""
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
    """Reads a socket frame by frame. A subclass may read another protocol: it defines where a frame ends."""

    frame_end = staticmethod(frame_end)

    def __init__(self, source: socket.socket) -> None:
        self.source = source
        self.ended = False
        self._buffer = bytearray()

    def ready(self) -> bytes | None:
        """Return the next frame if it has already arrived."""
        end = self.frame_end(self._buffer)
        if end is None:
            return None
        frame = bytes(self._buffer[:end])
        del self._buffer[:end]
        return frame

    def fill(self) -> None:
        """Read the bytes that have arrived. A connection reset counts as the end of the stream."""
        try:
            data = self.source.recv(1 << 16)
        except OSError:
            data = b""
        self._buffer += data
        self.ended = self.ended or not data

    def next(self, wait: Callable[[], None] | None = None) -> bytes | None:
        """Return the next frame, or None if the stream ended before the frame was complete."""
        while (frame := self.ready()) is None and not self.ended:
            (wait or self.fill)()
        return frame
