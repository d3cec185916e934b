from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from coordinator import AsyncClient
from coordinator.web import Limits, Role, api, app
from tests.integration.web.conftest import Site, serving
from tests.waiting import eventually

MISSING = "01m7m2qa992e485k3221-00"

pytestmark = pytest.mark.usefixtures("worker")


async def ends(site: Site, id: str) -> str:
    return str(await site.client.handle(id).wait(timeout=30))


async def has_status(site: Site, id: str, status: str) -> None:
    async def reached() -> bool:
        return str((await site.client.handle(id).view()).status) == status

    await eventually(reached, f"run {id} to be {status}")


async def test_run_is_enqueued_and_its_result_is_waited_for(site: Site) -> None:
    answer = await site.http.post("/runs", json={"kind": "double", "inputs": {"number": 21}})
    assert answer.status_code == 201
    id = answer.json()["id"]
    assert answer.json() == {"id": id, "created": True}
    assert answer.headers["location"] == f"/api/runs/{id}"
    result = await site.http.get(f"/runs/{id}/result", params={"wait": 30})
    assert (result.status_code, result.json()) == (200, {"id": id, "status": "completed", "result": 42})


async def test_result_of_a_run_that_has_not_ended_is_202(site: Site) -> None:
    id = await site.enqueue("ask")
    answer = await site.http.get(f"/runs/{id}/result")
    assert answer.status_code == 202
    assert answer.json()["id"] == id
    await has_status(site, id, "waiting")
    answer = await site.http.get(f"/runs/{id}/result", params={"wait": 0.2})
    assert (answer.status_code, answer.json()) == (202, {"id": id, "status": "waiting"})


async def test_wait_for_a_result_is_cut_at_the_limit(make_site: Callable[..., Any]) -> None:
    site: Site = await make_site(limits=Limits(wait=0.2))
    id = await site.enqueue("ask")
    async with asyncio.timeout(30):
        assert (await site.http.get(f"/runs/{id}/result", params={"wait": 3600})).status_code == 202


async def test_caller_has_a_limited_number_of_requests_that_wait(make_site: Callable[..., Any]) -> None:
    site: Site = await make_site(owner=lambda request: request.headers.get("user"), limits=Limits(waits=2))
    alice, bob = {"user": "alice"}, {"user": "bob"}
    id, other = await site.enqueue("ask", headers=alice), await site.enqueue("ask", headers=bob)

    def wait(id: str, headers: dict[str, str], seconds: float) -> Any:
        return site.http.get(f"/runs/{id}/result", params={"wait": seconds}, headers=headers)

    waiting = [asyncio.create_task(wait(id, alice, 30)) for _ in range(2)]
    await eventually(lambda: site.app.state.streams.waits == 2, "both requests to wait")
    refused = await wait(id, alice, 30)
    assert (refused.status_code, refused.json()["error"]) == (429, "TooManyWaits")
    assert (await wait(id, alice, 0)).status_code == 202, "a request that does not wait is not limited"
    assert (await wait(other, bob, 0.1)).status_code == 202, "another caller has its own places"
    await site.http.post(f"/runs/{id}/cancel", headers=alice)
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [409, 409]
    third = await site.enqueue("ask", headers=alice)
    assert (await wait(third, alice, 0.1)).status_code == 202, "the places are free again"


async def test_request_that_waits_frees_its_place_when_its_client_leaves(
    make_site: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site: Site = await make_site(limits=Limits(waits=1, wait=3600))
    id, url = await site.enqueue("ask"), httpx.URL(site.url)
    for _ in range(2):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(f"GET /api/runs/{id}/result?wait=3600 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await writer.drain()
        await eventually(lambda: site.app.state.streams.waits == 1, "the request to wait")
        writer.close()
        await eventually(lambda: site.app.state.streams.waits == 0, "the place to be free again")
        del reader
    assert f"request cut: GET /api/runs/{id}/result" in caplog.text
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    waiting = asyncio.create_task(site.http.get(f"/runs/{id}/result", params={"wait": 3600}))
    await eventually(lambda: site.app.state.streams.waits == 1, "another request to wait")
    await site.http.post(f"/runs/{id}/cancel")
    assert (await waiting).status_code == 409


async def test_request_that_waits_does_not_stop_an_application_whose_middleware_repeats_the_body(
    make_site: Callable[..., Any],
) -> None:
    site: Site = await make_site(limits=Limits(wait=3600))
    id = await site.enqueue("ask")

    async def repeating(scope: Any, receive: Any, send: Any) -> None:
        async def receive_again() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        await site.app(scope, receive_again if scope["type"] == "http" else receive, send)

    transport = httpx.ASGITransport(repeating)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        waiting = asyncio.create_task(http.get(f"/runs/{id}/result", params={"wait": 3600}))
        await eventually(lambda: site.app.state.streams.waits == 1, "the request to wait")
        await site.http.post(f"/runs/{id}/cancel")
        assert (await waiting).status_code == 409


@pytest.mark.parametrize("sent", [b"", b'{"kind": "do'])
async def test_upload_that_is_cut_logs_no_traceback(site: Site, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    caplog.set_level(logging.INFO)
    url = httpx.URL(site.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = "POST /api/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    writer.write(head.encode() + sent)
    await writer.drain()
    assert (await site.http.get("/runs")).status_code == 200  # by now the server reads the body
    writer.close()
    await eventually(
        lambda: "request cut: POST /api/runs" in caplog.text, "the server to notice the end of the connection"
    )
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    del reader


async def test_run_that_failed_has_a_problem_instead_of_a_result(site: Site) -> None:
    id = await site.enqueue("fail")
    await ends(site, id)
    answer = await site.http.get(f"/runs/{id}/result")
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["error"] == "RunFailed"
    assert problem["type"] == "urn:run-coordinator:error:RunFailed"
    assert problem["cause"] == {"type": "ValueError", "message": "no luck"}
    assert "Traceback" not in answer.text


async def test_cancelled_run_is_revived(site: Site) -> None:
    id = await site.enqueue("ask")
    await has_status(site, id, "waiting")
    assert (await site.http.post(f"/runs/{id}/cancel")).json() == {"id": id, "status": "cancelled"}
    assert (await site.http.get(f"/runs/{id}/result")).json()["error"] == "RunCancelled"
    assert (await site.http.post(f"/runs/{id}/signals/answer", json=1)).json()["error"] == "Ended"
    answer = await site.http.post(f"/runs/{id}/revive", json={"from_start": True})
    assert (answer.status_code, answer.json()) == (200, {"id": id, "status": "queued"})
    assert (await site.http.post(f"/runs/{id}/revive")).json()["error"] == "Changed"
    await site.http.post(f"/runs/{id}/signals/answer", json={"yes": True})
    answer = await site.http.get(f"/runs/{id}/result", params={"wait": 30})
    assert answer.json()["result"] == {"yes": True}


async def test_signal_with_a_key_is_sent_once(site: Site) -> None:
    id = await site.enqueue("ask")
    keyed = {"Idempotency-Key": "click"}
    first = await site.http.post(f"/runs/{id}/signals/other", json="a", headers=keyed)
    second = await site.http.post(f"/runs/{id}/signals/other", json="b", headers=keyed)
    assert (first.json(), second.json()) == (
        {"id": id, "topic": "other", "sent": True},
        {"id": id, "topic": "other", "sent": False},
    )
    assert (await site.http.get(f"/runs/{id}")).json()["signals"] == {"other": 1}


async def test_caller_cannot_raise_the_budget_of_a_run_by_a_signal(site: Site) -> None:
    id = await site.enqueue("ask")
    answer = await site.http.post(f"/runs/{id}/signals/coordinator.grant", json=[10**9, 0, 0])
    assert (answer.status_code, answer.json()["error"]) == (400, "BadName")
    assert (await site.http.get(f"/runs/{id}")).json()["signals"] == {}


async def test_key_makes_one_run_of_repeated_requests(site: Site) -> None:
    body = {"kind": "double", "inputs": {"number": 1}}
    first = await site.http.post("/runs", json=body, headers={"Idempotency-Key": "order-1"})
    second = await site.http.post("/runs", json=body, headers={"Idempotency-Key": "order-1"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == {"id": first.json()["id"], "created": False}
    other = await site.http.post(
        "/runs", json={"kind": "double", "inputs": {"number": 2}}, headers={"Idempotency-Key": "order-1"}
    )
    assert (other.status_code, other.json()["error"]) == (409, "KeyConflict")


async def test_view_has_the_fields_of_the_command_show(site: Site) -> None:
    id = await site.enqueue("fail")
    await ends(site, id)
    view = (await site.http.get(f"/runs/{id}")).json()
    assert (view["id"], view["kind"], view["status"]) == (id, "fail", "failed")
    assert "Traceback" in view["error"]["traceback"]
    assert view["why"] == "ValueError: no luck"


async def test_list_is_filtered(site: Site) -> None:
    failed, waiting = await site.enqueue("fail"), await site.enqueue("ask")
    await ends(site, failed)
    await has_status(site, waiting, "waiting")
    for query, expected in (
        ({}, {failed, waiting}),
        ({"status": "failed"}, {failed}),
        ({"kind": "ask"}, {waiting}),
        ({"queue": "other"}, set()),
    ):
        answer = await site.http.get("/runs", params=query)
        assert {run["id"] for run in answer.json()["runs"]} == expected, query


async def test_values_that_json_does_not_have_are_converted(site: Site) -> None:
    id = await site.enqueue("odd_values")
    answer = await site.http.get(f"/runs/{id}/result", params={"wait": 30})
    assert answer.json()["result"] == {
        "nan": None, "bytes": "AP8=", "time": "2026-01-02T00:00:00+00:00", "line": "a\u2028b\nc",
    }  # fmt: skip


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "needs the field 'kind'"),
        ([], "must be object"),
        ({"kind": "a b"}, "does not match"),
        ({"kind": "double", "inputs": []}, "must be object"),
        ({"kind": "double", "input": {}}, "has no field 'input'"),
        ({"kind": "double", "options": {"delay": -1}}, "at least 0"),
        ({"kind": "double", "options": {"delay": True}}, "must be number"),
        ({"kind": "double", "options": {"id": "x"}}, "has no field 'id'"),
        ({"kind": "double", "options": {"parent": MISSING}}, "has no field 'parent'"),
        ({"kind": "double", "options": {"delay": 1, "at": 1}}, "exclude each other"),
        ({"kind": "double", "options": {"key_ttl": 1}}, "has no field 'key_ttl'"),
        ({"kind": "double", "options": {"meta": {"a": []}}}, "must be string or number"),
        ({"kind": "double", "inputs": {"number": 2**70}}, "64 bit"),
    ],
)
async def test_body_that_is_not_valid_is_refused(site: Site, body: Any, said: str) -> None:
    answer = await site.http.post("/runs", json=body)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["detail"]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        (b"{", "application/json", 400),
        (b"NaN", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"", "application/json", 400),
        (b'{"kind": "double"}', "text/plain", 415),
        (b'{"kind": "double"}', "", 415),
        (b'{"kind": "double", "inputs": {"x": "\\ud800"}}', "application/json", 400),
    ],
)
async def test_body_that_is_not_json_is_refused(site: Site, content: bytes, media: str, status: int) -> None:
    answer = await site.http.post("/runs", content=content, headers={"content-type": media} if media else {})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


async def test_body_that_is_too_large_is_refused(make_site: Callable[..., Any]) -> None:
    site: Site = await make_site(limits=Limits(body=1000))

    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 100

    answer = await site.http.post("/runs", content=endless(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (413, "TooLarge")


async def test_inputs_that_are_too_large_are_refused(site: Site) -> None:
    answer = await site.http.post("/runs", json={"kind": "echo", "inputs": {"value": "x" * 1_100_000}})
    assert (answer.status_code, answer.json()["error"]) == (413, "TooLarge")


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/runs", {"stauts": "failed"}),
        ("/runs", {"status": "lost"}),
        ("/runs", {"limit": "0"}),
        ("/runs", {"limit": "x"}),
        ("/runs", {"kind": "a b"}),
        ("/runs", [("limit", "1"), ("limit", "2")]),
        (f"/runs/{MISSING}/result", {"wait": "nan"}),
        (f"/runs/{MISSING}/result", {"wait": "-1"}),
        (f"/runs/{MISSING}/result", {"wait": "1e999"}),
    ],
)
async def test_parameter_that_is_not_valid_is_refused(site: Site, path: str, query: Any) -> None:
    answer = await site.http.get(path, params=query)
    assert (answer.status_code, answer.json()["error"]) == (400, "BadOption")


async def test_other_paths_and_methods_are_problems(site: Site) -> None:
    for method, path, status in (
        ("GET", "/", 404), ("GET", "/run", 404), ("DELETE", "/runs", 405), ("PUT", f"/runs/{MISSING}", 405),
        ("HEAD", "/runs", 405), ("GET", "/runs/nonsense", 404), ("GET", f"/runs/{MISSING}", 404), ("GET", "/runs/", 404),
    ):  # fmt: skip
        answer = await site.http.request(method, path)
        assert answer.status_code == status, (method, path)
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await site.http.delete("/runs")).headers["allow"] in ("GET, POST", "POST, GET")


async def test_role_decides_what_a_caller_may_do(make_site: Callable[..., Any]) -> None:
    site: Site = await make_site(access=lambda request: request.headers.get("role", "none"))
    body = {"kind": "double", "inputs": {"number": 1}}
    for role, read, change in (("none", 403, 403), (Role.READ, 200, 403), (Role.ALL, 200, 201)):
        assert (await site.http.get("/runs", headers={"role": role})).status_code == read
        assert (await site.http.post("/runs", json=body, headers={"role": role})).status_code == change
        assert (await site.http.get("/openapi.json", headers={"role": role})).status_code == read


async def test_server_that_can_not_be_reached_is_not_named() -> None:
    async with AsyncClient("redis://user:secret@127.0.0.1:1/0", timeout=1) as client:
        app = api(client)
        async with serving(app, app.state.streams.close) as url, httpx.AsyncClient(base_url=url) as http:
            answer = await http.get("/runs")
    assert (answer.status_code, answer.json()["error"]) == (503, "Unreachable")
    assert answer.headers["retry-after"] == "1"
    assert "127.0.0.1" not in answer.text
    assert "secret" not in answer.text


async def test_list_is_paged_with_a_cursor(site: Site) -> None:
    ids = [await site.enqueue("ask") for _ in range(5)]
    found: list[str] = []
    cursor = None
    while True:
        query = {"limit": 2} if cursor is None else {"limit": 2, "cursor": cursor}
        page = (await site.http.get("/runs", params=query)).json()
        found += [run["id"] for run in page["runs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert set(ids) <= set(found)
    assert (await site.http.get("/runs", params={"cursor": "nonsense"})).json()["error"] == "BadOption"


async def test_messages_are_read_in_pages(site: Site) -> None:
    id = await site.enqueue("note_down", {"count": 25})
    await has_status(site, id, "waiting")
    found: list[Any] = []
    more = True
    while more:
        page = (await site.http.get(f"/runs/{id}/messages", params={"start": len(found), "limit": 10})).json()
        found += page["messages"]
        more = page["more"]
        assert page["next"] == len(found)
    assert [message["number"] for message in found] == list(range(25))
    assert (await site.http.get(f"/runs/{id}/messages", params={"start": 99})).json() == {
        "messages": [], "next": 99, "more": False,
    }  # fmt: skip


async def test_page_of_large_messages_is_bounded(site: Site) -> None:
    id = await site.enqueue("note_down", {"count": 5, "size": 500_000})
    await has_status(site, id, "waiting")
    page = (await site.http.get(f"/runs/{id}/messages")).json()
    assert (len(page["messages"]), page["next"], page["more"]) == (3, 3, True)


async def test_completed_run_has_no_messages(site: Site) -> None:
    id = await site.enqueue("double", {"number": 1})
    await ends(site, id)
    assert (await site.http.get(f"/runs/{id}/messages")).json() == {"messages": [], "next": 0, "more": False}


async def test_deeply_nested_values_are_cut_and_do_not_break_lists(site: Site) -> None:
    body = '{"kind": "nobody", "inputs": {"value": ' + "[" * 800 + "]" * 800 + "}}"
    answer = await site.http.post("/runs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201, answer.text
    listed = await site.http.get("/runs")
    assert [run["id"] for run in listed.json()["runs"]] == [answer.json()["id"]]
    shown = (await site.http.get(f"/runs/{answer.json()['id']}")).json()["inputs"]["value"]
    while isinstance(shown, list):
        (shown,) = shown
    assert shown == "… (1 entries)"
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app(site.client)), base_url="http://localhost"
    ) as page:
        assert (await page.get("/data/runs")).status_code == 200
        assert (await page.get(f"/data/runs/{answer.json()['id']}")).status_code == 200


async def test_number_that_is_too_large_is_refused(site: Site) -> None:
    body = '{"kind": "nobody", "options": {"meta": {"limit": 1e400}}}'
    answer = await site.http.post("/runs", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (400, "BadBody")
    assert "1e400 is too large" in answer.json()["detail"]
