"""Processes of the first release and of this one work together on one server.

The first release is a fixed commit: data that it stored must stay readable, however long ago that was. It knows only the oldest
features, and test_upgrades.py is about the others. Where this version can't use a feature beside a process of the first release,
it must say which process has to be restarted. The packages are extracted from git, so these tests need the history.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import Client, NotConfigured
from tests.e2e.processes import ROOT, Stage, wait_for_start
from tests.e2e.versions import Fleet, extract, kill_host, stop_cleanly
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("the first release")

RUNS, STEPS = 6, 12


@pytest.fixture(scope="module")
def first_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Extract the packages and the test handlers of the first release into a folder."""
    return extract("first release", tmp_path_factory.mktemp("versions") / "first_release")


@pytest.fixture
def fleet(stage: Stage, first_release: Path) -> Fleet:
    return Fleet(stage, {"old": first_release, "new": ROOT})


def test_first_release_runs_its_own_packages(first_release: Path, tmp_path: Path) -> None:
    code = "import coordinator, workers; print(coordinator.__file__); print(workers.__file__)"
    command, environment = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": str(first_release)}
    printed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert printed.count(str(first_release)) == 2


def steps_saved(stage: Stage, count: int) -> bool:
    """Return True when every run has begun its step number COUNT, so that the steps before it are saved."""
    steps = stage.steps()
    return len(steps) == RUNS and all(events[-1].number >= count for events in steps.values())


@pytest.mark.parametrize("coordinator", ["old", "new"])
@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")], ids=["upgrade", "rollback"])
def test_lost_host_of_one_release_is_resumed_by_the_other(
    stage: Stage, fleet: Fleet, first: str, second: str, coordinator: str
) -> None:
    fleet.coordinator(coordinator)
    lost = fleet.workers(first)
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": STEPS, "seconds": 0.2})] * RUNS)
        wait_for_start(stage, RUNS)
        wait_until(lambda: steps_saved(stage, 3), "every run has saved two steps")
        kill_host(lost)
        fleet.workers(second)
        assert [handle.result(timeout=60) for handle in handles] == [STEPS] * RUNS
        resumed = [event for event in stage.events("start") if event.number > 0]
        assert len({event.run for event in resumed}) == RUNS, "every run continued at a saved step"


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")], ids=["upgrade", "rollback"])
def test_drained_runs_of_one_release_continue_in_the_other_without_a_repeated_step(
    stage: Stage, fleet: Fleet, first: str, second: str
) -> None:
    fleet.coordinator(first)
    before = fleet.workers(first)
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": STEPS, "seconds": 0.2})] * RUNS)
        wait_for_start(stage, RUNS)
        wait_until(lambda: steps_saved(stage, 3), "every run has saved two steps")
        fleet.workers(second)
        stop_cleanly(before)
        assert [handle.result(timeout=60) for handle in handles] == [STEPS] * RUNS
    for events in stage.steps().values():
        assert [event.number for event in events] == list(range(STEPS))


@pytest.mark.parametrize("release", ["old", "new"])
def test_commands_of_either_release_read_and_cancel_runs_of_the_other(stage: Stage, fleet: Fleet, release: str) -> None:
    other = "new" if release == "old" else "old"
    fleet.coordinator(other)
    fleet.workers(other)
    run = fleet.command(release, "enqueue", "steps", "total:=600", "seconds:=0.1").split()[-1]
    wait_for_start(stage)
    assert "running" in fleet.command(release, "show", run)
    fleet.command(release, "cancel", run)
    wait_until(lambda: "cancelled" in fleet.command(release, "show", run), "the worker ended the cancelled run")
    fleet.command(release, "revive", run)
    wait_for_start(stage, 2)
    assert "running" in fleet.command(release, "runs", "--status", "running")


GROUPS = "no run with a group was enqueued: {} was started with an older version that does not support groups"
STARTS = "no rate of starts was set: {} was started with an older version that does not count starts"
RESTART = "; restart that process with the new version$"


def assert_groups_are_refused(client: Client, process: str) -> None:
    """Check that groups and rates of starts are refused, and that the error names the process, which a pattern describes."""
    with pytest.raises(NotConfigured, match=GROUPS.format(process) + RESTART):
        client.enqueue("steps", {"total": 2}, group="acme")
    with pytest.raises(NotConfigured, match=STARTS.format(process) + RESTART):
        client.set_limit("steps", rate="10/s")
    assert client.list() == [], "nothing was enqueued"
    assert client.limits() == (), "no limit was set"


def test_groups_are_refused_beside_an_old_coordinator(stage: Stage, fleet: Fleet) -> None:
    fleet.coordinator("old")
    with Client(stage.url, stage.namespace) as client:
        (coordinator,) = wait_until(lambda: client.status().coordinators, "the old coordinator is known")
        assert_groups_are_refused(client, f"coordinator {coordinator.id}")


def test_groups_are_refused_until_the_old_worker_has_ended(stage: Stage, fleet: Fleet) -> None:
    old = fleet.workers("old")
    with Client(stage.url, stage.namespace) as client:
        (worker,) = wait_until(client.workers, "the old worker has joined")
        assert_groups_are_refused(client, rf"worker {worker.id} \(process {worker.pid} on {worker.host}\)")
        stop_cleanly(old)
        fleet.coordinator("new")
        fleet.workers("new")
        assert client.set_limit("steps", rate="10/s")
        assert client.enqueue("steps", {"total": 2}, group="acme").result(timeout=60) == 2
