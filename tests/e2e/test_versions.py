"""Processes of the previous release and of this one work together on one server.

The previous release is a commit of this repository. Its packages are extracted from git, so these tests need the history.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from coordinator import Client
from tests.e2e.processes import ROOT, Stage, wait_for_start
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("the previous release")

PREVIOUS_RELEASE = "ca07f564153f6375cfafbab444fbbcf0475d5800"
RUNS, STEPS = 6, 12
LEASE = 2.0


def git(*arguments: str) -> bytes:
    """Return the output of a git command in this repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


@pytest.fixture(scope="module")
def previous_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Extract the packages and the test handlers of the previous release into a folder."""
    folder = tmp_path_factory.mktemp("previous")
    archive = git("archive", "--format=tar", PREVIOUS_RELEASE, "coordinator", "workers", "tests")
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def test_previous_release_runs_its_own_packages(previous_release: Path) -> None:
    code = "import coordinator, workers; print(coordinator.__file__); print(workers.__file__)"
    command, environment = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": str(previous_release)}
    printed = subprocess.run(command, cwd=previous_release, env=environment, capture_output=True, text=True).stdout
    assert printed.count(str(previous_release)) == 2


class Fleet:
    """Starts processes of either release against the server of a stage."""

    def __init__(self, stage: Stage, previous: Path) -> None:
        self.stage, self._folders = stage, {"old": previous, "new": ROOT}

    def start(self, release: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `python -m MODULE ARGUMENTS` with the packages of a release."""
        folder = self._folders[release]
        environment = self.stage.environment("worker" if module == "workers.cli" else "coordinator")
        log = self.stage.directory / f"log-{len(self.stage.started)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=folder, env=environment | {"PYTHONPATH": str(folder)},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.stage.started.append(process)
        return process

    def coordinator(self, release: str) -> subprocess.Popen[bytes]:
        return self.start(release, "coordinator.cli", "start")

    def workers(self, release: str) -> subprocess.Popen[bytes]:
        options = ["--processes", "1", "--concurrency", "20", "--lease", str(LEASE), "--grace", "5"]
        return self.start(release, "workers.cli", "start", self.stage.app, *options)


def kill_host(process: subprocess.Popen[bytes]) -> None:
    """Kill a supervisor with all its worker processes: no process of the host can abandon the runs."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def steps_saved(stage: Stage, count: int) -> bool:
    """Return True when every run has begun its step number COUNT, so that the steps before it are saved."""
    steps = stage.steps()
    return len(steps) == RUNS and all(events[-1].number >= count for events in steps.values())


@pytest.mark.parametrize("coordinator", ["old", "new"])
@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")], ids=["upgrade", "rollback"])
def test_lost_host_of_one_release_is_resumed_by_the_other(
    stage: Stage, previous_release: Path, first: str, second: str, coordinator: str
) -> None:
    fleet = Fleet(stage, previous_release)
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
    stage: Stage, previous_release: Path, first: str, second: str
) -> None:
    fleet = Fleet(stage, previous_release)
    fleet.coordinator(first)
    before = fleet.workers(first)
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": STEPS, "seconds": 0.2})] * RUNS)
        wait_for_start(stage, RUNS)
        wait_until(lambda: steps_saved(stage, 3), "every run has saved two steps")
        fleet.workers(second)
        before.send_signal(signal.SIGTERM)
        assert before.wait(60) == 0
        assert [handle.result(timeout=60) for handle in handles] == [STEPS] * RUNS
    for events in stage.steps().values():
        assert [event.number for event in events] == list(range(STEPS))


@pytest.mark.parametrize("release", ["old", "new"])
def test_commands_of_either_release_read_and_cancel_runs_of_the_other(
    stage: Stage, previous_release: Path, release: str
) -> None:
    fleet = Fleet(stage, previous_release)
    other = "new" if release == "old" else "old"
    fleet.coordinator(other)
    fleet.workers(other)
    command = [sys.executable, "-m", "coordinator.cli"]
    folder = previous_release if release == "old" else ROOT
    environment = stage.environment() | {"PYTHONPATH": str(folder)}

    def coordinator(*words: str) -> str:
        done = subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run = coordinator("enqueue", "steps", "total:=600", "seconds:=0.1").strip().split()[-1]
    wait_for_start(stage)
    assert "running" in coordinator("show", run)
    coordinator("cancel", run)
    wait_until(lambda: "cancelled" in coordinator("show", run), "the worker ended the cancelled run")
    coordinator("revive", run)
    wait_for_start(stage, 2)
    assert "running" in coordinator("runs", "--status", "running")
