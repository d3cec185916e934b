"""Find where an HTTP request or reply ends, so that the proxy can stand in front of an HTTP service."""

from __future__ import annotations

import re

from tests.resp import Frames

_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)


def message_end(stream: bytes | bytearray, start: int = 0) -> int | None:
    """Return the index after the message that begins at `start`, or None if it is not complete.

    A message has a head and a body of the length that its head names. Chunked bodies are not supported.
    """
    head = stream.find(b"\r\n\r\n", start)
    if head < 0:
        return None
    length = _LENGTH.search(bytes(stream[start:head]))
    end = head + 4 + (int(length[1]) if length else 0)
    return end if end <= len(stream) else None


class HttpFrames(Frames):
    """Reads a socket message by message."""

    frame_end = staticmethod(message_end)


def is_post(request: bytes) -> bool:
    """Return True for a POST."""
    return request.startswith(b"POST ")
