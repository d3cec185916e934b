"""Handlers that close file descriptors of their process: connections, pipes, event loops, or everything at once.

The process recovers, or it ends and its supervisor replaces it. No run is lost, and each run ends once.
"""

from __future__ import annotations

import subprocess

import pytest

from coordinator import Client, Status
from tests.e2e.closing_app import CLOSE
from tests.e2e.processes import Stage, children, stop
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(240)
APPS = ("tests.e2e.app:runs", "tests.e2e.closing_app:runs")
NEIGHBOURS, STEPS = 6, 25


def start(stage: Stage, processes: int) -> subprocess.Popen[bytes]:
    stage.coordinator()
    fleet = stage._start("workers", "start", *APPS, "--processes", str(processes), "--lease", "5", "--grace", "5")
    wait_until(lambda: stage.logs().count(" ready: ") == processes, "the workers to be ready", 60)
    return fleet


def check_saves(stage: Stage, runs: int) -> None:
    """Check that each run resumed from its last acknowledged save, and ended once."""
    saved: dict[str, int] = {}
    ends: list[str] = []
    for event in stage.events():
        if event.what == "start":
            assert event.number >= saved.get(event.run, 0), "a run resumes from its last acknowledged save"
        elif event.what == "saved":
            saved[event.run] = event.number + 1
        elif event.what == "end":
            ends.append(event.run)
    assert set(saved.values()) == {STEPS}
    assert len(saved) == runs
    assert len(set(ends)) == runs


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("what", CLOSE)
def test_runs_survive_handlers_that_close_files_of_their_process(
    stage: Stage, client: Client, monkeypatch: pytest.MonkeyPatch, loop: str, what: str
) -> None:
    monkeypatch.setenv("RUNS_LOOP", loop)
    fleet = start(stage, processes=2)
    for kind in ("closer", "plain_closer"):
        neighbours = client.enqueue_many([("saved", {"total": STEPS, "seconds": 0.05})] * NEIGHBOURS)
        wait_until(lambda: set(stage_runs(stage)) >= {one.id for one in neighbours}, "the neighbours to save", 60)  # noqa: B023
        closer = client.enqueue(kind, {"what": what})
        assert closer.result(90) in (1, 2)
        assert [handle.result(90) for handle in neighbours] == [list(range(STEPS))] * NEIGHBOURS
        if what != "connections":  # a process without its connections opens new ones
            broken = {event.pid for event in stage.events("closes") if event.number == 1}
            wait_until(lambda: not broken & set(children(fleet.pid)), "the process to end", 60)  # noqa: B023
    check_saves(stage, 2 * NEIGHBOURS)
    assert client.enqueue("add", {"left": 2, "right": 3}).result(60) == 5
    wait_until(lambda: len(children(fleet.pid)) == 2, "processes that have ended to be replaced", 60)
    assert stop(fleet) == 0


def stage_runs(stage: Stage) -> list[str]:
    """Return the runs that have saved."""
    return [event.run for event in stage.events("saved")]


@pytest.mark.matrix("more cases with real processes")
def test_run_that_always_closes_all_files_is_dead_and_its_neighbours_are_not(stage: Stage, client: Client) -> None:
    fleet = start(stage, processes=2)
    neighbours = client.enqueue_many([("saved", {"total": STEPS, "seconds": 0.1})] * NEIGHBOURS)
    wait_until(lambda: len(set(stage_runs(stage))) == NEIGHBOURS, "the neighbours to save", 60)
    poison = client.enqueue("always")
    assert poison.wait(120) == Status.DEAD
    assert len(stage.events("closes")) == 3
    assert [handle.result(90) for handle in neighbours] == [list(range(STEPS))] * NEIGHBOURS
    check_saves(stage, NEIGHBOURS)
    assert stop(fleet) == 0
