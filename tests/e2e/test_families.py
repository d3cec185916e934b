"""Parents and their children in real processes: every ending of a child, deep families in one slot, and cancelled trees."""

from __future__ import annotations

import subprocess

import pytest

from coordinator import Client, Status
from tests.e2e.processes import Stage
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases with real processes")

WAYS = ["completes", "fails", "dies", "is cancelled", "is discarded"]


def start_fleet(stage: Stage, processes: int, concurrency: int) -> subprocess.Popen[bytes]:
    options = ["--processes", processes, "--concurrency", concurrency, "--lease", 3]
    return stage._start("workers", "start", "tests.e2e.wait_app:runs", *map(str, options))


@pytest.mark.timeout(200)
def test_every_ending_of_a_child_wakes_its_parent(stage: Stage, client: Client) -> None:
    stage.coordinator()
    start_fleet(stage, 2, 10)
    parent = client.enqueue("family", {"ways": WAYS})

    def find(how: str) -> str:
        (event, *_) = wait_until(lambda: stage.events(how.replace(" ", "_")), f"the child that {how}", timeout=60)
        return event.run

    discarded = client.handle(find("is discarded"))
    discarded.result(timeout=60)
    assert discarded.discard()
    cancelled = find("is cancelled")
    wait_until(lambda: parent.view().status is Status.WAITING, "the parent to wait", timeout=60)
    client.handle(cancelled).cancel()
    assert parent.result(timeout=150) == ["completes", "failed", "dead", "cancelled", "is discarded", "cancelled"]
    assert client.handle(find("dies")).view().counters.strikes == 3


@pytest.mark.timeout(120)
def test_family_of_depth_ten_finishes_in_one_slot(stage: Stage, client: Client) -> None:
    stage.coordinator()
    start_fleet(stage, 1, 1)
    assert client.enqueue("nested", {"depth": 10}).result(timeout=100) == 10
    assert {event.number for event in stage.events("nested")} == set(range(1, 11))


@pytest.mark.timeout(120)
def test_cancelled_tree_ends_every_run_of_it(stage: Stage, client: Client) -> None:
    stage.coordinator()
    start_fleet(stage, 2, 5)
    roots = [client.enqueue("family", {"ways": ["is cancelled"] * 10}) for _ in range(3)]
    wait_until(lambda: len({event.run for event in stage.events("is_cancelled")}) == 30, "all children", timeout=90)
    wait_until(lambda: all(root.view().status is Status.WAITING for root in roots), "the parents to wait", timeout=60)
    for root in roots:
        root.cancel_tree()
    ids = {event.run for event in stage.events("is_cancelled")} | {root.id for root in roots}
    assert {client.handle(id).wait(60) for id in ids} == {Status.CANCELLED}
