"""A caller with an owner sees and changes only the runs of this owner, on every route of the table."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from coordinator import BadOption, Refused
from coordinator.client.reading import pages
from coordinator.client.reading.pages import Cursor
from coordinator.model.run import Status
from coordinator.model.run_id import RunIds
from coordinator.web import Limits, api
from coordinator.web.rest.endpoint import Endpoint
from coordinator.web.rest.routes import ROUTES
from tests.integration.web.conftest import Site
from tests.waiting import eventually

ALICE, BOB = {"user": "alice"}, {"user": "bob"}
OF_A_RUN = [endpoint for endpoint in ROUTES if "{id}" in endpoint.path]


def owner_of(request: Any) -> str | None:
    found: str | None = request.headers.get("user")
    return found


@pytest.fixture
async def site(make_site: Callable[..., Any]) -> Site:
    found: Site = await make_site(owner=owner_of, kinds=["double", "ask", "fail"])
    return found


def request_of(endpoint: Endpoint, id: str) -> dict[str, Any]:
    """Return the arguments of a valid request to a route of a run."""
    path = endpoint.path.replace("{id}", id).replace("{topic}", "answer")
    return {"method": endpoint.method, "url": path}


def test_every_route_names_a_run_or_is_tested_below() -> None:
    others = {(endpoint.method, endpoint.path) for endpoint in ROUTES if "{id}" not in endpoint.path}
    assert others == {("POST", "/runs"), ("GET", "/runs")}
    assert len(OF_A_RUN) >= 5


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("endpoint", OF_A_RUN, ids=lambda endpoint: endpoint.name)
async def test_run_of_another_owner_looks_like_a_run_that_does_not_exist(site: Site, endpoint: Endpoint) -> None:
    id = await site.enqueue("ask", headers=ALICE)
    unowned = (await site.client.enqueue("ask", {})).id
    before = await site.client.handle(id).view()
    missing = RunIds().make(1_800_000_000.0, 0)
    expected = await site.http.request(**request_of(endpoint, missing), headers=BOB)
    assert expected.status_code == 404
    for hidden in (id, unowned):
        answer = await site.http.request(**request_of(endpoint, hidden), headers=BOB)
        assert answer.status_code == 404
        assert answer.text == expected.text.replace(missing, hidden)
        assert answer.headers.keys() == expected.headers.keys()
    assert await site.client.handle(id).view() == before


@pytest.mark.parametrize("endpoint", ROUTES, ids=lambda endpoint: endpoint.name)
async def test_caller_without_an_owner_is_refused(site: Site, endpoint: Endpoint) -> None:
    id = await site.enqueue("ask", headers=ALICE)
    for headers in ({}, {"user": ""}):
        answer = await site.http.request(**request_of(endpoint, id), headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (401, "Unauthorized")


async def test_owner_sees_own_runs(site: Site) -> None:
    mine, other = await site.enqueue("ask", headers=ALICE), await site.enqueue("ask", headers=BOB)
    assert (await site.http.get(f"/runs/{mine}", headers=ALICE)).json()["meta"] == {"owner": "alice"}
    assert [run["id"] for run in (await site.http.get("/runs", headers=ALICE)).json()["runs"]] == [mine]
    assert [run["id"] for run in (await site.http.get("/runs", headers=BOB)).json()["runs"]] == [other]


async def test_cursor_does_not_show_the_run_of_another_owner(
    site: Site, make_site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST_EXAMINED", 1)
    monkeypatch.setattr(pages, "STEP", 1)
    others = [await site.enqueue("ask", headers=BOB) for _ in range(3)]
    mine = await site.enqueue("ask", headers=ALICE)
    neighbour: Site = await make_site(owner=owner_of)  # another process of the same application
    found: list[str] = []
    cursors: list[str] = []
    cursor: str | None = None
    while True:
        query: dict[str, str] = {} if cursor is None else {"cursor": cursor}
        page = (await (neighbour if len(cursors) % 2 else site).http.get("/runs", params=query, headers=ALICE)).json()
        found += [run["id"] for run in page["runs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
        cursors.append(cursor)
    assert found == [mine]
    assert len(cursors) >= 4
    for text in cursors:
        plain = base64.urlsafe_b64decode(text).decode(errors="replace")
        assert not [id for id in others if id in plain or id in text]
        with pytest.raises(BadOption):
            Cursor.parse(text)
    forged = str(Cursor(Status.QUEUED, 0.0, others[0]))
    for text in (forged, cursors[0][:-8], "", "é"):
        answer = await site.http.get("/runs", params={"cursor": text}, headers=ALICE)
        assert (answer.status_code, answer.json()["error"]) == (400, "BadOption")


async def test_caller_can_not_set_the_owner(site: Site) -> None:
    for owner in ("alice", "bob", None):
        body = {"kind": "ask", "options": {"meta": {"owner": owner, "a": 1}}}
        answer = await site.http.post("/runs", json=body, headers=BOB)
        assert (answer.status_code, answer.json()["error"]) == (400, "BadOption")
    answer = await site.http.post("/runs", json={"kind": "ask", "options": {"meta": {"a": 1}}}, headers=BOB)
    view = await site.client.handle(answer.json()["id"]).view()
    assert view.meta == {"a": 1, "owner": "bob"}


async def test_same_key_of_two_owners_makes_two_runs(site: Site) -> None:
    key = {"Idempotency-Key": "order-1"}
    first, second = (
        await site.enqueue("ask", headers={**ALICE, **key}),
        await site.enqueue("ask", headers={**BOB, **key}),
    )
    assert first != second
    assert await site.enqueue("ask", headers={**ALICE, **key}) == first
    assert (await site.http.get(f"/runs/{first}", headers=ALICE)).json()["key"] == "order-1"


async def test_owners_and_keys_do_not_run_together(site: Site) -> None:
    first = await site.enqueue("ask", headers={"user": "a", "Idempotency-Key": "b/c"})
    second = await site.enqueue("ask", headers={"user": "a/b", "Idempotency-Key": "c"})
    assert first != second


async def test_key_of_a_run_of_another_program_is_a_conflict(site: Site) -> None:
    other = await site.client.enqueue("ask", {}, key="bob/order-1")
    answer = await site.http.post("/runs", json={"kind": "ask"}, headers={**BOB, "Idempotency-Key": "order-1"})
    assert (answer.status_code, answer.json()["error"]) == (409, "KeyConflict")
    assert other.id not in answer.text


@pytest.mark.parametrize("option", ["queue", "priority", "retention", "schema", "key_ttl"])
async def test_caller_can_not_set_options_of_the_application(site: Site, option: str) -> None:
    body = {"kind": "ask", "options": {option: "x" if option == "queue" else 1}}
    answer = await site.http.post("/runs", json=body, headers={**BOB, "Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["error"]) == (400, "BadOption")


async def test_caller_can_enqueue_only_the_kinds_of_the_application(site: Site) -> None:
    answer = await site.http.post("/runs", json={"kind": "delete_all"}, headers=BOB)
    assert (answer.status_code, answer.json()["error"]) == (400, "BadOption")


async def test_application_sets_options_of_a_kind(make_site: Callable[..., Any]) -> None:
    kinds = {"ask": {"queue": "slow", "priority": 5, "meta": {"plan": "free"}}}
    site: Site = await make_site(owner=owner_of, kinds=kinds)
    body = {"kind": "ask", "options": {"meta": {"plan": "gold", "a": 1}}}
    answer = await site.http.post("/runs", json=body, headers=BOB)
    view = await site.client.handle(answer.json()["id"]).view()
    assert (view.queue, view.meta) == ("slow", {"plan": "free", "a": 1, "owner": "bob"})


@pytest.mark.usefixtures("worker")
async def test_owner_gets_no_internals_of_the_fleet(site: Site) -> None:
    id = await site.enqueue("fail", headers=ALICE)

    async def failed() -> bool:
        return (await site.client.handle(id).view()).ended is not None

    await eventually(failed, "the run to fail")
    view = (await site.http.get(f"/runs/{id}", headers=ALICE)).json()
    assert view["error"] == {"type": "ValueError", "message": "no luck"}
    assert not {"story", "owner", "code", "why", "counters", "ended_by", "killed"} & view.keys()
    listed = (await site.http.get("/runs", headers=ALICE)).json()["runs"]
    assert listed == [view]
    assert "Traceback" not in (await site.http.get(f"/runs/{id}/result", headers=ALICE)).text


async def test_owner_may_come_from_a_coroutine(make_site: Callable[..., Any]) -> None:
    async def look_up(request: Any) -> str:
        return "alice"

    site: Site = await make_site(owner=look_up, owner_field="user")
    assert (await site.client.handle(await site.enqueue("ask")).view()).meta == {"user": "alice"}


def test_kinds_are_not_the_characters_of_a_text() -> None:
    with pytest.raises(Refused, match="kinds is a text"):
        api(None, kinds="ask")  # type: ignore[arg-type]


def test_limits_are_positive() -> None:
    with pytest.raises(BadOption, match="limit idle 0"):
        Limits(idle=0)
