"""The operations on runs, except for streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from coordinator.client.handles import CANCEL_GRACE
from coordinator.client.operations import lists as list_operations
from coordinator.client.reading.listing import Listing
from coordinator.client.reading.pages import Cursor
from coordinator.errors import KeyConflict, NotFound, ResultTimeout
from coordinator.model.run import ENDED, RunView, Status
from coordinator.web.rest.call import Call
from coordinator.web.rest.cursors import decrypt_cursor, encrypt_cursor
from coordinator.web.rest.json_bodies import ABSENT, json_response, to_json

MESSAGES_BYTES = 1024 * 1024  # a page of messages ends after this size
WHOLE = frozenset({"priority", "schema"})  # options of `enqueue` that are whole numbers


async def enqueue(call: Call) -> Response:
    """Enqueue a run. Return 201 with its id, or 200 if a run with the same idempotency key exists already."""
    body: dict[str, Any] = call.body
    kind = body["kind"]
    given: dict[str, Any] = body.get("options", {})
    for name in given.keys() & WHOLE:
        given[name] = int(given[name])  # JSON has one type of numbers: 1.0 is a whole number
    options = call.ownership.options(kind, given)
    key = call.ownership.key(call.values["Idempotency-Key"])
    handle = await call.client.enqueue(kind, body.get("inputs", {}), **options, key=key)
    if not handle.created:
        await _check_existing(call, handle.id)
    path = f"{call.request.scope.get('root_path', '')}/runs/{handle.id}"
    status = 201 if handle.created else 200
    return json_response({"id": handle.id, "created": handle.created}, status, {"Location": path})


async def _check_existing(call: Call, id: str) -> None:
    """Check that the caller may see the existing run that has the caller's idempotency key.

    Raises:
        KeyConflict: The caller may not see it: another program has enqueued it with the same stored key.
    """
    try:
        call.ownership.check(await call.client.handle(id).view())
    except NotFound:
        if call.ownership.owner is not None:
            raise KeyConflict("the key belongs to another run: use another key") from None


async def show(call: Call) -> Response:
    """Return one run as JSON."""
    return json_response(call.ownership.show(await call.view()))


async def list_runs(call: Call) -> Response:
    """Return a page of runs as JSON."""
    values = call.values
    filters = Listing.of(values["status"], values["kind"], values["queue"], values["limit"])
    cursor = None if values["cursor"] is None else await _read_cursor(call, values["cursor"])
    page = await call.client._do(list_operations.list_page, filters, call.ownership.owns, cursor)
    after = None if page.cursor is None else await _write_cursor(call, page.cursor)
    return json_response({"runs": [call.ownership.show(view) for view in page.runs], "cursor": after})


def _ignore() -> None:
    return


async def _read_cursor(call: Call, text: str) -> Cursor:
    return Cursor.parse(text) if call.ownership.owner is None else decrypt_cursor(text, await call.cursor_key())


async def _write_cursor(call: Call, cursor: Cursor) -> str:
    return str(cursor) if call.ownership.owner is None else encrypt_cursor(cursor, await call.cursor_key())


async def result(call: Call) -> Response:
    """Wait for the end of a run, and return its result as JSON. Return 202 with its status if the run has not ended in time."""
    view = await call.view()
    seconds = min(call.values["wait"], call.limits.wait)
    if view.status in ENDED or seconds > 0:
        release = _ignore if view.status in ENDED else call.streams.open_wait(call.caller)
        try:
            return await _await_result(call, view, seconds or call.limits.wait)
        except ResultTimeout:
            view = await call.view()
        finally:
            release()
    return json_response({"id": view.id, "status": view.status}, 202)


async def _await_result(call: Call, view: RunView, seconds: float) -> Response:
    """Return the result of a run when it has ended, or its status if the server stops before.

    Raises:
        ResultTimeout: The run has not ended in time.
        ClientDisconnect: The client has closed its connection.
    """
    work = asyncio.ensure_future(call.handle.result(timeout=seconds))
    leaving = asyncio.ensure_future(_wait_for_disconnect(call.request))
    leaving.add_done_callback(partial(_cancel_if_left, work))
    try:
        await call.streams.until_closed(work)
        if work.cancelled():
            raise ClientDisconnect
        if work.done():
            return json_response({"id": view.id, "status": Status.COMPLETED, "result": work.result()})
    finally:
        work.cancel()
        leaving.cancel()
    return json_response({"id": view.id, "status": view.status}, 202)


async def _wait_for_disconnect(request: Request) -> bool:
    """Wait until the client closes its connection, so that the waiting request of a client that has left can end.

    Returns:
        True if the client has left. False if a middleware of the host application returns the body again from each `receive`, so
        that it is not known when the client leaves.
    """
    message = await request.receive()
    if message["type"] == "http.request":
        message = await request.receive()
    return bool(message["type"] == "http.disconnect")


def _cancel_if_left(work: asyncio.Future[Any], leaving: asyncio.Future[bool]) -> None:
    if not leaving.cancelled() and leaving.exception() is None and leaving.result():
        work.cancel()


async def messages(call: Call) -> Response:
    """Return a page of the saved messages of a run as JSON."""
    await call.view()
    start, limit = call.values["start"], call.values["limit"]
    texts: list[str] = []
    size, more = 0, False
    source = call.handle.messages(start)
    try:
        async for message in source:
            if len(texts) == limit or size > MESSAGES_BYTES:
                more = True
                break
            texts.append(to_json(message))
            size += len(texts[-1])
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()
    # The messages are JSON already; a page of them may be large.
    page = f'{{"messages": [{", ".join(texts)}], "next": {start + len(texts)}, "more": {to_json(more)}}}'
    return Response(page, headers={"Cache-Control": "no-store"}, media_type="application/json")


async def cancel(call: Call) -> Response:
    """Cancel a run, and return its status as JSON."""
    await call.view()
    status = await call.handle.cancel(_field(call.body, "grace", CANCEL_GRACE))
    return json_response({"id": call.handle.id, "status": status})


async def revive(call: Call) -> Response:
    """Queue a failed, dead or cancelled run again, and return its status as JSON."""
    await call.view()
    await call.handle.revive(_field(call.body, "from_start", False))
    return json_response({"id": call.handle.id, "status": Status.QUEUED})


async def send_signal(call: Call) -> Response:
    """Send a signal to a run, with the body of the request as its payload. Return JSON with `sent`, the result of `Handle.send`."""
    await call.view()
    payload = None if call.body is ABSENT else call.body
    sent = await call.handle.send(call.values["topic"], payload, key=call.values["Idempotency-Key"])
    return json_response({"id": call.handle.id, "topic": call.values["topic"], "sent": sent})


def _field(body: Any, name: str, default: Any) -> Any:
    return default if body is ABSENT else body.get(name, default)
