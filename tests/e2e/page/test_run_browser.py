"""The page of one run in a real Chromium: output, effects, budget, group and tree."""

from __future__ import annotations

import os
import signal

import pytest
import redis

from coordinator import Client, Status
from coordinator.store.keys import Namespace
from tests.e2e.page.support import OpenPage, board, go, show
from tests.e2e.processes import Stage
from tests.waiting import wait_until
from workers import Budget

pytestmark = pytest.mark.matrix("starts a browser")
APP = "tests.e2e.page_app:runs"


def test_output_is_live_and_drops_the_words_of_a_lost_attempt(
    stage: Stage, client: Client, open_page: OpenPage
) -> None:
    stage.app = APP
    stage.coordinator()
    stage.fleet(1)
    run = client.enqueue("teller")
    page = open_page()
    go(page, f"#/runs/{run.id}")
    output = page.locator("#output")
    wait_until(lambda: "waits for the test (1 of 2)" in (output.text_content() or ""), "the first attempt", 60)
    assert (output.text_content() or "").startswith("kept attempt-")
    facts = page.get_by_label("Facts", exact=True)
    wait_until(lambda: "waits for the test (1 of 2)" in facts.inner_text(), "the note with its progress", 60)
    first = output.text_content() or ""
    go(page, "#/")
    (pid,) = wait_until(lambda: [pid for pid, runs in board(page).items() if run.id in runs], "the run on a card", 60)
    go(page, f"#/runs/{run.id}")
    wait_until(lambda: (output.text_content() or "") == first, "the same output again", 60)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "continued from its checkpoint" in (output.text_content() or ""), "the rewind", 60)
    wait_until(lambda: (output.text_content() or "").count("attempt-") == 1, "the words of the second attempt", 60)
    assert first.partition("waits")[0] not in (output.text_content() or "")
    assert (output.text_content() or "").startswith("kept ")
    stage.open_gate("all")
    assert run.wait(60) is Status.COMPLETED
    wait_until(lambda: '{"step":3,"of":3}' in (output.text_content() or ""), "the last event", 60)
    aside = page.get_by_label("Output of the run").locator(".aside")
    wait_until(lambda: "live" not in aside.inner_text(), "the end of the stream", 60)


def test_transcript_is_a_conversation_with_folded_tool_calls(stage: Stage, client: Client, open_page: OpenPage) -> None:
    stage.app = APP
    stage.coordinator()
    stage.fleet(1)
    run = client.enqueue("talker")
    assert run.wait(60) is Status.COMPLETED
    page = open_page()
    show(page, f"#/runs/{run.id}")
    messages = page.get_by_label("Transcript", exact=True).locator(".message")
    wait_until(lambda: messages.count() == 4, "the messages", 60)
    roles = [messages.nth(number).locator(".role").inner_text().split()[0] for number in range(4)]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert messages.nth(3).locator(".said").inner_text() == "At noon."
    call, reply = messages.nth(1).locator("details"), messages.nth(2).locator("details")
    assert (call.get_attribute("open"), reply.get_attribute("open")) == (None, None), "both are folded"
    assert call.locator("summary").inner_text() == 'search {"query":"tides"}'
    assert len(messages.nth(2).inner_text()) < 400
    call.locator("summary").click()
    assert call.locator("pre").inner_text() == '{\n  "query": "tides"\n}'
    assert "more characters" in (reply.text_content() or ""), "the server cuts a very large text"
    assert len(reply.text_content() or "") < 50_000
    assert page.get_by_role("button", name="Show all").count() == 1
    page.get_by_role("button", name="Show all of message 3").focus()
    page.keyboard.press("Enter")
    wait_until(lambda: "moon " * 20_000 in (messages.nth(2).text_content() or ""), "the whole text", 60)
    assert "more characters" not in (messages.nth(2).text_content() or "")
    assert page.get_by_role("button", name="Show all").count() == 0
    assert messages.nth(2).evaluate("element => element === document.activeElement")
    assert messages.count() == 4


def test_transcript_shows_all_messages_that_come_between_two_polls(
    stage: Stage, client: Client, open_page: OpenPage
) -> None:
    stage.app = APP
    stage.coordinator()
    stage.fleet(1)
    run = client.enqueue("grower")
    page = open_page()
    show(page, f"#/runs/{run.id}")
    messages = page.get_by_label("Transcript", exact=True).locator(".message")
    wait_until(lambda: messages.count() == 1, "the first message", 60)
    stage.open_gate("more")
    wait_until(lambda: messages.count() == 251, "all messages", 60)
    numbers = messages.evaluate_all("all => all.map(one => Number(one.dataset.number))")
    assert numbers == list(range(251))


def test_first_children_of_many_are_counted_and_a_child_is_folded(
    stage: Stage, client: Client, open_page: OpenPage
) -> None:
    (parent, middle), leaves = client.enqueue_many([("nobody", {})] * 2), client.enqueue_many([("leaf", {})] * 3)
    others = client.enqueue_many([("nobody", {})] * 200)
    space: Namespace = client._do(lambda namespace: namespace.space())
    (keys,) = space.everywhere()
    with redis.Redis.from_url(stage.url) as line:
        line.sadd(keys.children(parent.id), middle.id)
        line.sadd(keys.children(middle.id), *(leaf.id for leaf in leaves))
    page = open_page()
    show(page, f"#/runs/{parent.id}")
    children = page.get_by_label("Children", exact=True)
    fold, rows = children.get_by_label(f"Children of run {middle.id}"), children.locator("li")
    fold.wait_for()
    assert "1 child" in children.locator("header").inner_text()
    assert (rows.count(), fold.get_attribute("aria-expanded")) == (1, "false")
    fold.focus()
    page.keyboard.press("Enter")
    wait_until(lambda: rows.count() == 4, "the children of the child")
    assert fold.get_attribute("aria-expanded") == "true"
    assert {leaf.id for leaf in leaves} == set(children.locator("li li a").all_inner_texts())
    assert children.get_by_label(f"Children of run {leaves[0].id}").is_disabled()
    fold.click()
    assert not children.get_by_text(leaves[0].id).is_visible()
    fold.click()
    assert children.get_by_text(leaves[0].id).is_visible()
    assert rows.count() == 4, "the children were read once"
    with redis.Redis.from_url(stage.url) as line:
        line.sadd(keys.children(parent.id), *(other.id for other in others))
    show(page, f"#/runs/{parent.id}")
    wait_until(lambda: rows.count() == 200, "the children")
    assert children.locator(".aside").inner_text() == "the first 200 children"


def test_effects_and_spending_of_a_run_are_shown(stage: Stage, client: Client, open_page: OpenPage) -> None:
    stage.app = APP
    stage.coordinator()
    stage.fleet(1)
    run = client.enqueue("buyer", budget=Budget(usd=5, tokens=10_000, then="wait"))
    assert run.wait(60) is Status.FAILED
    page = open_page("--allow-changes")
    show(page, f"#/runs/{run.id}")
    effects = page.locator("#effects")
    effects.wait_for()
    assert [line.split() for line in effects.locator("li").all_inner_texts()] == [
        ["outcome", "unknown", "refund"],
        ["done", "charge"],
    ]
    facts = page.get_by_label("Facts").inner_text()
    for text in ("1.25 USD of 5 USD", "4,000 tokens of 10,000 tokens", "then it waits for a grant"):
        assert text in facts
    page.get_by_role("button", name="Revive and forget effects…").click()
    page.locator("#confirm").click()
    wait_until(lambda: run.view().counters.life == 2, "the revive")


def test_run_that_is_held_says_its_group_and_the_places(client: Client, open_page: OpenPage) -> None:
    client.set_limit("report", at_once=0)
    client.enqueue("report", group="acme")
    held = client.enqueue("report", group="acme")
    page = open_page()
    show(page, f"#/runs/{held.id}")
    page.locator("h1").wait_for()
    facts = page.get_by_label("Facts").inner_text()
    assert "acme" in facts
    assert "0 of 0 places taken, 1 run before it" in facts
    page.get_by_label("Facts").get_by_role("link", name="acme").click()
    wait_until(lambda: page.locator("tbody tr.row").count() == 2, "the runs of the group")
    assert page.locator("input[name=group]").input_value() == "acme"
    page.locator("input[name=group]").fill("globex")
    page.keyboard.press("Enter")
    page.get_by_text("No runs match.").wait_for()


def test_tree_is_counted_and_cancelled(stage: Stage, client: Client, open_page: OpenPage) -> None:
    stage.app = APP
    stage.coordinator()
    stage.fleet(1)
    run = client.enqueue("root")
    other = client.enqueue("nobody")
    wait_until(lambda: (view := run.view()).waiting and view.waiting.children, "the wait for children", 60)
    page = open_page("--allow-changes")
    show(page, f"#/runs/{run.id}")
    wait_until(lambda: page.get_by_label("Waits for children").locator("li a").count() == 3, "the open children")
    children = page.get_by_label("Waits for children").locator("li a").all_inner_texts()
    assert all(client.handle(child).view().kind == "leaf" for child in children)
    page.get_by_role("button", name="Cancel the tree…").click()
    page.get_by_text("Cancel a tree of 4 runs?").wait_for()
    assert run.view().status is Status.WAITING
    page.locator("#confirm").click()
    for id in (run.id, *children):
        assert client.handle(id).wait(60) is Status.CANCELLED
    assert other.view().status is Status.QUEUED


def test_grant_reaches_a_run(client: Client, open_page: OpenPage) -> None:
    run = client.enqueue("nobody", budget=Budget(usd=1, then="wait"))
    page = open_page("--allow-changes")
    show(page, f"#/runs/{run.id}")
    page.get_by_role("button", name="Grant…").click()
    page.locator("dialog input[name=usd]").fill("2.5")
    page.locator("#confirm").click()
    page.get_by_text("Granted.").wait_for()
    assert run.view().signals == {"coordinator.grant": 1}
