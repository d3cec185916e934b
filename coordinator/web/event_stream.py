"""The parts of a stream of server-sent events that the HTTP API and the page share.

A browser's `EventSource` opens the stream again when it was closed, with the id of the last event in `Last-Event-ID`. So the server
may close a stream at any time: when nothing happens for a while, when it stops, or when it can't reach Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from coordinator.errors import CoordinatorError
from coordinator.model.output import Item
from coordinator.web.streams import OpenStreams

RETRY_MS = 1000  # how long a browser waits before it opens a stream again
ITEMS_AHEAD = 64  # items that are read before a slow client has taken them


class StreamClosed(Exception):
    """Raised to close a stream before its run has ended. The client opens the stream again."""


class EventStream(StreamingResponse):
    """A response that is a stream of server-sent events.

    When the stream ends, even by an error or a lost connection, it closes `frames` and calls `release`.

    Args:
        frames: Yields the bytes or the text of the stream.
        release: Called at the end, so that the caller may open another stream.
    """

    def __init__(
        self, frames: AsyncGenerator[str, None] | AsyncGenerator[bytes, None], release: Callable[[], None]
    ) -> None:
        headers = {
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }  # the second makes nginx send each event immediately
        super().__init__(frames, headers=headers, media_type="text/event-stream")
        self._frames, self._release = frames, release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
            await self._frames.aclose()


async def closed_stream() -> AsyncGenerator[str, None]:
    """Yield the only frame of a stream that is closed immediately, because Redis can't be reached.

    A browser does not repeat a request that was answered with an error, but it opens a closed stream again.
    """
    yield ": Redis can't be reached: open the stream again\n"


async def items_of(
    source: AsyncIterator[Item], streams: OpenStreams, *, idle: float, keep_alive: float
) -> AsyncGenerator[Item | None, None]:
    """Yield the items of a run's output, until the run has ended. Yield None when no item came for `keep_alive` seconds.

    For None, the caller sends a comment, so that proxies do not close the connection.

    Args:
        source: The output of the run.
        streams: The open streams, which end when the server stops.
        idle: Seconds without an item after which the stream is closed.
        keep_alive: Seconds without an item after which the generator yields None.

    Raises:
        StreamClosed: There was no item for too long, or the server stops.
        CoordinatorError: The output can't be read.
    """
    waited = 0.0
    queue: asyncio.Queue[Item | CoordinatorError | None] = asyncio.Queue(ITEMS_AHEAD)
    reader = streams.start(_read(source, queue))
    try:
        while not streams.closed and waited < idle:
            work = await streams.until_closed(queue.get(), keep_alive)
            if not work.done():
                work.cancel()
                waited += keep_alive
                yield None
                continue
            item, waited = work.result(), 0.0
            if item is None:
                return
            if isinstance(item, CoordinatorError):
                raise item
            yield item
        raise StreamClosed
    finally:
        reader.cancel()


async def _read(source: AsyncIterator[Item], queue: asyncio.Queue[Item | CoordinatorError | None]) -> None:
    """Put the items of an output into a queue, and finally None or the error that ended the output.

    This coroutine runs in a task of its own, so that a cancelled request does not interrupt the source in the middle of a read.
    """
    try:
        async for item in source:
            await queue.put(item)
        await queue.put(None)
    except CoordinatorError as error:
        await queue.put(error)
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


def frame(name: str | None, id: str, data: str) -> str:
    """Return one server-sent event as text.

    Args:
        name: The name of the event; None for the default name, `message`.
        id: The id of the event.
        data: The content, on one line.
    """
    head = f"event: {name}\n" if name else ""
    return f"{head}id: {id}\ndata: {data}\n\n"
