"""The example browser_agent: its page shows the whole text over a kill -9 of the worker and reloads, and asks for an approval."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.processes import ROOT, Stage, children
from tests.e2e.test_web import free_port
from tests.waiting import wait_until

SENTENCE = "Tides rise and fall twice a day. The moon pulls the water towards it, and the earth turns below. "
SHOTS = os.environ.get("SCREENSHOTS")  # a folder, to look at the page


class AgentStage(Stage):
    app = "examples.browser_agent.agent:runs"


@pytest.fixture
def stage(stage: Stage) -> Iterator[AgentStage]:
    agent = AgentStage(stage.urls, stage.namespace, stage.directory, stage.place)
    yield agent
    agent.close()


@pytest.fixture
def url(stage: AgentStage) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "examples.browser_agent.server:app", "--port", str(port)]
    with (stage.directory / "log-page").open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, env=stage.environment(), stdout=log, stderr=log)
    found = f"http://127.0.0.1:{port}"
    wait_until(lambda: answers(found), "the server of the page")
    yield found
    server.kill()
    server.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def words(page: Page) -> int:
    return len((page.locator("#text").text_content() or "").split())


def shoot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png")


def test_page_has_at_most_60_lines() -> None:
    page = (ROOT / "examples/browser_agent/page.html").read_text()
    assert page.count("\n") <= 60
    assert max(map(len, page.splitlines())) <= 132, "as in other files"


@pytest.mark.matrix("starts a browser")
def test_page_survives_a_kill_and_reloads_and_asks_for_an_approval(
    stage: AgentStage, browser: Browser, url: str
) -> None:
    stage.coordinator()
    fleet = stage.fleet()
    page = browser.new_page(viewport={"width": 800, "height": 560})
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.goto(url)
    shoot(page, "start")
    page.get_by_role("button", name="Write").click()
    wait_until(lambda: words(page) >= 8, "the first words")
    os.kill(children(fleet.pid)[0], signal.SIGKILL)
    page.reload()
    wait_until(lambda: words(page) >= 8, "the words after the reload")
    shoot(page, "writing")
    question = page.get_by_text("Publish this text?")
    question.wait_for(timeout=60_000)
    expect(page.locator("#text")).to_have_text(SENTENCE * 3)
    shoot(page, "question")
    page.reload()
    question.wait_for(timeout=60_000)
    page.get_by_role("button", name="Yes").click()
    page.get_by_text("The run is completed.").wait_for(timeout=60_000)
    assert page.locator("#text").text_content() == SENTENCE * 3 + "\n\nPublished."
    assert question.is_hidden()
    shoot(page, "published")

    other = browser.new_context().new_page()  # another browser has another user
    other.goto(page.url)
    other.get_by_text("There is no such run.").wait_for(timeout=30_000)
    assert other.locator("#text").text_content() == ""
    assert failures == []
