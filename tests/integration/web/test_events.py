"""The output of a run as server-sent events."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from httpx_sse import ServerSentEvent, aconnect_sse

from coordinator import AsyncClient, Event, RunView
from coordinator.web import Limits, api
from coordinator.web.rest.call import Call
from tests.conftest import StartServer
from tests.integration.web.conftest import Site, serving
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("worker")


async def read(site: Site, id: str, headers: dict[str, str] | None = None, **query: str) -> list[ServerSentEvent]:
    """Return the events of a stream, until it is closed."""
    async with aconnect_sse(site.http, "GET", f"/runs/{id}/events", headers=headers or {}, params=query) as source:
        return [event async for event in source.aiter_sse()]


@asynccontextmanager
async def opened(site: Site, id: str, headers: dict[str, str] | None = None) -> AsyncIterator[AsyncIterator[Any]]:
    async with aconnect_sse(site.http, "GET", f"/runs/{id}/events", headers=headers or {}) as source:
        yield source.aiter_sse()


def values(events: list[ServerSentEvent]) -> list[Any]:
    return [json.loads(event.data)["value"] for event in events if event.event == "message"]


async def test_stream_has_the_events_in_order_and_the_end(site: Site) -> None:
    words = ["one", {"two": [2, None]}, "line\nbreak", "\u2028 é 😀", 5, None]
    id = await site.enqueue("talk", {"values": words})
    events = await read(site, id)
    assert values(events) == words
    assert [json.loads(event.data)["number"] for event in events[:-1]] == [1, 2, 3, 4, 5, 6]
    assert (events[-1].event, json.loads(events[-1].data)) == ("end", {"status": "completed"})


async def test_deeply_nested_event_is_cut_and_does_not_end_the_stream(site: Site) -> None:
    id = await site.enqueue("nest", {"depth": 700})
    events = await read(site, id)
    assert [values(events)[place] for place in (0, 2)] == ["before", "after"]
    assert "entries)" in events[1].data
    assert events[-1].event == "end"


async def test_event_reaches_the_reader_while_the_run_continues(site: Site) -> None:
    id = await site.enqueue("chat")
    async with opened(site, id) as stream:
        assert json.loads((await anext(stream)).data)["value"] == "What is your name?"
        await site.http.post(f"/runs/{id}/signals/answer", json="Ada")
        assert json.loads((await anext(stream)).data)["value"] == "Hello Ada"
        assert (await anext(stream)).event == "end"


async def test_reader_continues_after_the_last_event_it_has_got(site: Site) -> None:
    id = await site.enqueue("talk", {"values": list(range(10))})
    first = await read(site, id)
    for place in (3, 9):
        last = first[place].id
        assert values(await read(site, id, {"Last-Event-ID": last})) == list(range(place + 1, 10))
        assert values(await read(site, id, after=last)) == list(range(place + 1, 10))
    assert values(await read(site, id, {"Last-Event-ID": first[3].id}, after=first[0].id)) == list(range(4, 10))


async def test_reader_with_an_id_of_the_future_does_not_hide_events_from_others(site: Site) -> None:
    id = await site.enqueue("chat")
    async with opened(site, id, {"Last-Event-ID": "9999999999999999999-0"}), asyncio.timeout(20):
        await eventually(lambda: bool(site.client._open().feed._parts), "the reader to subscribe")
        async with opened(site, id) as stream:
            assert json.loads((await anext(stream)).data)["value"] == "What is your name?"
            await site.http.post(f"/runs/{id}/signals/answer", json="Ada")
            assert json.loads((await anext(stream)).data)["value"] == "Hello Ada"


async def test_reader_that_has_got_the_end_is_told_to_stop(site: Site) -> None:
    id = await site.enqueue("talk", {"values": []})
    end = (await read(site, id))[-1]
    answer = await site.http.get(f"/runs/{id}/events", headers={"Last-Event-ID": end.id})
    assert (answer.status_code, answer.content) == (204, b"")


async def test_end_of_an_earlier_life_does_not_stop_a_reader(site: Site) -> None:
    id = await site.enqueue("chat")

    async def waits() -> bool:
        return (await site.client.handle(id).view()).waiting is not None

    await eventually(waits, "the run to wait")
    await site.http.post(f"/runs/{id}/cancel")
    end = (await read(site, id))[-1]
    assert json.loads(end.data) == {"status": "cancelled"}
    await site.http.post(f"/runs/{id}/revive")
    await site.http.post(f"/runs/{id}/signals/answer", json="Ada")
    await site.client.handle(id).wait(timeout=30)  # it has ended again when the reader comes back
    events = await read(site, id, {"Last-Event-ID": end.id})
    assert values(events) == ["Hello Ada"]
    assert json.loads(events[-1].data) == {"status": "completed"}


async def test_settled_stream_has_each_event_once(site: Site) -> None:
    id = await site.enqueue("talk", {"values": list(range(10))})
    assert values(await read(site, id, settled="true")) == list(range(10))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("last", ["x", "1", "1-", "-1", "1-2-3", "1-2/fin", "99999999999999999999-1"])
async def test_id_that_is_not_of_an_event_is_refused(site: Site, last: str) -> None:
    id = await site.enqueue("talk", {"values": []})
    answer = await site.http.get(f"/runs/{id}/events", headers={"Last-Event-ID": last})
    assert (answer.status_code, answer.json()["error"]) == (400, "BadOption")


async def test_caller_has_a_limited_number_of_streams(make_site: Callable[..., Any]) -> None:
    site: Site = await make_site(owner=lambda request: request.headers.get("user"), limits=Limits(streams=2))
    alice, bob = {"user": "alice"}, {"user": "bob"}
    run, other = await site.enqueue("chat", headers=alice), await site.enqueue("chat", headers=bob)
    async with opened(site, run, alice) as first, opened(site, run, alice):
        await anext(first)
        refused = await site.http.get(f"/runs/{run}/events", headers=alice)
        assert (refused.status_code, refused.json()["error"]) == (429, "TooManyStreams")
        async with opened(site, other, bob) as stream:
            await anext(stream)
            assert len(site.app.state.streams) == 3
    await eventually(lambda: len(site.app.state.streams) == 0, "the places of closed streams to be free")
    async with opened(site, run, alice) as stream:
        await anext(stream)


async def test_idle_stream_is_closed_and_continues_when_it_is_opened_again(make_site: Callable[..., Any]) -> None:
    site: Site = await make_site(limits=Limits(idle=0.3, keep_alive=0.1))
    id = await site.enqueue("chat")
    answer = await site.http.get(f"/runs/{id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.startswith(": the stream is open\nretry: 1000\nid: ")
    assert ": keep-alive\n" in answer.text
    assert "event: end" not in answer.text
    (event,) = await eventually(lambda: read(site, id), "the first event")
    await site.http.post(f"/runs/{id}/signals/answer", json="Ada")
    await site.client.handle(id).wait(timeout=30)
    assert values(await read(site, id, {"Last-Event-ID": event.id})) == ["Hello Ada"]


@pytest.mark.matrix("waits through a timeout")
async def test_stream_is_closed_and_not_refused_while_redis_is_away(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    async with AsyncClient(server.url, namespace, timeout=1) as client:
        run = await client.enqueue("chat", {})
        app = api(client)
        async with serving(app, app.state.streams.close) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            assert (await http.get(f"/runs/{run.id}")).status_code == 200
            server.kill()
            answer = await http.get(f"/runs/{run.id}/events")
            assert (answer.status_code, answer.text[:1]) == (200, ":")
            assert (await http.get(f"/runs/{run.id}")).status_code == 503


async def test_stream_that_is_closed_while_idle_does_not_hide_the_last_events(
    make_site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    site: Site = await make_site(limits=Limits(idle=1.0, keep_alive=1.0))
    id = await site.enqueue("chat")

    async def waits() -> bool:
        return (await site.client.handle(id).view()).waiting is not None

    await eventually(waits, "the run to wait")
    view, views = Call.view, []

    async def end_before_the_second_view(call: Call) -> RunView:
        views.append(call)
        if len(views) == 2:
            await call.handle.send("answer", "Ada")
            await call.handle.wait(timeout=30)
        return await view(call)

    monkeypatch.setattr(Call, "view", end_before_the_second_view)
    events = await read(site, id)
    assert [event.event for event in events] == ["message"]
    if len(views) < 2:
        await site.client.handle(id).send("answer", "Ada")
    monkeypatch.undo()
    assert values(await read(site, id, {"Last-Event-ID": events[-1].id})) == ["Hello Ada"]


@pytest.mark.matrix("waits through a timeout")
async def test_client_that_never_reads_holds_limited_memory_and_delays_no_other_reader(site: Site) -> None:
    """The output is larger than what Redis keeps, so the client gets a gap when it reads at last."""
    count, url = 40_000, httpx.URL(site.url)
    id = await site.enqueue("pour", {"count": count, "size": 500})
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)
        lazy.connect((url.host, url.port))
        lazy.sendall(f"GET /api/runs/{id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert await site.client.handle(id).wait(timeout=60) == "completed"
        other = await site.enqueue("talk", {"values": list(range(300))})
        assert values(await read(site, other)) == list(range(300))
        assert len(site.app.state.streams) == 1, "the stream of the client is still open"
        held = sum(type(one) is Event for one in gc.get_objects())
        assert held < 14_000, "what Redis keeps of one run, and an inbox; not the whole output"
        lazy.setblocking(False)
        rest = bytearray()
        async with asyncio.timeout(60):
            while b"event: end" not in rest[-1000:]:
                rest += await asyncio.get_running_loop().sock_recv(lazy, 1 << 20)
    gaps = [json.loads(line[6:]) for line in rest.decode().split("event: gap\n")[1:] for line in [line.split("\n")[1]]]
    assert sum(gap["count"] for gap in gaps) + rest.count(b'"number"') == count
    assert gaps, "the server has removed events before the client read them"
