"""Workers, coordinators and clients of an earlier commit and of this one work together while they are killed.

The earlier commit is the newest one that is at least six hours older than HEAD, because users update from one piece of work to the
next, and the commits of one piece of work are closer together. `RUNS_TEST_PREVIOUS` names another one. Its packages are extracted
from git, so these tests need the history.

The long form has more kills: `RUNS_TEST_KILLS=40 scripts/test tests/e2e/test_upgrades.py`.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tarfile
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from coordinator import Client, Handle
from tests.e2e.processes import ROOT, Stage, wait_for_start
from tests.e2e.test_versions import Fleet, git, kill_host
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("the previous commit")

KILLS = int(os.environ.get("RUNS_TEST_KILLS", "2"))
STEPS, SECONDS = 30, 0.1
RELEASES = ("old", "new")
APART = 6 * 3600  # seconds between two pieces of work, at least


def earlier_commit() -> str:
    """Return the commit from which users update to this one."""
    if given := os.environ.get("RUNS_TEST_PREVIOUS"):
        return given
    until = int(git("log", "-1", "--format=%ct", "HEAD")) - APART
    found = git("log", "-1", f"--before={until}", "--format=%H", "HEAD").decode().strip()
    assert found, "the history is too short: clone the repository with its whole history"
    return found


def test_the_earlier_commit_has_other_code_than_this_one() -> None:
    changed = git("diff", "--name-only", earlier_commit(), "HEAD", "--", "coordinator", "workers").split()
    assert changed, f"{earlier_commit()} has the same packages as HEAD: name an older one with RUNS_TEST_PREVIOUS"


@pytest.fixture(scope="module")
def previous_commit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Extract the packages and the test handlers of the previous commit into a folder."""
    folder = tmp_path_factory.mktemp("previous")
    archive = git("archive", "--format=tar", earlier_commit(), "coordinator", "workers", "tests")
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def enqueue_by_command(stage: Stage, folder: Path, total: int) -> str:
    """Enqueue a run with the command of a release, and return its id."""
    words = [sys.executable, "-m", "coordinator.cli", "enqueue", "steps", f"total:={total}", f"seconds:={SECONDS}"]
    environment = stage.environment() | {"PYTHONPATH": str(folder)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_processes_of_both_commits_finish_all_runs_while_they_are_killed(stage: Stage, previous_commit: Path) -> None:
    """Every kill hits the host and the coordinator of the other commit than the kill before, so each takes over from each."""
    fleet = Fleet(stage, previous_commit)
    folders = {"old": previous_commit, "new": ROOT}
    coordinators = {release: fleet.coordinator(release) for release in RELEASES}
    hosts = {release: fleet.workers(release) for release in RELEASES}
    with Client(stage.url, stage.namespace) as client:
        handles = []
        for release in itertools.islice(itertools.cycle(RELEASES), KILLS):
            fresh = client.enqueue_many([("steps", {"total": STEPS, "seconds": SECONDS})] * 4)
            fresh.append(client.handle(enqueue_by_command(stage, folders[release], STEPS)))
            wait_until(partial(have_begun, stage, fresh), "the new runs have done some steps", timeout=60)
            for processes, start in ((hosts, fleet.workers), (coordinators, fleet.coordinator)):
                kill_host(processes[release])
                processes[release] = start(release)
            handles += fresh
        assert [handle.result(timeout=90) for handle in handles] == [STEPS] * len(handles)
    for run, events in stage.steps().items():
        numbers = [event.number for event in events]
        assert sorted(set(numbers)) == list(range(STEPS)), f"run {run} did all its steps"
        assert len(numbers) - STEPS <= KILLS, f"run {run} repeated at most the step that a kill interrupted"


def have_begun(stage: Stage, handles: list[Handle[Any]]) -> bool:
    """Return True when each of these runs has done two steps, or more."""
    steps = stage.steps()
    return all(len(steps[handle.id]) > 2 for handle in handles)


def test_a_roll_to_this_commit_and_back_repeats_no_step(stage: Stage, previous_commit: Path) -> None:
    """Each fleet drains when its successor is there, and the coordinator changes with it."""
    fleet = Fleet(stage, previous_commit)
    coordinator, workers = fleet.coordinator("old"), fleet.workers("old")
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": 50, "seconds": SECONDS})] * 4)
        wait_for_start(stage, 4)
        for release in ("new", "old"):
            before = len(stage.events("start"))
            successor = fleet.workers(release)
            coordinator.send_signal(signal.SIGTERM)
            assert coordinator.wait(60) == 0
            coordinator = fleet.coordinator(release)
            workers.send_signal(signal.SIGTERM)
            assert workers.wait(60) == 0
            workers = successor
            wait_for_start(stage, before + 4)
        assert [handle.result(timeout=60) for handle in handles] == [50] * 4
    for events in stage.steps().values():
        assert [event.number for event in events] == list(range(50))
