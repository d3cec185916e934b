"""Agents of other frameworks in a real fleet: kills repeat no saved call, readers get whole answers, approvals survive a roll."""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict

import pytest

from coordinator import Client, Event, Rewind, Status
from tests.e2e.agent_frameworks_app import TOOLS, TURNS, WORDS
from tests.e2e.processes import Event as Line
from tests.e2e.processes import Stage, children
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.matrix("tests/unit/integrations shows the same in memory")]
APP = "tests.e2e.agent_frameworks_app:runs"
RUNS, KILLS = int(os.environ.get("RUNS_TEST_AGENTS", "6")), int(os.environ.get("RUNS_TEST_KILLS", "4"))


def start(stage: Stage) -> int:
    stage.coordinator()
    return stage._start("workers", "start", APP, "--processes", "2", "--concurrency", "10", "--lease", "5").pid


def repeated_after_save(lines: list[Line]) -> list[Line]:
    """Return the calls of one run that were made although their output was saved.

    A call whose output is used by a later call was saved before it: a request before the tools that it asks for, and all tools of
    a turn before the next request.
    """
    wrong, latest = [], -1
    for line in lines:
        place = 2 * line.number if line.what == "request" else 2 * (line.number // 10) + 1
        if place < latest:
            wrong.append(line)
        latest = max(latest, place)
    return wrong


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["pydantic_research", "sdk_research"])
def test_a_killed_and_rolled_fleet_repeats_no_call_that_was_saved(kind: str, stage: Stage, client: Client) -> None:
    fleet = start(stage)
    handles = [client.enqueue(kind) for _ in range(RUNS)]
    calls = RUNS * (TURNS + 1 + TURNS * TOOLS)
    for kill in range(1, KILLS + 1):
        enough = calls * kill // (KILLS + 2)
        wait_until(lambda: len(stage.events()) >= enough, "some calls to be made", timeout=180)  # noqa: B023
        os.kill(
            random.choice(wait_until(lambda: children(fleet), "the fleet has a process", timeout=120)), signal.SIGKILL
        )
    os.kill(fleet, signal.SIGHUP)  # a roll
    assert [handle.wait(120) for handle in handles] == [Status.COMPLETED] * RUNS
    by_run = defaultdict(list)
    for line in stage.events():
        by_run[line.run].append(line)
    assert len(by_run) == RUNS
    assert "roll started" in stage.logs()
    for lines in by_run.values():
        assert repeated_after_save(lines) == []
        assert len({(line.what, line.number) for line in lines}) == TURNS + 1 + TURNS * TOOLS


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sdk_stream", "sdk_read_stream"])
def test_a_reader_of_a_killed_stream_gets_a_rewind_and_the_whole_answer(
    kind: str, stage: Stage, client: Client
) -> None:
    start(stage)
    handle = client.enqueue(kind)
    shown, rewinds = list[Event](), 0
    for item in handle.stream():
        if isinstance(item, Rewind):
            rewinds += 1
            shown = [event for event in shown if event.number <= item.to]
        elif isinstance(item, Event):
            shown.append(item)
    answer = "".join(event.value["delta"] for event in shown if event.value["type"] == "response.output_text.delta")
    assert (rewinds, answer) == (1, "".join(WORDS))
    assert handle.result(timeout=60) == answer


@pytest.mark.timeout(600)
def test_an_approval_waits_over_a_roll_of_the_fleet(stage: Stage, client: Client) -> None:
    fleet = start(stage)
    handles = [client.enqueue(kind) for kind in ("pydantic_purchase", "sdk_purchase", "sdk_read_purchase")]
    for handle in handles:
        wait_until(lambda: handle.view().status == Status.WAITING, "the run waits for its approval", timeout=180)  # noqa: B023
    before = set(children(fleet))
    os.kill(fleet, signal.SIGHUP)
    wait_until(lambda: "roll finished: 2 of 2 replaced" in stage.logs(), "the roll is over", timeout=240)
    assert not before & set(children(fleet))
    for handle in handles:
        handle.send("approval.call-1", {"approved": True})
    assert [handle.result(timeout=120) for handle in handles] == ["bought"] * 3
    for handle in handles:
        lines = [(line.what, line.number) for line in stage.events() if line.run == handle.id]
        assert lines == [("request", 1), ("tool", 1), ("request", 3)]
