"""The output of a run for the page: the same items as from `handle.stream`, with long texts cut."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from coordinator.client.async_client import AsyncClient
from coordinator.client.handles import AsyncHandle
from coordinator.errors import CoordinatorError, NotFound, Unreachable
from coordinator.model.output import Event, Gap, Item, Place, Rewind
from coordinator.model.run import ENDED, Note
from coordinator.printable import json_text
from coordinator.web.event_stream import RETRY_MS, EventStream, StreamClosed, closed_stream, frame, items_of
from coordinator.web.gate import caller_name
from coordinator.web.page.shorten import shorten
from coordinator.web.streams import OpenStreams

log = logging.getLogger(__name__)
MOST_STREAMS = 32  # the most outputs that one caller reads at the same time
IDLE, KEEP_ALIVE = 300.0, 10.0  # seconds
MOST_TEXT = 2000  # characters of one text of an event


class OutputStreams:
    """The outputs of runs as streams of server-sent events. An output is read only while a viewer has it open.

    Attributes:
        streams: The open streams.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.streams = OpenStreams(MOST_STREAMS)

    async def response(self, request: Request, id: str) -> Response:
        """Return the stream of a run's output, from the item after `Last-Event-ID` or `after` on.

        Raises:
            NotFound: There is no such run.
            BadOption: The id of the last item is not valid.
            Problem: The caller has too many open streams (429).
        """
        after = request.headers.get("last-event-id") or request.query_params.get("after") or None
        if after is not None:
            Place.parse(after)
        handle = self._client.handle(id)
        try:
            await handle.view()
        except Unreachable as error:
            log.warning("stream closed: run %s: %s", id, error)
            return EventStream(closed_stream(), lambda: None)
        return EventStream(self._frames(handle, after), self.streams.open(caller_name(request)))

    async def _frames(self, handle: AsyncHandle[Any], after: str | None) -> AsyncGenerator[str, None]:
        """Yield the text of each event of a stream. The last event is `end` if the run has ended."""
        yield f"retry: {RETRY_MS}\n\n"
        last = after or ""
        try:
            source = handle.stream(after=after)
            async with aclosing(items_of(source, self.streams, idle=IDLE, keep_alive=KEEP_ALIVE)) as items:
                async for item in items:
                    last = item.id if item else last
                    yield _frame_of(item) if item else ": still here\n\n"
            if (await handle.view()).status in ENDED:
                yield frame("end", last, "{}")
        except StreamClosed:
            return  # without `end`: the run may have emitted more since then
        except NotFound:
            yield frame("end", last, "{}")  # its retention is over
        except CoordinatorError as error:
            log.warning("stream closed: run %s: %s: %s", handle.id, type(error).__name__, error)


def _frame_of(item: Item) -> str:
    match item:
        case Event():
            note = isinstance(item.value, Note)
            data = {"number": item.number, "value": shorten(item.value, MOST_TEXT), "note": note}
            return frame("item", item.id, json_text(data | {"at": item.at.timestamp()}))
        case Rewind():
            return frame("rewind", item.id, json_text({"to": item.to}))
        case Gap():
            return frame("gap", item.id, json_text({"count": item.count}))
