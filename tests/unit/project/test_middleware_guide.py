"""The examples of docs/guides/middleware.md work: Sentry, tenants, audit."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sentry_sdk

from coordinator import Client
from workers import AsyncRun, Registry, Retry, Run, testing

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "middleware.md"


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module with all Python blocks of the page."""
    module = ModuleType("docs_middleware")
    monkeypatch.setitem(sys.modules, "docs_middleware", module)
    monkeypatch.setenv("RUNS_URL", "memory://docs-middleware")
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(PAGE), "exec"), module.__dict__)  # noqa: S102  # the docs are ours
    return module


def registry(middleware: Any, seen: list[str]) -> Registry[None]:
    runs = Registry(middleware=[middleware])

    @runs.handler(retry=Retry(limit=1, wait=0))
    async def fails(run: AsyncRun) -> None:
        raise ValueError("no")

    @runs.handler
    async def parent(run: AsyncRun) -> str:
        seen.extend(await run.gather("leaves", [leaf.inputs()]))
        return "done"

    @runs.handler
    def leaf(run: Run) -> str:
        return sys.modules["docs_middleware"].tenant.get()  # type: ignore[no-any-return]

    return runs


def test_sentry_gets_the_errors_of_runs(guide):
    events: list[Any] = []
    sentry_sdk.init(
        dsn="https://key@localhost/1",
        before_send=lambda event, hint: events.append(event),
        default_integrations=False,
        auto_enabling_integrations=False,
    )
    with testing.worker(registry(guide.Sentry(), [])) as client:
        handle = client.enqueue("fails")
        handle.wait()
    sentry_sdk.get_client().close()
    sentry_sdk.init(default_integrations=False, auto_enabling_integrations=False)
    assert [event["level"] for event in events] == ["warning", "error"]
    assert all(event["tags"] == {"run.kind": "fails"} for event in events)
    assert events[-1]["contexts"]["run"]["id"] == handle.id
    assert events[-1]["exception"]["values"][-1]["value"] == "no"


def test_tenant_reaches_the_children_of_a_run(guide):
    seen: list[str] = []
    with testing.worker(registry(guide.Tenants(), seen)) as inside:
        settings = inside._settings
        guide.tenant.set("acme")
        with Client(settings.url, settings.namespace, middleware=[guide.Tenants()]) as client:
            assert client.enqueue("parent").result() == "done"
        guide.tenant.set("")
    assert seen == ["acme"]


def test_audit_file_has_a_line_for_each_attempt(guide, tmp_path):
    path = tmp_path / "audit"
    with testing.worker(registry(guide.Audit(str(path)), [])) as client:
        handle = client.enqueue("fails")
        handle.wait()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["run"], line["attempt"], line["outcome"]) for line in lines] == [
        (handle.id, 1, "retried"),
        (handle.id, 2, "failed"),
    ]
    assert lines[0]["error"] == "ValueError('no')"
