"""Workers, coordinators and clients of an old version and of this one work together while they are killed and rolled.

The old versions are the previous commit and the last commit of the earlier piece of work (see versions.py). With
`RUNS_TEST_PREVIOUS=COMMIT` they are that one commit. The tests need the git history.

The long form has more kills: `RUNS_TEST_KILLS=40 scripts/test tests/e2e/test_upgrades.py`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coordinator import Client, Status
from tests.e2e.processes import ROOT, Stage
from tests.e2e.upgrade_load import ClientProcess, Load
from tests.e2e.versions import COMMITS, PACKAGES, Fleet, extract, git, kill_host, stop_cleanly
from tests.waiting import wait_until

KILLS = int(os.environ.get("RUNS_TEST_KILLS", "8"))
GIVEN = os.environ.get("RUNS_TEST_PREVIOUS")
SECONDS = 90  # for the runs of a round to begin, on a busy machine
OLD_VERSIONS = (GIVEN,) if GIVEN else ("previous commit", "earlier work")

pytestmark = [pytest.mark.matrix("the previous commit"), pytest.mark.timeout(300 + 10 * KILLS)]


class Mixture(NamedTuple):
    """How many of the two hosts of workers, and how many of the two coordinators, have the new version."""

    hosts: int
    coordinators: int


# All nine mixtures, in an order in which each step exchanges one host or one coordinator.
MIXTURES = tuple(Mixture(*pair) for pair in ((0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1), (0, 2), (1, 2), (2, 2)))


@pytest.fixture(scope="module", params=OLD_VERSIONS)
def old_version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Extract an old version into a folder, and return the folder."""
    return extract(request.param, tmp_path_factory.mktemp("versions") / "old_version")


@pytest.fixture
def fleet(stage: Stage, old_version: Path) -> Fleet:
    return Fleet(stage, {"old": old_version, "new": ROOT}, "tests.e2e.upgrade_app:runs")


@pytest.fixture
def load(stage: Stage, fleet: Fleet) -> Iterator[Load]:
    with Load(stage, fleet) as made:
        yield made


@pytest.mark.parametrize("name", OLD_VERSIONS)
def test_old_version_has_other_code_than_this_one(name: str, tmp_path: Path) -> None:
    extract(name, tmp_path / "old_version")  # skips the test if there is no history
    commit = COMMITS[name]() if name in COMMITS else name
    changed = git("diff", "--name-only", commit, "--", *PACKAGES).split()
    assert changed, f"{commit} has the same packages as this checkout: name an older commit with RUNS_TEST_PREVIOUS"


class Members:
    """Two processes of one role. `exchange` kills the older one of a version and starts another process."""

    def __init__(
        self, start: Callable[[str], subprocess.Popen[bytes]], kill: Callable[[subprocess.Popen[bytes]], None]
    ) -> None:
        self._start, self._kill = start, kill
        self._members = [("old", start("old")), ("old", start("old"))]  # the one that has worked for longer comes first

    def exchange(self, new: int) -> None:
        """Kill a process and start one, so that afterwards this number of the processes has the new version."""
        present = sum(version == "new" for version, _ in self._members)
        # If the number stays, the process that has worked for longer is replaced by one of the same version.
        victim = {1: "old", -1: "new"}.get(new - present, self._members[0][0])
        started = {1: "new", -1: "old"}.get(new - present, victim)
        one = next(member for member in self._members if member[0] == victim)
        self._members.remove(one)
        self._kill(one[1])
        self._members.append((started, self._start(started)))


def test_every_mixture_of_versions_finishes_all_runs_while_processes_are_killed(
    stage: Stage, fleet: Fleet, load: Load
) -> None:
    """Each kill hits a host and a coordinator with SIGKILL, and leads from one mixture to the next, there and back."""

    def kill_workers(host: subprocess.Popen[bytes]) -> None:
        now = stage.now()
        load.killed |= dict.fromkeys(kill_host(host), now)

    def kill_coordinator(coordinator: subprocess.Popen[bytes]) -> None:
        coordinator.kill()
        coordinator.wait()

    hosts = Members(fleet.workers, kill_workers)
    coordinators = Members(fleet.coordinator, kill_coordinator)
    there_and_back = itertools.cycle((*MIXTURES[1:], *MIXTURES[-2::-1]))
    for mixture in itertools.islice(there_and_back, KILLS):
        wait_until(partial(load.has_begun, load.enqueue()), "the new runs are under way", timeout=SECONDS)
        load.send_signals(2)
        load.look()
        hosts.exchange(mixture.hosts)
        coordinators.exchange(mixture.coordinators)
    wait_until(partial(load.has_begun, load.enqueue()), "the last runs are under way", timeout=SECONDS)
    load.finish()
    load.check(interrupted=True)
    both = {fleet.folders["old"].name, ROOT.name}
    at_work = load.versions_at_work().values()
    assert set().union(*at_work) == both
    assert both in at_work, "some runs were continued by the other version"


def test_roll_to_this_version_and_back_interrupts_runs_but_repeats_nothing(
    stage: Stage, fleet: Fleet, load: Load, tmp_path: Path
) -> None:
    """Roll as the guide says: the worker processes first, then the supervisor and the coordinator.

    A roll starts new worker processes with the packages that are on disk, under the supervisor that is there. So both pairs of
    a supervisor of one version and processes of the other are tested.
    """
    deployed = tmp_path / "deployed"  # a link to the packages that are on disk
    fleet.folders = {**fleet.folders, "deployed": deployed}

    def deploy(version: str) -> None:
        link = tmp_path / "next"
        link.symlink_to(fleet.folders[version])
        link.replace(deployed)

    deploy("old")
    coordinator, workers = fleet.coordinator("old"), fleet.workers("deployed", concurrency=40, processes=2)
    for version in ("new", "old"):
        wait_until(partial(load.has_begun, load.enqueue()), "the new runs are under way", timeout=SECONDS)
        load.send_signals(2)
        deploy(version)
        said = fleet.command(version, "roll", module="workers.cli")
        assert "rolled: 2 processes replaced" in said, said
        wait_until(partial(load.has_begun, load.enqueue()), "runs begin after the roll", timeout=SECONDS)
        load.send_signals(2)
        load.look()
        successor = fleet.workers("deployed", concurrency=40, processes=2)
        wait_until(lambda: fleet.log_of(successor).count(" ready: ") == 2, "the successors are ready", timeout=SECONDS)  # noqa: B023
        stop_cleanly(workers)
        workers = successor
        stop_cleanly(coordinator)
        coordinator = fleet.coordinator(version)
    wait_until(partial(load.has_begun, load.enqueue()), "runs begin after the way back", timeout=SECONDS)
    load.finish()
    load.check(interrupted=False)
    both = {fleet.folders["old"].name, ROOT.name}
    assert both in load.versions_at_work().values(), "some runs were continued by the other version"
    for process in (workers, coordinator):
        stop_cleanly(process)


# These two tests are about protocols that change rarely, so one old version is enough.
@pytest.mark.parametrize("old_version", OLD_VERSIONS[-1:], indirect=True)
def test_run_that_kills_processes_of_both_versions_is_dead_after_three_strikes(stage: Stage, fleet: Fleet) -> None:
    for version in ("old", "new"):
        fleet.coordinator(version)
        fleet.workers(version)
    with Client(stage.url, stage.namespace) as client:
        poison, good = client.enqueue("poison"), client.enqueue("steps", {"total": 20})
        assert poison.wait(timeout=120) is Status.DEAD
        assert poison.view().counters.strikes == 3, "the strikes of both versions count together"
        assert good.result(timeout=60) == 20
    attempts = [event for event in stage.events() if event.run == poison.id]
    assert len(attempts) == 3


@pytest.mark.parametrize("old_version", OLD_VERSIONS[-1:], indirect=True)
@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")], ids=["upgrade", "rollback"])
def test_records_of_a_killed_program_of_one_version_are_continued_by_the_other(
    fleet: Fleet, first: str, second: str
) -> None:
    """A program that executes its runs itself saves records, without workers. See docs/guides/checkpoints-alone.md."""
    ids = [f"alone-{number}" for number in range(5)]
    for version, turns in ((first, 0), (second, 3), (first, 4)):
        program = ClientProcess(fleet, version)
        if turns:
            found: list[list[Any]] = []

            def continue_all() -> bool:
                found.extend(program.call("continue_records"))  # noqa: B023  # The function is called immediately.
                return len(found) >= len(ids)  # noqa: B023

            wait_until(continue_all, "the lease of the killed program ends")
            messages = [{"turn": number} for number in range(turns)]
            assert sorted(found) == [[id, turns, messages] for id in ids], "each record once, as it was saved last"
        else:
            for id in ids:
                program.call("save_record", id=id, turns=3)
        program.kill()
