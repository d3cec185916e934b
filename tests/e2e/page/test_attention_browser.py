"""Test the list of what needs attention and the fire times of schedules, in a real Chromium."""

from __future__ import annotations

import pytest
import redis

from coordinator import Client
from coordinator.store.keys import Namespace
from tests.e2e.page.support import SCRIPT, OpenPage, go, show
from tests.e2e.processes import Stage
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("starts a browser")


def test_overview_names_full_groups_and_findings_of_the_doctor(
    stage: Stage, client: Client, open_page: OpenPage
) -> None:
    client.set_limit("report", at_once=1)
    runs = [client.enqueue("report", group=SCRIPT) for _ in range(4)]
    space: Namespace = client._do(lambda namespace: namespace.space())
    (keys,) = space.everywhere()
    # A queued run that is in no collection, as after a bug or a change by hand.
    damaged = client.enqueue("greet")
    redis.Redis.from_url(stage.url).zrem(keys.ready("default:greet@0"), damaged.id)
    page = open_page()
    show(page, "#/")
    groups = page.get_by_label("Groups with waiting runs")
    wait_until(lambda: groups.locator("tbody tr").count() == 1, "the group", 60)
    assert groups.locator("td").all_inner_texts()[:4] == [SCRIPT, "report", "1 of 1", "3"]
    attention = page.get_by_label("Needs attention")
    wait_until(lambda: "the doctor found 1 problem" in attention.inner_text(), "the doctor's finding", 60)
    assert damaged.id in attention.inner_text()
    assert page.locator("main img, main script").count() == 0
    groups.locator("a").click()
    wait_until(lambda: page.locator("tbody tr.row").count() == len(runs), "the runs of the group", 60)


def test_overview_shows_the_limits_of_calls_to_the_outside(client: Client, open_page: OpenPage) -> None:
    page = open_page()
    show(page, "#/")
    limits = page.get_by_label("External calls")
    wait_until(lambda: page.locator("#board").count() == 1, "the overview", 60)
    assert not limits.is_visible()
    client.set_rate("search", "10/s", burst=20)
    wait_until(lambda: limits.locator("tbody tr").count() == 1, "the limit", 60)
    assert limits.locator("td").all_inner_texts() == ["search", "10/s, burst 20", "0", "0", ""]


def test_schedule_shows_its_next_fires_and_its_last_runs(stage: Stage, client: Client, open_page: OpenPage) -> None:
    stage.coordinator()
    client.schedule("often", 1, "nobody", overlap="allow")
    wait_until(lambda: client.schedules()[0].fired >= 2, "two fires", 60)
    page = open_page()
    go(page, "#/schedules")
    page.get_by_label("Fire times of often").click()
    runs = page.locator(".fires a")
    wait_until(lambda: runs.count() >= 2, "the runs of the last fires", 60)
    assert page.locator("tr.detail p .fire").count() == 5
    assert client.handle(runs.first.inner_text()).view().meta == {"schedule": "often"}
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
