"""The limits of the HTTP API."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.errors import BadOption


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one request, one stream and one caller.

    Attributes:
        body: The largest body of a request, in bytes.
        streams: The largest number of streams of events that one caller may have open.
        waits: The largest number of requests of one caller that may wait for a result at the same time.
        idle: Seconds without an event after which a stream is closed. A browser opens it again, and continues where it was.
        keep_alive: Seconds without an event after which a comment is sent, so that proxies do not close the stream.
        wait: The longest time in seconds for which a request may wait for a result.

    Raises:
        BadOption: A limit is not a positive number.
    """

    body: int = 2 * 1024 * 1024
    streams: int = 32
    waits: int = 128
    idle: float = 300.0
    keep_alive: float = 15.0
    wait: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise BadOption(f"limit {name} {getattr(self, name)!r} is not valid: use a number above 0")
