"""The output of a run as server-sent events.

A browser's `EventSource` opens the stream again when it was closed, with the id of the last event in `Last-Event-ID`. So the server
may close a stream at any time: when nothing happens for a while, when it stops, or when it can't reach Redis.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from coordinator.errors import CoordinatorError, NotFound, Unreachable
from coordinator.model.output import Event, Gap, Item, Rewind
from coordinator.model.run import ENDED, Note
from coordinator.web.rest.call import Call
from coordinator.web.rest.json_bodies import to_json

log = logging.getLogger(__name__)
RETRY_MS = 1000  # how long a browser waits before it opens a stream again
ITEMS_AHEAD = 64  # items that are read before a slow client has taken them
END = "/end"  # in the id of the event `end`, before the life of the run: a revived run may end again


async def stream_events(call: Call) -> Response:
    """Answer with the output of a run as a stream of events."""
    last: str = call.values["Last-Event-ID"] or call.values["after"] or ""
    after, _, ended_life = last.partition(END)
    try:
        view = await call.view()
    except Unreachable as error:
        # A browser never repeats a request that was answered with an error. It does repeat one whose stream was closed.
        log.warning("stream closed: run %s: %s", call.values["id"], error)
        return _EventStream(_closed(), lambda: None)
    if view.status in ENDED and ended_life == str(view.counters.life):
        return Response(status_code=204)  # tells a browser to stop: it has got the end of this run
    release = call.streams.open(call.caller)
    return _EventStream(_frames(call, after or None), release)


class _EventStream(StreamingResponse):
    """A stream of events, which frees its place and its reader when it ends, however it ends."""

    def __init__(self, frames: AsyncGenerator[str, None], release: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second: nginx passes events on at once
        super().__init__(frames, headers=headers, media_type="text/event-stream")
        self._frames, self._release = frames, release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
            await self._frames.aclose()


async def _closed() -> AsyncGenerator[str, None]:
    yield ": Redis can't be reached: open the stream again\n"


async def _frames(call: Call, after: str | None) -> AsyncGenerator[str, None]:
    """Yield the frames of a stream, from the item after an id to the end of the run."""
    # Comments are not followed by an empty line, and `retry` is a part of the first event: some clients read them as events.
    yield ": the stream is open\n"
    last, head = after or "", f"retry: {RETRY_MS}\n"
    try:
        async with aclosing(_items(call, after)) as items:
            async for item in items:
                if item is None:
                    yield ": keep-alive\n"
                else:
                    yield head + _frame_of(item)
                    last, head = item.id, ""
        if call.streams.closed:
            return
        view = await call.view()
        if view.status in ENDED:  # otherwise the stream was idle, or the run was revived
            yield head + _frame("end", f"{last}{END}{view.counters.life}", {"status": view.status})
    except NotFound:
        yield _frame("end", f"{last}{END}0", {"status": None})  # its retention is over
    except CoordinatorError as error:
        log.warning("stream closed: run %s: %s: %s", call.values["id"], type(error).__name__, error)


async def _items(call: Call, after: str | None) -> AsyncGenerator[Item | None, None]:
    """Yield the items of a run's output, and None for each time without an item after which a comment is due.

    The generator ends with the run, after too much idle time, or when the server stops.

    Raises:
        CoordinatorError: The output can't be read.
    """
    limits, idle = call.limits, 0.0
    queue: asyncio.Queue[Item | CoordinatorError | None] = asyncio.Queue(ITEMS_AHEAD)
    reader = call.streams.start(_read(call.handle.stream(after=after, settled=call.values["settled"]), queue))
    try:
        while not call.streams.closed and idle < limits.idle:
            work = await call.streams.until_closed(queue.get(), limits.keep_alive)
            if not work.done():
                work.cancel()
                idle += limits.keep_alive
                yield None
                continue
            item, idle = work.result(), 0.0
            if item is None:
                return
            if isinstance(item, CoordinatorError):
                raise item
            yield item
    finally:
        reader.cancel()


async def _read(source: AsyncIterator[Item], queue: asyncio.Queue[Item | CoordinatorError | None]) -> None:
    """Put the items of an output into a queue, then None or the error that ended it.

    It is a task of its own, so that a cancelled request does not interrupt the source in the middle of a read.
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


def _frame_of(item: Item) -> str:
    match item:
        case Event():
            data = {"number": item.number, "value": item.value, "note": isinstance(item.value, Note), "at": item.at}
            return _frame(None, item.id, data)
        case Rewind():
            return _frame("rewind", item.id, {"to": item.to})
        case Gap():
            return _frame("gap", item.id, {"count": item.count})


def _frame(name: str | None, id: str, data: dict[str, Any]) -> str:
    """Return one event. An event without a name is a `message` for a browser."""
    head = f"event: {name}\n" if name else ""
    return f"{head}id: {id}\ndata: {to_json(data)}\n\n"
