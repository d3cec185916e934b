"""Thousands of runs from the command line: list, cancel, revive and discard them; and cancel a run with all its descendants."""

from __future__ import annotations

import os

import pytest

from coordinator import Client, Status
from tests.e2e.processes import Stage
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("large numbers")

MANY = int(os.environ.get("RUNS_TEST_MANY", "3000"))


def lines_of(stage: Stage, *words: str, code: int = 0) -> list[str]:
    """Return the lines that a command printed."""
    log = stage.directory / f"log-{len(stage.started)}"
    assert stage._start("coordinator", *words).wait(120) == code, stage.logs()
    return log.read_text().splitlines()


def test_thousands_of_runs_are_cancelled_revived_and_discarded_by_filter(stage: Stage, client: Client) -> None:
    client.enqueue_many([("many", {})] * MANY)
    other = client.enqueue("other")
    assert lines_of(stage, "cancel", "--kind", "many", code=2) == [
        f"error: {MANY:,} runs match: use --yes to cancel them, or --dry-run to list them"
    ]
    looked = lines_of(stage, "cancel", "--kind", "many", "--dry-run")
    assert len(looked) == 1 + 100 + 1
    assert looked[-1] == f"and {MANY - 100:,} more, {MANY:,} runs in total; --json lists all of them"
    lines = lines_of(stage, "cancel", "--kind", "many", "--yes")
    assert (len(lines), {line.split("  ")[1] for line in lines}) == (MANY, {"cancelled"})
    assert client.status().counts[Status.CANCELLED] == MANY

    assert len(lines_of(stage, "revive", "--kind", "many", "--status", "cancelled", "--yes")) == MANY
    assert client.status().counts[Status.QUEUED] == MANY + 1
    assert len(lines_of(stage, "cancel", "--kind", "many", "--yes")) == MANY
    assert len(lines_of(stage, "discard", "--kind", "many", "--yes")) == MANY
    assert lines_of(stage, "discard", "--kind", "many", "--yes") == ["no runs match"]
    counts = client.status().counts
    assert (counts[Status.QUEUED], counts[Status.CANCELLED]) == (1, 0)
    assert other.view().status is Status.QUEUED


def test_cancel_of_a_tree_cancels_all_descendants(stage: Stage, client: Client) -> None:
    stage.fleet()
    root = client.enqueue("sleeper")
    wait_until(lambda: root.view().status is Status.RUNNING, "the run to start")
    child = client.enqueue("child", parent=root.id)
    grandchild = client.enqueue("child", parent=child.id)
    bystander = client.enqueue("child")
    assert lines_of(stage, "cancel", "--tree", root.id) == [
        f"{root.id}  cancel requested; its worker stops it; runs below it: 2 cancelled"
    ]
    assert root.wait(60) is Status.CANCELLED
    assert {child.wait(10), grandchild.wait(10)} == {Status.CANCELLED}
    assert bystander.view().status is Status.QUEUED
    assert lines_of(stage, "cancel", "--tree", "0123456789abcdefghjk-00", code=3)[0].startswith(
        "error: there is no run"
    )
