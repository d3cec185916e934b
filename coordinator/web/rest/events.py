"""The output of a run as server-sent events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from coordinator.errors import CoordinatorError, NotFound, Unreachable
from coordinator.model.output import Event, Gap, Item, Rewind
from coordinator.model.run import ENDED, Note
from coordinator.web.event_stream import RETRY_MS, EventStream, StreamClosed, closed_stream, frame, items_of
from coordinator.web.rest.call import Call
from coordinator.web.rest.json_bodies import to_json

log = logging.getLogger(__name__)
END = "/end"  # in the id of the event `end`, before the life of the run: a revived run may end again


async def stream_events(call: Call) -> Response:
    """Return the output of a run as a stream of events, from the item after `Last-Event-ID` or `after` on.

    The answer is 204 if the run has ended and the client already has its last event, so that a browser does not connect again.
    """
    last: str = call.values["Last-Event-ID"] or call.values["after"] or ""
    after, _, ended_life = last.partition(END)
    try:
        view = await call.view()
    except Unreachable as error:
        log.warning("stream closed: run %s: %s", call.values["id"], error)
        return EventStream(closed_stream(), lambda: None)
    if view.status in ENDED and ended_life == str(view.counters.life):
        return Response(status_code=204)  # tells a browser to stop: it has got the end of this run
    release = call.streams.open(call.caller)
    return EventStream(_frames(call, after or None), release)


async def _frames(call: Call, after: str | None) -> AsyncGenerator[str, None]:
    """Yield the text of each event of a stream, from the item after the id `after` to the end of the run."""
    # Comments are not followed by an empty line, and `retry` is a part of the first event: some clients read them as events.
    yield ": the stream is open\n"
    last, head = after or "", f"retry: {RETRY_MS}\n"
    source, limits = call.handle.stream(after=after, settled=call.values["settled"]), call.limits
    try:
        async with aclosing(items_of(source, call.streams, idle=limits.idle, keep_alive=limits.keep_alive)) as items:
            async for item in items:
                if item is None:
                    yield ": keep-alive\n"
                else:
                    yield head + _frame_of(item)
                    last, head = item.id, ""
        view = await call.view()
        if view.status in ENDED:  # otherwise the run was revived
            yield head + _frame("end", f"{last}{END}{view.counters.life}", {"status": view.status})
    except StreamClosed:
        return  # without `end`: the run may have emitted more since then
    except NotFound:
        yield _frame("end", f"{last}{END}0", {"status": None})  # its retention is over
    except CoordinatorError as error:
        log.warning("stream closed: run %s: %s: %s", call.values["id"], type(error).__name__, error)


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
    return frame(name, id, to_json(data))
