"""The findings of CVE-2022-30034 about another dashboard (Flower), one by one; and the page with a read-only user of the server.

The findings: everybody may use it unless a login is configured, its API needs no login, a login that only resembles an allowed one
is accepted, other sites can send changes, other origins can read, and its API starts any task and stops workers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route

from coordinator import AsyncClient, BadOption, Status
from coordinator.store.rights import acl
from coordinator.web import Role, app
from coordinator.web.auth import TokenFile
from coordinator.web.gate import Gate, role_of_caller
from coordinator.web.page.app import page
from coordinator.web.page.changes import CHANGES, TREE
from coordinator.web.server import WebSettings
from tests.conftest import StartServer

BASE = "http://127.0.0.1:8700"
TOKEN = "alice-token-0123456789"
OTHER = {"origin": "http://evil.example"}


@pytest.fixture
async def client(real_url: str, namespace: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(real_url, namespace) as made:
        yield made


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    path = tmp_path / "tokens"
    path.write_text(f"alice all {TOKEN}")
    return TokenFile(path)


def serve(client: AsyncClient, tokens: TokenFile | None = None) -> httpx.AsyncClient:
    """Return an HTTP client for the application as `coordinator web --allow-changes` serves it."""
    gate = Gate(app(client, access=role_of_caller), hosts=[], tokens=tokens, allow_changes=True)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=gate), base_url=BASE)


def routes(routes_: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield method and path of every route, with a name in the place of each parameter."""
    for route in routes_:
        if isinstance(route, Mount):
            yield from routes(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            path = prefix + route.path_format.format_map(dict.fromkeys(route.param_convertors, "PARAMETER"))
            yield from ((method, path) for method in sorted(route.methods or ()) if method != "HEAD")


def all_routes(client: AsyncClient) -> list[tuple[str, str]]:
    served: Starlette = app(client)
    found = list(routes(served.routes))
    assert {("GET", "/"), ("POST", "/data/changes"), ("GET", "/data/live"), ("POST", "/api/runs")} <= set(found)
    return found


def change_routes(client: AsyncClient) -> list[tuple[str, str]]:
    return [(method, path) for method, path in all_routes(client) if method != "GET"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "runs.example", "127.0.0.1.evil.example", ""])
def test_server_without_tokens_listens_only_to_its_own_machine(host: str) -> None:
    assert WebSettings().host == "127.0.0.1"
    assert not WebSettings().allow_changes
    with pytest.raises(BadOption, match="--auth"):
        WebSettings(host=host)


async def test_no_path_of_the_page_or_of_the_api_answers_without_a_token(
    client: AsyncClient, tokens: TokenFile
) -> None:
    async with serve(client, tokens) as web:
        for method, path in [*all_routes(client), ("GET", "/nothing"), ("GET", "/api/nothing")]:
            answer = await web.request(method, path)
            assert (answer.status_code, answer.json()["error"]) == (401, "Unauthorized"), (method, path)
        assert (await web.get("/data/runs", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 200


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice.evil.example", TOKEN), ("evil-alice", TOKEN), ("Alice", TOKEN), (".*", TOKEN), ("alice\n", TOKEN), ("", TOKEN),
        ("alice", TOKEN + "x"), ("alice", TOKEN[:-1]), ("alice", "x" + TOKEN), ("alice", ".*"), ("alice", TOKEN + "\n"),
        ("alice", ""),
    ],
)  # fmt: skip
async def test_login_that_only_resembles_an_allowed_one_is_refused(
    client: AsyncClient, tokens: TokenFile, name: str, password: str
) -> None:
    async with serve(client, tokens) as web:
        assert (await web.get("/data/runs", auth=("alice", TOKEN))).status_code == 200
        assert (await web.get("/data/runs", auth=(name, password))).status_code == 401


async def test_other_site_can_change_nothing(client: AsyncClient) -> None:
    run = await client.enqueue("greet")
    async with serve(client) as web:
        token = (await web.get("/data/session")).json()["csrf"]
        for method, path in change_routes(client):
            target = path.replace("PARAMETER", run.id)
            # Worst case: the browser attached its cookie, and the other site has learned the token.
            answer = await web.request(method, target, json={"ids": [run.id]}, headers={"x-csrf-token": token} | OTHER)
            assert (answer.status_code, answer.json()["error"]) == (403, "WrongOrigin"), target
        # A form of an old browser, which names no origin: it can't send JSON.
        form: dict[str, Any] = {"content": b'{"action": "cancel"}', "headers": {"content-type": "text/plain"}}
        for method, path in change_routes(client):
            answer = await web.request(method, path.replace("PARAMETER", run.id), **form)
            assert answer.status_code >= 400, path
    assert (await run.view()).status is Status.QUEUED
    assert len(await client.list()) == 1


async def test_other_site_can_change_nothing_in_a_mounted_application(client: AsyncClient) -> None:
    """The host application may know its users by a cookie, which the browser also sends with the form of another site."""
    run = await client.enqueue("greet")
    transport = httpx.ASGITransport(app=app(client, access=lambda request: Role.ALL))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as web:
        for method, path in change_routes(client):
            for headers in (OTHER, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"}):
                answer = await web.request(method, path.replace("PARAMETER", run.id), content=b"{}", headers=headers)
                assert (answer.status_code, answer.json()["error"]) == (403, "WrongOrigin"), path
        assert (await run.view()).status is Status.QUEUED
        own = await web.post(f"/api/runs/{run.id}/cancel", json={}, headers={"origin": BASE})
        assert own.status_code == 200
    assert (await run.view()).status is Status.CANCELLED


async def test_no_path_allows_another_origin_to_read(client: AsyncClient) -> None:
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "x-csrf-token"}
    async with serve(client) as web:
        for method, path in all_routes(client):
            if path != "/data/live":
                answers = [
                    await web.request(method, path),
                    await web.request(method, path, headers=OTHER),
                    await web.options(path, headers=OTHER | preflight),
                    await web.options(path, headers={"origin": BASE} | preflight),
                ]
                names = {name for answer in answers for name in answer.headers if name.startswith("access-control-")}
                assert names == set(), path
                assert all(answer.status_code >= 400 for answer in answers[1:]), path


async def test_page_enqueues_no_run_and_stops_no_worker(client: AsyncClient) -> None:
    served = page(client, access=lambda request: Role.ALL)
    changes = {path for method, path in routes(served.routes) if method != "GET"}
    assert changes == {"/data/changes", "/data/signals", "/data/grants"}
    assert {action.partition("_")[0] for action in (*CHANGES, TREE)} == {"cancel", "revive", "discard"}


async def test_read_only_user_of_the_server_is_enough_for_a_page_without_changes(
    start_server: StartServer, namespace: str
) -> None:
    server = start_server()
    async with AsyncClient(server.url, namespace) as producer:
        run = await producer.enqueue("greet", group="g")
        await producer.schedule("nightly", "0 3 * * *", "greet")
        name, *rules = acl("read-only", namespace)
        server.admin.execute_command("ACL", "SETUSER", name, *rules)
        url = server.url.replace("redis://", f"redis://{name}:PASSWORD@")
        async with AsyncClient(url, namespace) as reader, serve(reader) as web:
            for path in ("session", "runs", "runs?status=queued", f"runs/{run.id}", f"runs/{run.id}/messages", "schedules",
                         "schedules/nightly", "fleets"):  # fmt: skip
                answer = await web.get(f"/data/{path}")
                assert answer.status_code == 200, (path, answer.text)
            token = {"x-csrf-token": (await web.get("/data/session")).json()["csrf"]}
            change = {"action": "cancel", "ids": [run.id]}
            refused = await web.post("/data/changes", json=change, headers=token)
            assert refused.status_code >= 400 or refused.json()["changed"] == 0
            doctor = await web.get("/data/doctor")
            assert (doctor.status_code, doctor.json()["error"]) == (503, "NotConfigured")
            assert doctor.json()["detail"].endswith("not set up for the call. The log of the web server says more.")
        assert (await run.view()).status is Status.QUEUED
