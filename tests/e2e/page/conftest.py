"""Fixtures for the page in a real Chromium: a server of its own for each test, and pages whose scripts must not fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from coordinator import Client
from tests.browsers import find_chromium
from tests.conftest import StartServer
from tests.e2e.conftest import MakeStage
from tests.e2e.page.support import OpenPage, Page, start_web
from tests.e2e.processes import Stage


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def stage(start_server: StartServer, make_stage: MakeStage) -> Stage:
    return make_stage(start_server().url)


@pytest.fixture
def client(stage: Stage) -> Iterator[Client]:
    with Client(stage.url, stage.namespace) as made:
        yield made


@pytest.fixture
def open_page(browser: Any, stage: Stage) -> Iterator[OpenPage]:
    """Return `open_page(*options)`, which starts a web server and opens the page. At the end no script must have failed."""
    contexts: list[Any] = []
    errors: list[str] = []

    def open_(*options: str, url: str | None = None) -> Page:
        address = url or start_web(stage, *options)[1]
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
        page.goto(address)
        page.address = address
        return page

    yield open_
    for context in contexts:
        context.close()
    assert errors == []
