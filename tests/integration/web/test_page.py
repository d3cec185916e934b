"""The requests of the page, on real servers: data, roles, and the checks of changes."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
import redis.asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from coordinator import AsyncClient, Status
from coordinator.config import Settings, address
from coordinator.feed.looks import oldest_queued
from coordinator.feed.watcher import Watcher
from coordinator.model.run_id import partition_for
from coordinator.services.daemon import Coordinator
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from coordinator.web import Role, app
from coordinator.web.gate import Gate, role_of_caller
from coordinator.web.page import changes, live, queries
from coordinator.web.page.app import read_assets
from coordinator.web.page.board_json import board_data
from coordinator.web.page.queries import PageQueries, effect_state
from coordinator.web.page.run_pages import PAGE
from coordinator.web.page.security import COOKIE
from tests.integration.web.conftest import serving
from tests.waiting import eventually
from workers import AsyncRun, Registry
from workers.testing import worker

BASE = "http://127.0.0.1:8700"
SCRIPT = "<img src=x onerror=alert(1)>"


@pytest.fixture
async def client(real_url: str, namespace: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(real_url, namespace) as made:
        yield made


def browser(client: AsyncClient, role: Role | str = Role.ALL, **headers: str) -> httpx.AsyncClient:
    async def access(request: Request) -> Role | str:
        return role

    transport = httpx.ASGITransport(app=app(client, access=access))
    return httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers)


async def log_in(web: httpx.AsyncClient) -> dict[str, str]:
    """Return the headers that a change needs. The cookie is kept by the client."""
    return {"x-csrf-token": (await web.get("/data/session")).json()["csrf"]}


async def change(web: httpx.AsyncClient, body: Any, path: str = "/data/changes", **headers: str) -> httpx.Response:
    return await web.post(path, json=body, headers={**(await log_in(web)), **headers})


# ---- files


def test_files_are_small_and_ask_no_other_host() -> None:
    assets = read_assets()
    assert {"index.html", "app.js", "style.css"} <= assets.keys()
    assert sum(map(len, assets.values())) < 250_000
    for name, data in assets.items():
        text = data.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, name
        assert "https://" not in text, name


def test_no_script_declares_a_name_that_it_imports() -> None:
    for name, data in read_assets().items():
        text = data.decode()
        imported = {
            word.strip()
            for names in re.findall(r"^import \{([^}]*)\}", text, re.MULTILINE)
            for word in names.split(",")
        }
        declared = set(re.findall(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", text, re.MULTILINE))
        assert not imported & declared, name


def test_no_file_parses_data_as_html_or_has_inline_script() -> None:
    for name, data in read_assets().items():
        text = data.decode()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert word not in text, (name, word)
        if name == "index.html":
            assert "<style" not in text
            assert " style=" not in text
            assert " on" not in text.replace(" one", "")
            assert text.count("<script") == text.count('<script type="module" src=')


async def test_every_response_has_the_security_headers(client: AsyncClient) -> None:
    async with browser(client) as web:
        for path in ("/", "/assets/app.js", "/data/session", "/data/runs", "/nothing"):
            headers = (await web.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "app.py", ""])
async def test_only_files_of_the_page_are_served(client: AsyncClient, name: str) -> None:
    async with browser(client) as web:
        assert (await web.get(f"/assets/{name}")).status_code == 404


# ---- data


async def test_list_pages_through_all_runs_once(client: AsyncClient) -> None:
    handles = await client.enqueue_many([("greet", {"n": n}) for n in range(2 * PAGE + 10)])
    found: list[str] = []
    async with browser(client) as web:
        cursor = ""
        for _ in range(4):
            page = (await web.get("/data/runs", params={"status": "queued", "cursor": cursor})).json()
            found += [run["id"] for run in page["runs"]]
            cursor = page["cursor"]
            if not cursor:
                break
    assert sorted(found) == sorted(handle.id for handle in handles)


async def test_list_is_filtered_by_kind_queue_key_meta_and_time(client: AsyncClient) -> None:
    wanted = await client.enqueue("greet", queue="fast", key="k1", meta={"tenant": "acme", "n": 7})
    await client.enqueue("greet", meta={"tenant": "globex"})
    await client.enqueue("other", queue="fast")
    for status in ("queued", "cancelled"):
        async with browser(client) as web:
            for query in (
                {"kind": "greet", "queue": "fast"},
                {"key": "k1"},
                {"meta": "tenant=acme"},
                {"meta": "n=7, tenant=acme"},
            ):
                page = (await web.get("/data/runs", params={"status": status, **query})).json()
                assert [run["id"] for run in page["runs"]] == [wanted.id], query
            for query in ({"kind": "none"}, {"meta": "tenant=x"}, {"since": "9999999999"}, {"until": "1000"}):
                assert (await web.get("/data/runs", params={"status": status, **query})).json()["runs"] == [], query
        for run in await client.list():
            await client.handle(run.id).cancel()


async def test_list_is_filtered_by_group_and_has_the_runs_that_wait_for_a_place(client: AsyncClient) -> None:
    await client.set_limit("report", at_once=1)
    acme = [await client.enqueue("report", group="acme") for _ in range(3)]
    other = [await client.enqueue("report", group="globex") for _ in range(2)]
    plain = await client.enqueue("greet")
    async with browser(client) as web:

        async def listed(**query: str) -> set[str]:
            return {run["id"] for run in (await web.get("/data/runs", params=query)).json()["runs"]}

        assert await listed(status="queued") == {run.id for run in (*acme, *other, plain)}
        assert await listed(status="queued", kind="report") == {run.id for run in (*acme, *other)}
        assert await listed(status="queued", kind="report", queue="default") == {run.id for run in (*acme, *other)}
        assert await listed(status="queued", group="acme") == {run.id for run in acme}
        assert await listed(group="acme", kind="report") == {run.id for run in acme}
        assert await listed(group="nobody") == set()
        await acme[0].cancel()
        assert await listed(status="cancelled", group="acme") == {acme[0].id}
        assert await listed(status="cancelled", group="globex") == set()


async def test_list_of_all_statuses_has_the_newest_runs_and_is_filtered(client: AsyncClient) -> None:
    old = await client.enqueue("greet", meta={"tenant": "acme"}, key="first")
    await old.cancel()
    later = await client.enqueue("greet", delay=3600)
    at = (await later.view()).created.timestamp()
    await eventually(lambda: client._clock.now() > at + 0.002, "the next millisecond")
    many = await client.enqueue_many([("greet", {})] * (PAGE + 10))
    async with browser(client) as web:
        shown = [run["id"] for run in (await web.get("/data/runs")).json()["runs"]]
        assert len(shown) == PAGE
        assert set(shown) <= {run.id for run in many}
        for query, expected in (({"meta": "tenant=acme"}, old), ({"key": "first"}, old)):
            assert [run["id"] for run in (await web.get("/data/runs", params=query)).json()["runs"]] == [expected.id]
        found = {run["id"] for run in (await web.get("/data/runs", params={"until": str(at)})).json()["runs"]}
        assert found == {old.id, later.id}


async def test_pages_over_many_groups_have_each_run_once_in_order(client: AsyncClient) -> None:
    await client.set_limit("report", at_once=0)
    # The oldest runs are all in one line, of which a page reads only a part at a time.
    groups = ["g0"] * 94 + [f"g{n % 12 + 1}" for n in range(36)]
    handles = [await client.enqueue("report", group=group) for group in groups]
    found: list[tuple[str, str]] = []
    cursor = ""
    async with browser(client) as web:
        while len(found) < 130:
            page = (await web.get("/data/runs", params={"status": "queued", "cursor": cursor})).json()
            found += [(run["created"], run["id"]) for run in page["runs"]]
            cursor = page["cursor"]
    assert {id for _, id in found} == {handle.id for handle in handles}
    assert [created for created, _ in found] == sorted(created for created, _ in found)


async def test_numbers_that_json_does_not_have_are_null(client: AsyncClient) -> None:
    numbers = [math.inf, -math.inf, math.nan, 1.5]
    handle = await client.enqueue("nobody", {"numbers": numbers}, meta={"limit": math.inf})
    async with browser(client) as web:
        for path in ("/data/runs", "/data/runs?status=queued"):
            listed = json.loads((await web.get(path)).content, parse_constant=pytest.fail)
            assert [run["meta"] for run in listed["runs"]] == [{"limit": None}]
        run = json.loads((await web.get(f"/data/runs/{handle.id}")).content, parse_constant=pytest.fail)["run"]
        assert (run["meta"], run["inputs"]) == ({"limit": None}, {"numbers": [None, None, None, 1.5]})


async def test_wrong_filters_are_refused(client: AsyncClient) -> None:
    async with browser(client) as web:
        for query in ({"status": "lost"}, {"status": "queued", "meta": "x"}, {"status": "queued", "cursor": "!!"},
                      {"status": "queued", "since": "soon"}, {"kind": "a b"}):  # fmt: skip
            assert (await web.get("/data/runs", params=query)).status_code in (400, 404), query
        assert (await web.get("/data/runs/nothing")).status_code == 404


def registry() -> Registry[None]:
    runs: Registry[None] = Registry()

    @runs.handler
    async def child(run: AsyncRun[None], n: int) -> int:
        return n

    @runs.handler
    async def agent(run: AsyncRun[None]) -> str:
        for number in range(250):
            run.messages.append({"role": "assistant", "content": f"{number} " + "x" * (5000 if number == 7 else 1)})
        run.state["step"] = SCRIPT
        await run.flush()
        await run.gather("parts", [child.inputs(n) for n in range(3)])
        raise ValueError(SCRIPT)

    return runs


def test_run_has_its_story_children_state_and_transcript(real_url: str) -> None:
    with worker(registry(), real_url) as plain:
        run = plain.enqueue("agent")
        run.wait(60)

        async def main() -> None:
            async with AsyncClient(real_url, "testing") as client, browser(client) as web:
                found = (await web.get(f"/data/runs/{run.id}")).json()
                assert found["run"]["status"] == "failed"
                assert found["run"]["error"]["message"] == SCRIPT
                assert found["run"]["error"]["traceback"]
                assert found["run"]["story"][-1]["said"].endswith(SCRIPT)
                assert found["checkpoint"]["state"] == {"step": SCRIPT}
                assert [one["status"] for one in found["children"]] == ["completed"] * 3
                first = (await web.get(f"/data/runs/{run.id}/messages")).json()
                assert (first["total"], len(first["messages"])) == (250, 100)
                assert "more characters" in first["messages"][7]["message"]["content"]
                assert [one["number"] for one in first["messages"] if one["cut"]] == [7]
                whole = (await web.get(f"/data/runs/{run.id}/messages", params={"start": "7", "full": "1"})).json()
                assert [(one["number"], one["cut"]) for one in whole["messages"]] == [(7, False)]
                assert whole["messages"][0]["message"]["content"] == "7 " + "x" * 5000
                rest = (await web.get(f"/data/runs/{run.id}/messages", params={"start": "150"})).json()
                assert [one["number"] for one in rest["messages"]] == list(range(150, 250))

        asyncio.run(main())


async def test_schedules_fleets_and_doctor_are_told(client: AsyncClient) -> None:
    await client.schedule("nightly", "0 3 * * *", "greet")
    async with browser(client) as web:
        (row,) = (await web.get("/data/schedules")).json()["schedules"]
        assert (row["name"], row["late"], row["last_run"]) == ("nightly", False, None)
        assert (await web.get("/data/fleets")).json() == {"fleets": []}
        report = (await web.get("/data/doctor")).json()
        assert report["healthy"]
        assert (await web.get("/data/doctor")).json()["age"] >= report["age"]


async def test_fifty_viewers_cost_what_one_costs(client: AsyncClient) -> None:
    """All streams share one watcher, and each board is encoded once."""
    from coordinator.web.page.live import LiveBoard

    live = LiveBoard(client)
    streams = [live.events() for _ in range(50)]
    try:
        for stream in streams:
            assert (await anext(stream)).startswith(b"retry:")
        boards = await asyncio.gather(*(anext(stream) for stream in streams))
        assert {board.partition(b"\n")[0] for board in boards} == {b"event: board"}
        assert json.loads(boards[0].partition(b"data: ")[2])["namespace"]
        assert live.watcher.viewers == 50
        assert live.encodings <= 3
        live.close()
        await asyncio.gather(*(_drain(stream) for stream in streams))
    finally:
        await live.watcher.close()


async def test_caller_has_a_limited_number_of_boards(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_VIEWERS", 1)
    served = app(client)
    async with serving(served, served.state.close_streams) as url, httpx.AsyncClient(base_url=url) as http:
        async with http.stream("GET", "/data/live") as first:
            assert first.status_code == 200
            await anext(first.aiter_raw())
            refused = await http.get("/data/live")
            assert (refused.status_code, refused.json()["error"]) == (429, "TooManyStreams")

        async def is_free() -> bool:
            async with http.stream("GET", "/data/live") as again:
                return again.status_code == 200

        await eventually(is_free, "the place of the closed stream to be free")


async def test_viewers_that_leave_are_forgotten_without_an_error(
    client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    served = app(client)
    page = next(route.app for route in served.routes if isinstance(route, Mount) and route.path == "")
    watcher = page.state.close_streams.__self__.live.watcher  # type: ignore[attr-defined]
    async with serving(served, served.state.close_streams) as url:
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(b"GET /data/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"event: board")
            assert watcher.viewers == 1
            writer.close()
            await eventually(lambda: watcher.viewers == 0, "the viewer to leave")
    assert [record.message for record in caplog.records if record.exc_info] == []
    await watcher.close()


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


# ---- roles and changes


@pytest.mark.parametrize("path", ["/", "/assets/app.js", "/data/session", "/data/runs", "/data/live", "/data/doctor"])
async def test_caller_without_access_gets_nothing(client: AsyncClient, path: str) -> None:
    async with browser(client, Role.NONE) as web:
        assert (await web.get(path)).status_code == 403


async def test_reader_may_not_change(client: AsyncClient) -> None:
    run = await client.enqueue("greet")
    async with browser(client, Role.READ) as web:
        answer = await change(web, {"action": "cancel", "ids": [run.id]})
        assert (answer.status_code, answer.json()["error"]) == (403, "Forbidden")
        assert (await change(web, {"run": run.id, "topic": "t"}, "/data/signals")).status_code == 403
    assert (await run.view()).status is Status.QUEUED


async def test_server_without_allow_changes_refuses_every_change(client: AsyncClient) -> None:
    run = await client.enqueue("greet")
    for allowed, expected in ((False, 403), (True, 200)):
        gate = Gate(app(client, access=role_of_caller), hosts=[], allow_changes=allowed)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=gate), base_url=BASE) as web:
            assert (await change(web, {"action": "cancel", "ids": [run.id]})).status_code == expected


async def test_change_without_the_token_of_the_browser_is_refused(client: AsyncClient) -> None:
    run = await client.enqueue("greet")
    body = {"action": "cancel", "ids": [run.id]}
    async with browser(client) as web:
        assert (await web.post("/data/changes", json=body)).status_code == 403
        assert (await web.post("/data/changes", json=body, headers={"x-csrf-token": ""})).status_code == 403
        headers = await log_in(web)
        wrong = {"x-csrf-token": "x" * len(headers["x-csrf-token"])}
        assert (await web.post("/data/changes", json=body, headers=wrong)).json()["error"] == "BadCsrfToken"
        other = {**headers, "origin": "http://evil.example"}
        assert (await web.post("/data/changes", json=body, headers=other)).json()["error"] == "WrongOrigin"
        form = {**headers, "content-type": "text/plain"}
        assert (await web.post("/data/changes", content=json.dumps(body), headers=form)).status_code == 415
        assert (await run.view()).status is Status.QUEUED
        assert (await web.post("/data/changes", json=body, headers={**headers, "origin": BASE})).status_code == 200
    assert (await run.view()).status is Status.CANCELLED


async def test_cookie_of_the_token_is_hidden_from_scripts_and_other_sites(client: AsyncClient) -> None:
    async with browser(client) as web:
        cookie = (await web.get("/data/session")).headers["set-cookie"].lower()
    assert cookie.startswith(COOKIE)
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


async def test_changes_by_get_do_not_exist(client: AsyncClient) -> None:
    async with browser(client) as web:
        assert (await web.get("/data/changes")).status_code == 405
        assert (await web.get("/data/signals")).status_code == 405


async def test_runs_are_cancelled_revived_and_discarded(client: AsyncClient) -> None:
    run = await client.enqueue("greet")
    async with browser(client) as web:
        for action, status in (("cancel", Status.CANCELLED), ("revive", Status.QUEUED), ("cancel", Status.CANCELLED)):
            answer = (await change(web, {"action": action, "ids": [run.id]})).json()
            assert (answer["changed"], answer["failed"]) == (1, 0)
            assert (await run.view()).status is status
        assert (await change(web, {"action": "discard", "ids": [run.id]})).json()["changed"] == 1
        open_run = await client.enqueue("greet")
        again = (await change(web, {"action": "discard", "ids": [open_run.id]})).json()
        assert (again["changed"], again["errors"][0]["error"]) == (0, "Changed")


async def test_many_runs_are_counted_before_they_are_changed(client: AsyncClient) -> None:
    await client.enqueue_many([("greet", {})] * 30)
    keep = await client.enqueue("other")
    wanted = {"status": "queued", "kind": "greet"}
    async with browser(client) as web:
        without = await change(web, {"action": "cancel", "filter": wanted})
        assert (without.status_code, without.json()["error"]) == (400, "BadOption")
        dry = (await change(web, {"action": "cancel", "filter": wanted, "dry_run": True})).json()
        assert (dry["matched"], len(dry["sample"])) == (30, 20)
        await client.enqueue("greet")
        assert (await change(web, {"action": "cancel", "filter": wanted, "expected": 30})).status_code == 400
        done = (await change(web, {"action": "cancel", "filter": wanted, "expected": 31})).json()
        assert done["changed"] == 31
    assert (await keep.view()).status is Status.QUEUED


async def test_many_runs_are_revived_and_discarded_by_filter(client: AsyncClient) -> None:
    runs = await client.enqueue_many([("greet", {})] * 30)
    keep = await client.enqueue("other")
    for run in (*runs, keep):
        await run.cancel()
    async with browser(client) as web:

        async def change_matching(action: str, status: Status) -> int:
            wanted = {"status": str(status), "kind": "greet"}
            dry = (await change(web, {"action": action, "filter": wanted, "dry_run": True})).json()
            done = (await change(web, {"action": action, "filter": wanted, "expected": dry["matched"]})).json()
            assert (done["changed"], done["failed"]) == (dry["matched"], 0)
            return int(dry["matched"])

        assert await change_matching("revive", Status.CANCELLED) == 30
        assert {(await run.view()).status for run in runs} == {Status.QUEUED}
        assert await change_matching("cancel", Status.QUEUED) == 30
        assert await change_matching("discard", Status.CANCELLED) == 30
        assert await change_matching("discard", Status.CANCELLED) == 0
    assert [view.id for view in await client.list()] == [keep.id]
    assert (await keep.view()).status is Status.CANCELLED


async def test_page_below_a_path_of_a_host_application_reads_and_changes(client: AsyncClient) -> None:
    """Each address that the page uses is relative to its own, and its cookie is sent only to the path of the page."""
    host = Starlette(
        routes=[Mount("/runs", app(client)), Route("/", lambda request: Response(request.headers.get("cookie", "")))]
    )
    run = await client.enqueue("greet")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=host), base_url=BASE) as web:
        redirected = await web.get("/runs")
        assert redirected.status_code == 307
        assert redirected.headers["location"].removeprefix(BASE) == "/runs/"
        index = await web.get("/runs/")
        files = re.findall(r'(?:href|src)="([^"#]+)"', index.text)
        assert len(files) >= 3
        for file in files:
            assert (await web.get(urljoin(f"{BASE}/runs/", file))).status_code == 200, file
        session = await web.get("/runs/data/session")
        assert re.search(r"path=/runs(;|$)", session.headers["set-cookie"].lower())
        headers = {"x-csrf-token": session.json()["csrf"]}
        assert (await web.get("/")).text == "", "the host application does not get the cookie"
        body = {"action": "cancel", "ids": [run.id]}
        assert (await web.post("/runs/data/changes", json=body)).status_code == 403
        assert (await web.post("/runs/data/changes", json=body, headers=headers)).json()["changed"] == 1
        assert (await web.get(f"/runs/api/runs/{run.id}")).json()["status"] == "cancelled"


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(
    ("wanted", "matching"),
    [
        ({"meta": "tenant=acme"}, {0, 2}),
        ({"meta": "tenant=acme, tier=2"}, {2}),
        ({"key": "first"}, {0}),
        ({"group": "north"}, {0, 1}),
        ({"group": "north", "meta": "tenant=acme", "kind": "greet"}, {0}),
        ({"meta": "tenant=nobody"}, set()),
    ],
)
async def test_change_of_matching_runs_is_filtered_like_the_list(
    real_url: str, namespace: str, partitions: int, wanted: dict[str, str], matching: set[int]
) -> None:
    wire = AsyncWire(address(real_url), 10)
    await drive_async(
        wire, namespace_plans.create(namespace, birth=uuid.uuid4().hex, partitions=partitions, durability="local")
    )
    await wire.close()
    async with AsyncClient(real_url, namespace) as client, browser(client) as web:
        await client.set_limit("greet", at_once=1)  # the second run of a group waits for its place
        runs = [
            await client.enqueue("greet", key="first", group="north", meta={"tenant": "acme"}),
            await client.enqueue("greet", key="second", group="north", meta={"tenant": "globex"}),
            await client.enqueue("greet", group="south", meta={"tenant": "acme", "tier": 2}),
            await client.enqueue("greet", group="east"),
        ]
        filter = {"status": "queued", **wanted}
        listed = (await web.get("/data/runs", params=filter)).json()["runs"]
        assert {one["id"] for one in listed} == {runs[number].id for number in matching}
        dry = (await change(web, {"action": "cancel", "filter": filter, "dry_run": True})).json()
        assert (dry["matched"], set(dry["sample"])) == (len(matching), {runs[number].id for number in matching})
        await change(web, {"action": "cancel", "filter": filter, "expected": dry["matched"]})
        cancelled = {number for number, run in enumerate(runs) if (await run.view()).status is Status.CANCELLED}
        assert cancelled == matching


async def test_filter_that_would_examine_too_many_runs_is_refused(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.enqueue_many([("greet", {})] * 3)
    monkeypatch.setattr(changes, "MOST_EXAMINED", 2)
    async with browser(client) as web:
        wanted = {"status": "queued", "meta": "tenant=acme"}
        refused = await change(web, {"action": "cancel", "filter": wanted, "dry_run": True})
        assert refused.status_code == 400
        assert "3 runs would have to be examined" in refused.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        [], {}, {"action": "drop", "ids": []}, {"action": "cancel"}, {"action": "cancel", "ids": ["x"]},
        {"action": "cancel", "ids": "x"}, {"action": "cancel", "filter": {"kind": "a"}, "dry_run": True},
        {"action": "cancel", "filter": {"status": "completed"}, "dry_run": True},
        {"action": "cancel", "filter": {"status": "queued", "meta": "a"}, "dry_run": True},
        {"action": "cancel", "filter": {"status": "queued", "meta": {"a": "b"}}, "dry_run": True},
        {"action": "cancel", "filter": {"status": "queued", "group": 7}, "dry_run": True},
        {"action": "cancel", "filter": {"status": "queued", "owner": "w1"}, "dry_run": True},
        {"action": "cancel", "filter": {"status": "queued", "kind": "a b"}, "dry_run": True},
    ],
)  # fmt: skip
async def test_change_that_is_not_valid_is_refused(client: AsyncClient, body: Any) -> None:
    async with browser(client) as web:
        assert (await change(web, body)).status_code == 400


@pytest.mark.parametrize("body", [
    "[" * 100_000,
    '{"action": "cancel", "filter": {"status": "queued"}, "expected": true}',
    *('{"action": "cancel", "filter": {"status": "queued", "since": ' + since + '}, "dry_run": true}'
      for since in ("1e400", "NaN", "1e15", "9" * 400, "-5", "true")),
])  # fmt: skip
async def test_extreme_change_is_refused(client: AsyncClient, body: str) -> None:
    run = await client.enqueue("greet")
    async with browser(client) as web:
        headers = {**(await log_in(web)), "content-type": "application/json"}
        assert (await web.post("/data/changes", content=body, headers=headers)).status_code == 400
    assert (await run.view()).status is Status.QUEUED


@pytest.mark.parametrize("start", ["²", "9" * 5000, "-1", "1.0", ""])
async def test_start_of_messages_that_is_not_a_number_is_refused(client: AsyncClient, start: str) -> None:
    run = await client.enqueue("greet")
    async with browser(client) as web:
        assert (await web.get(f"/data/runs/{run.id}/messages", params={"start": start})).status_code == 400


@pytest.mark.parametrize("text", ['{"a": 1e400}', '{"a": ' + "[" * 5000, "[" * 5000, "[]", '{"a": "x"}'])
async def test_cursor_that_is_not_valid_is_refused(client: AsyncClient, text: str) -> None:
    cursor = base64.urlsafe_b64encode(text.encode()).decode()
    async with browser(client) as web:
        assert (await web.get("/data/runs", params={"status": "queued", "cursor": cursor})).status_code == 400


async def test_signal_reaches_the_run(client: AsyncClient) -> None:
    run = await client.enqueue("greet")
    async with browser(client) as web:
        body = {"run": run.id, "topic": "approval", "payload": {"ok": True}}
        assert (await change(web, body, "/data/signals")).json() == {"sent": True}
        assert (await change(web, {"run": run.id}, "/data/signals")).status_code == 400
    assert (await run.view()).signals == {"approval": 1}


async def test_watcher_goes_on_after_the_last_viewer_for_a_while(client: AsyncClient) -> None:
    from coordinator.feed.watcher import Watcher

    watcher = Watcher(client, linger=0.05)
    viewer = watcher.boards()
    board = await anext(viewer)
    await viewer.aclose()
    again = watcher.boards()
    assert await anext(again) is board
    await again.aclose()
    await eventually(lambda: watcher._task is None, "the end of the watcher")


# ---- a run's output, effects, budget and tree


def emitter() -> Registry[None]:
    runs: Registry[None] = Registry()

    @runs.handler
    async def tell(run: AsyncRun[None]) -> None:
        run.emit({"delta": SCRIPT})
        run.emit("x" * 5000)
        run.note("half", 1, 2)

    return runs


def frames(text: str) -> list[tuple[str, str, Any]]:
    """Return the name, the id and the data of each event of a stream."""
    found = re.findall(r"event: (\w+)\nid: (\S*)\ndata: (.*)\n\n", text)
    return [(name, id, json.loads(data)) for name, id, data in found]


def test_output_is_streamed_with_large_values_cut_and_continues_after_an_id(real_url: str) -> None:
    with worker(emitter(), real_url) as plain:
        run = plain.enqueue("tell")
        run.wait(60)

        async def main() -> None:
            async with AsyncClient(real_url, "testing") as client, browser(client) as web:
                assert (await web.get(f"/data/runs/{run.id}")).json()["checkpoint"]["output"]
                path = f"/data/runs/{run.id}/output"
                first, second, note, end = frames((await web.get(path)).text)
                assert (first[0], first[2]["value"]) == ("item", {"delta": SCRIPT})
                assert "(3,000 more characters)" in second[2]["value"]
                assert (note[2]["note"], note[2]["value"]["done"]) == (True, 1)
                assert (end[0], end[1]) == ("end", note[1])
                for where in ({"params": {"after": second[1]}}, {"headers": {"last-event-id": second[1]}}):
                    rest = frames((await web.get(path, **where)).text)  # type: ignore[arg-type]
                    assert [one[0] for one in rest] == ["item", "end"]
                    assert rest[0][2]["number"] == 3
                assert (await web.get(path, params={"after": "x"})).status_code == 400
                assert (await web.get("/data/runs/nothing/output")).status_code == 404

        asyncio.run(main())


async def test_stopping_server_ends_the_streams_of_outputs(client: AsyncClient) -> None:
    run = await client.enqueue("greet")
    served = app(client)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=served), base_url=BASE) as web:
        reading = asyncio.create_task(web.get(f"/data/runs/{run.id}/output"))
        streams = served.routes[1].app.state.output.streams  # type: ignore[attr-defined]
        await eventually(lambda: len(streams) == 1, "the open stream")
        served.state.close_streams()
        assert (await asyncio.wait_for(reading, 30)).status_code == 200


async def test_tree_is_counted_and_cancelled(client: AsyncClient) -> None:
    top = await client.enqueue("greet")
    below = [await client.enqueue("greet", parent=top.id) for _ in range(3)]
    deep = await client.enqueue("greet", parent=below[0].id)
    async with browser(client) as web:
        dry = (await change(web, {"action": "cancel_tree", "ids": [top.id], "dry_run": True})).json()
        assert (dry["matched"], dry["sample"][0]) == (5, top.id)
        assert (await deep.view()).status is Status.QUEUED
        done = (await change(web, {"action": "cancel_tree", "ids": [top.id]})).json()
        assert (done["changed"], done["ended"]) == (5, 0)
    assert {(await one.view()).status for one in (top, deep, *below)} == {Status.CANCELLED}


async def test_reader_may_not_grant(client: AsyncClient) -> None:
    run = await client.enqueue("greet")
    body = {"run": run.id, "usd": 1}
    async with browser(client, Role.READ) as web:
        assert (await change(web, body, "/data/grants")).status_code == 403
    async with browser(client) as web:
        assert (await change(web, {"run": run.id}, "/data/grants")).status_code == 400
        assert (await change(web, {"run": run.id, "usd": "x"}, "/data/grants")).status_code == 400
        assert (await change(web, body, "/data/grants")).status_code == 200
    assert (await run.view()).signals == {"coordinator.grant": 1}


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [("done", "failed", "done"), ("begun", "running", "begun"), ("begun", "failed", "unknown"), ("begun", "queued", "unknown")],
)  # fmt: skip
def test_effect_that_is_begun_is_unknown_when_its_run_does_not_run(state: str, status: str, said: str) -> None:
    assert effect_state(state, Status(status)) == said


# ---- what needs attention, and the fire times of schedules


async def test_late_schedules_late_runs_and_lines_of_groups_are_read(client: AsyncClient, real_url: str) -> None:
    await client.schedule("nightly", "0 3 * * *", "greet")
    delayed = await client.enqueue("greet", delay=3600)
    await client.set_limit("report", at_once=1)
    first, *_ = [await client.enqueue("report", group=SCRIPT) for _ in range(4)]
    space: Any = await client._do(lambda namespace: namespace.space())
    (keys,) = space.everywhere()
    now = client._clock.now()
    admin: Any = redis.asyncio.from_url(real_url)
    async with admin:
        await admin.zadd(keys.schedules(), {"nightly": 1000})
        await admin.zadd(keys.delayed(), {delayed.id: round((now - 60) * 1000)})
        (held, score), *_ = await admin.zrange(keys.line(f"report:{SCRIPT}"), 0, 0, withscores=True)
        await admin.zadd(keys.line(f"report:{SCRIPT}"), {held: score - 90_000})
    watcher = Watcher(client)
    await watcher._refresh()
    late = watcher.board.late
    assert held.decode() != first.id
    assert (late.schedules, 60 <= late.delayed < 120, late.waiting) == (1, True, 0.0)
    (group,) = board_data(watcher.board)["groups"]
    assert (group["group"], group["held"], group["taken"], group["at_once"]) == (SCRIPT, 3, 1, 1)
    assert 90 <= group["waited"] < 150
    told = " ".join(watcher.board.attention())
    for words in ("1 schedule is late", "delayed run was due", f"group {SCRIPT} of report is full (1 of 1): 3 runs"):
        assert words in told


async def test_calls_to_the_outside_are_on_the_board(client: AsyncClient, real_url: str) -> None:
    await client.set_rate("search", "10/s", burst=2, at_once=3)
    await client.set_rate("idle", at_once=1)
    space: Any = await client._do(lambda namespace: namespace.space())
    keys = space.keys(partition_for("search", space.partitions))
    admin: Any = redis.asyncio.from_url(real_url)
    async with admin:
        await admin.zadd(keys.turns("search"), {"w-1": 0, "w-2": 1})
    watcher = Watcher(client)
    await watcher._refresh()
    busy, idle = board_data(watcher.board)["limits"]
    assert (busy["name"], busy["limit"]) == ("search", "10/s, burst 2, 3 calls at once")
    assert (busy["held"], busy["waiting"]) == (0, 2)
    assert (idle["name"], idle["limit"], idle["waiting"], idle["wait"]) == ("idle", "1 call at once", 0, 0)


async def test_doctor_is_asked_cheaply_by_the_overview(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.enqueue("greet")
    page_queries = PageQueries(client)
    with monkeypatch.context() as patch:
        patch.setattr(queries, "SMALL_NAMESPACE", 0)
        assert await page_queries.cheap_doctor() == {"examined": False}
    examinations = 0
    examine = queries._examine

    def counted(namespace: Any) -> Any:
        nonlocal examinations
        examinations += 1
        return (yield from examine(namespace))

    monkeypatch.setattr(queries, "_examine", counted)
    reports = await asyncio.gather(*(page_queries.cheap_doctor() for _ in range(20)))
    assert any(report["examined"] for report in reports)
    assert (await page_queries.cheap_doctor())["healthy"]
    assert examinations == 1


async def test_first_viewers_share_the_examination_that_is_in_progress(client: AsyncClient) -> None:
    await client.enqueue("greet")
    page_queries = PageQueries(client)
    lock = page_queries._examining
    async with lock:  # as while the examination for another viewer is in progress
        late = asyncio.create_task(page_queries.cheap_doctor())
        await eventually(lambda: late.done() or lock._waiters, "the second viewer to ask")
    assert (await late)["examined"]


async def test_fire_times_of_a_schedule_have_their_runs(client: AsyncClient, real_url: str, namespace: str) -> None:
    await client.schedule("often", 1, "greet", overlap="allow")
    settings = Settings(real_url, namespace)
    serving = asyncio.create_task(Coordinator(settings).run())
    try:
        await eventually(lambda: _fired(client, 2), "two fires", 60)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    (view,) = await client.schedules()
    async with browser(client) as web:
        found = (await web.get("/data/schedules/often")).json()
        assert len(found["next"]) == 5
        assert found["next"] == sorted(found["next"])
        assert len(found["last"]) == 12
        ran = {one["run"]["id"]: one["run"]["status"] for one in found["last"] if one["run"]}
        assert ran[view.last] == "queued"
        assert len(ran) >= 2
        assert (await web.get("/data/schedules/nothing")).status_code == 404


async def _fired(client: AsyncClient, least: int) -> bool:
    return (await client.schedules())[0].fired >= least


async def test_age_of_a_queue_is_that_of_its_oldest_run_of_any_priority(client: AsyncClient, real_url: str) -> None:
    space = await client._do(lambda namespace: namespace.space())
    keys, step = space.keys(0), 2**43
    async with redis.asyncio.Redis.from_url(real_url) as admin:
        now = (await admin.time())[0] * 1000
        for route in ("default:greet@0", "default:lost@0", "default:empty@0"):
            await admin.sadd(keys.routes(), route)
        scores = {"a": now - 9 * step, "b": now - 10_000, "c": now - 500_000 + 7 * step, "d": now + 7 * step}
        await admin.zadd(keys.ready("default:greet@0"), scores)
        await admin.zadd(keys.suspect("default:lost@0"), {"e": now - 70_000})
    found = await client._do(oldest_queued)
    assert found == {
        "default:greet@0": pytest.approx(now / 1000 - 500),
        "default:lost@0": pytest.approx(now / 1000 - 70),
    }
