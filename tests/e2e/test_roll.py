"""A roll replaces every process of a fleet, and no run is affected.

If the new code does not work, the old code continues.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coordinator import Client, Handle, Status
from coordinator.store.keys import Keys
from tests.e2e.processes import ROOT, Stage, children, stop
from tests.waiting import wait_until

LONG_LEASE = 60.0
ROLLS = int(os.environ.get("RUNS_TEST_ROLLS", "2"))
GOOD = "from tests.e2e.roll_app import registry\nruns = registry({})\n"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def deploy(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the code that the next process loads."""
    monkeypatch.setenv("PYTHONPATH", f"{stage.directory}{os.pathsep}{ROOT}")
    monkeypatch.setenv(
        "PYTHONDONTWRITEBYTECODE", "1"
    )  # Python can not tell apart two versions with the same second and the same length.

    def write(text: str) -> None:
        new = stage.directory / "deployed.new"
        new.write_text(text)
        new.replace(stage.directory / "deployed.py")

    write(GOOD.format(1))
    return write


def start(
    stage: Stage, processes: int = 2, concurrency: int = 50, grace: float = 5.0, lease: float = LONG_LEASE
) -> subprocess.Popen[bytes]:
    options = [
        "--processes",
        processes,
        "--concurrency",
        concurrency,
        "--lease",
        lease,
        "--grace",
        grace,
        "--timeout",
        30,
    ]
    fleet = stage._start("workers", "start", "deployed:runs", *map(str, options))
    wait_until(lambda: output_of(stage, fleet).count(" ready: ") == processes, "all of the fleet are ready", 120)
    return fleet


def ready(stage: Stage, count: int) -> None:
    wait_until(lambda: stage.logs().count(" ready: ") >= count, f"{count} processes are ready", timeout=60)


def run_roll(stage: Stage, *options: str, timeout: float = 240) -> tuple[int, str]:
    """Return the exit code of `workers roll` and its output."""
    asked = stage._start("workers", "roll", *options)
    code = asked.wait(timeout)
    return code, output_of(stage, asked)


def output_of(stage: Stage, process: subprocess.Popen[bytes]) -> str:
    return (stage.directory / f"log-{stage.started.index(process)}").read_text()


def start_runs(stage: Stage, client: Client, count: int) -> list[Handle[Any]]:
    """Return runs that have started and have saved something."""
    handles = client.enqueue_many([("walks", {})] * count)
    wait_until(lambda: len({event.run for event in stage.events("saved")}) == count, "all have saved a step", 120)
    return list(handles)


def assert_all_end_well(stage: Stage, handles: Sequence[Handle[Any]]) -> None:
    """Check that no run is lost, failed or has a strike, that all steps are done, and that no acknowledged step was repeated."""
    stage.open_gate("enough")
    results = [handle.result(120) for handle in handles]
    views = [handle.view() for handle in handles]
    assert Counter(view.status for view in views) == {Status.COMPLETED: len(handles)}
    assert {(view.counters.strikes, view.counters.failures, view.counters.recoveries) for view in views} == {(0, 0, 0)}
    steps, acknowledged = defaultdict(set), defaultdict(set)
    for event in stage.events():
        if event.what == "saved":
            acknowledged[event.run].add(event.number)
        elif event.what == "step":
            assert event.number not in acknowledged[event.run], f"step {event.number} of {event.run} was done twice"
            steps[event.run].add(event.number)
    for handle, result in zip(handles, results, strict=True):
        assert steps[handle.id] == set(range(result)), f"the steps of {handle.id} are not complete"


def assert_continues(stage: Stage, handles: Sequence[Handle[Any]]) -> None:
    """Check that each run does another step from now on."""
    before = len(stage.events("saved"))
    wanted = {handle.id for handle in handles}
    wait_until(lambda: {event.run for event in stage.events("saved")[before:]} >= wanted, "all runs continue", 60)


# ---- the new code works ------------------------------------------------------------------------------------------------


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(900)
def test_repeated_rolls_lose_no_run(stage: Stage, client: Client, deploy: Callable[[str], None]) -> None:
    fleet = start(stage, processes=4, concurrency=100)
    handles = start_runs(stage, client, 200)
    for number in range(ROLLS):
        before = set(children(fleet.pid))
        deploy(GOOD.format(1) + f"# {number}\n")
        code, said = run_roll(stage)
        assert (code, "4 processes replaced" in said) == (0, True), said
        assert len(children(fleet.pid)) == 4
        assert not before & set(children(fleet.pid))
    assert_continues(stage, handles)
    assert_all_end_well(stage, handles)
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_run_moves_only_once_in_a_roll(stage: Stage, client: Client, deploy: Callable[[str], None]) -> None:
    """Check that it moves once if the new processes have room for it, and that it knows its previous worker."""
    fleet = start(stage, processes=4, concurrency=40)
    handles = start_runs(stage, client, 40)
    first = {worker.code for worker in client.workers()}
    deploy(GOOD.format(1) + "# another\n")
    assert run_roll(stage)[0] == 0
    views = [handle.view() for handle in handles]
    assert Counter((view.counters.releases, view.attempt) for view in views) == {(1, 2): 40}
    assert {told.code for view in views for told in view.story} == first, "the history names the earlier owners"
    second = {view.code for view in views}
    assert len(first) == len(second) == 1, "a version each"
    assert first != second
    assert {worker.code for worker in client.workers()} == second
    assert_all_end_well(stage, handles)
    assert stop(fleet) == 0


def test_sighup_rolls_the_fleet(stage: Stage, client: Client, deploy: Callable[[str], None]) -> None:
    fleet = start(stage)
    handles = start_runs(stage, client, 10)
    before = set(children(fleet.pid))
    fleet.send_signal(signal.SIGHUP)
    wait_until(lambda: "roll finished: 2 of 2 replaced" in stage.logs(), "the roll is over", 120)
    assert len(children(fleet.pid)) == 2
    assert not before & set(children(fleet.pid))
    assert_all_end_well(stage, handles)
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_supervisors_of_a_fleet_roll_one_after_the_other(
    stage: Stage, client: Client, deploy: Callable[[str], None]
) -> None:
    fleets = [start(stage), start(stage)]
    handles = start_runs(stage, client, 10)
    before = {pid for fleet in fleets for pid in children(fleet.pid)}
    asked = stage._start("workers", "roll", "--json")
    both = []

    def over() -> bool:
        seen = [[len(children(fleet.pid)) for fleet in fleets] for _ in range(2)]
        # One supervisor may have ended its roll when the test looks at the other.
        both.extend(seen[:1] if seen[0] == seen[1] else [])
        return asked.poll() is not None

    wait_until(over, "the roll is over", 240)
    assert asked.returncode == 0, output_of(stage, asked)
    assert [3, 3] not in both, "two supervisors rolled at once"
    assert {tuple(counts) for counts in both} >= {(3, 2), (2, 3)}, "each of them rolled"
    told = json.loads(output_of(stage, asked))
    assert (told["rolled"], told["replaced"], len(told["parts"])) == (True, 4, 2)
    assert not before & {pid for fleet in fleets for pid in children(fleet.pid)}
    assert_all_end_well(stage, handles)
    assert [stop(fleet) for fleet in fleets] == [0, 0]


# ---- the new code does not work ----------------------------------------------------------------------------------------


@pytest.mark.matrix("more cases with real processes")
def test_code_that_can_not_be_imported_stops_the_roll_and_the_old_code_continues(
    stage: Stage, client: Client, deploy: Callable[[str], None]
) -> None:
    fleet = start(stage)
    handles = start_runs(stage, client, 10)
    before = set(children(fleet.pid))
    deploy("import no_such_module\n")
    code, said = run_roll(stage)
    assert code == 1
    (sentence,) = said.splitlines()
    assert "can't be imported: No module named 'no_such_module' (" in sentence
    assert "deployed.py, line 1)" in sentence
    assert "0 of 2 replaced" in sentence
    assert sentence.endswith("the other processes continue with the old code)")
    assert set(children(fleet.pid)) == before
    assert_continues(stage, handles)
    assert {handle.view().attempt for handle in handles} == {1}
    deploy(GOOD.format(1))
    assert run_roll(stage)[0] == 0, "the fixed code is rolled out"
    assert_all_end_well(stage, handles)
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("count", [3, 30])
def test_code_that_rejects_every_run_stops_the_roll(
    stage: Stage, client: Client, deploy: Callable[[str], None], count: int
) -> None:
    stage.coordinator()
    fleet = start(stage, processes=3, concurrency=20)
    handles = start_runs(stage, client, count)
    before = set(children(fleet.pid))
    deploy(GOOD.format("1, misfit=True"))
    code, said = run_roll(stage)
    assert code == 1
    assert "a new process could not start any run of kind 'walks'" in said
    assert len(before & set(children(fleet.pid))) >= 1, "some of the old processes continue"
    assert {handle.view().status for handle in handles} <= {Status.RUNNING, Status.DELAYED, Status.QUEUED}
    deploy(GOOD.format(1))
    assert run_roll(stage)[0] == 0
    stage.open_gate("enough")
    assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: count}
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_roll_to_a_new_schema_and_back(stage: Stage, client: Client, deploy: Callable[[str], None]) -> None:
    fleet = start(stage)
    handles = start_runs(stage, client, 10)
    deploy(GOOD.format(2))
    assert run_roll(stage)[0] == 0
    assert_continues(stage, handles)
    assert {handle.view().schema for handle in handles} == {2}
    deploy(GOOD.format(1))
    assert run_roll(stage)[0] == 0
    views = [handle.view() for handle in handles]
    assert {view.status for view in views} == {Status.QUEUED}
    (why,) = {view.why for view in views}
    assert (
        "no live worker can read the run's checkpoint: it has schema 2, and the live workers handle other schemas"
        in why
    )
    schemas = defaultdict(list)
    for event in stage.events("start"):
        schemas[event.run].append(event.number)
    assert all(seen == sorted(seen) and set(seen) == {1, 2} for seen in schemas.values()), (
        "an old process took new state"
    )
    deploy(GOOD.format(2))
    assert run_roll(stage)[0] == 0
    assert_all_end_well(stage, handles)
    assert stop(fleet) == 0


# ---- roll requests, and processes that die during a roll ---------------------------------------------------------------


@pytest.mark.matrix("commands, case by case")
def test_roll_of_an_unknown_fleet_is_reported(stage: Stage) -> None:
    code, said = run_roll(stage, "--fleet", "elsewhere")
    assert code == 3
    assert "fleet 'elsewhere' has no running supervisor" in said


@pytest.mark.matrix("more cases with real processes")
def test_roll_continues_without_its_command_and_a_second_roll_is_refused(
    stage: Stage, client: Client, deploy: Callable[[str], None]
) -> None:
    fleet = start(stage)
    before = set(children(fleet.pid))
    deploy(GOOD.format("1, waits=True"))
    asked = stage._start("workers", "roll", "--at-once", "2")
    wait_until(lambda: len(children(fleet.pid)) == 4, "two successors have started")
    code, said = run_roll(stage)
    assert code == 3
    assert "fleet 'default' is rolling already (requested by" in said
    asked.send_signal(signal.SIGINT)
    assert asked.wait(30) == 130
    assert "the roll continues without this command" in output_of(stage, asked)
    stage.open_gate("lifespan")
    wait_until(lambda: "roll finished: 2 of 2 replaced" in stage.logs(), "the roll is over", 120)
    assert not before & set(children(fleet.pid))
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_child_that_dies_during_a_roll_is_replaced(stage: Stage, client: Client, deploy: Callable[[str], None]) -> None:
    fleet = start(stage, processes=1)
    handles = start_runs(stage, client, 5)
    (old,) = children(fleet.pid)
    deploy(GOOD.format("1, waits=True"))
    asked = stage._start("workers", "roll")
    wait_until(lambda: len(children(fleet.pid)) == 2, "a successor has started")
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: old not in children(fleet.pid), "the old one is gone")
    stage.open_gate("lifespan")
    assert asked.wait(120) == 0, output_of(stage, asked)
    assert len(children(fleet.pid)) == 1
    assert_continues(stage, handles)
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_supervisor_that_dies_during_a_roll_is_reported_and_the_roll_continues(
    stage: Stage, client: Client, deploy: Callable[[str], None]
) -> None:
    fleet = start(stage, processes=1)
    deploy(GOOD.format("1, waits=True"))
    asked = stage._start("workers", "roll")
    lock = Keys(stage.namespace, 0).lock("roll:default")
    wait_until(lambda: len(children(fleet.pid)) == 2 and stage.place.admin.exists(lock), "a successor has started")
    assert 0 < stage.place.admin.pttl(lock) <= 10_000
    fleet.kill()
    assert asked.wait(60) == 1
    assert f"has not been seen for 15 s (supervisor {socket.gethostname()}:{fleet.pid}: 0 of 1" in output_of(
        stage, asked
    )
    wait_until(lambda: not stage.place.admin.exists(lock), "the lock is free")
    stage.open_gate("lifespan")
    another = start(stage, processes=1)
    assert run_roll(stage)[0] == 0
    assert stop(another) == 0


@pytest.mark.matrix("more cases with real processes")
def test_fleet_that_is_stopped_during_a_roll_ends(stage: Stage, client: Client, deploy: Callable[[str], None]) -> None:
    fleet = start(stage)
    handles = start_runs(stage, client, 5)
    deploy(GOOD.format("1, waits=True"))
    asked = stage._start("workers", "roll")
    wait_until(lambda: len(children(fleet.pid)) == 3, "a successor has started")
    assert stop(fleet, timeout=60) == 0
    assert asked.wait(60) == 1, output_of(stage, asked)
    assert "the supervisor was stopped during the roll" in output_of(stage, asked)
    assert {(handle.view().status, handle.view().counters.strikes) for handle in handles} == {(Status.QUEUED, 0)}
    assert not client.workers()


# ---- a whole fleet is killed; one worker is drained --------------------------------------------------------------------


@pytest.mark.matrix("more cases with real processes")
def test_killed_fleet_continues_its_runs_when_it_is_restarted(
    stage: Stage, client: Client, deploy: Callable[[str], None]
) -> None:
    """Check that the new supervisor notices the dead processes: there is no coordinator that recovers an expired lease."""
    fleet = start(stage, lease=5.0)
    handles = start_runs(stage, client, 20)
    pids = [fleet.pid, *children(fleet.pid)]
    for pid in pids:
        # No child gets time to notice that its supervisor is gone, and to release its runs.
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    fleet.wait()
    killed = len(stage.events("start"))
    before = stage.now()
    start(stage, lease=5.0)
    wait_until(lambda: len(stage.events("start")) - killed >= 20, "all runs continue", LONG_LEASE / 2)
    print(f"going again {stage.now() - before:.2f} s after the start")
    assert {handle.view().counters.recoveries for handle in handles} == {1}
    assert {worker.pid for worker in client.workers()}.isdisjoint(pids)


@pytest.mark.matrix("more cases with real processes")
def test_worker_on_a_clone_of_this_machine_keeps_its_runs(
    stage: Stage, client: Client, deploy: Callable[[str], None]
) -> None:
    """Check that heartbeats count for more than a missing process.

    Clones of one memory snapshot have the same boot id and the same pids. So a live worker of another clone has a mark of this
    boot whose process does not exist here.
    """
    start(stage, processes=1, lease=2.0)
    handles = start_runs(stage, client, 5)
    (worker,) = client.workers()
    key = Keys(stage.namespace, 0).worker(worker.id)
    boot, space, _, started = stage.place.admin.hget(key, "mark").split()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stage.place.admin.hset(key, "mark", b"%s %s %d %s" % (boot, space, gone.pid, started))
    start(stage, processes=1, lease=2.0)
    wait_until(
        lambda: f"worker {worker.id} is alive, although its process does not exist" in stage.logs(), "the look", 60
    )
    assert worker.id in {one.id for one in client.workers()}
    assert_continues(stage, handles)
    assert {handle.view().attempt for handle in handles} == {1}


@pytest.mark.matrix("more cases with real processes")
def test_other_fleets_on_the_host_are_left_alone(stage: Stage, client: Client, deploy: Callable[[str], None]) -> None:
    start(stage)
    handles = start_runs(stage, client, 10)
    start(stage)
    assert_continues(stage, handles)
    assert {handle.view().attempt for handle in handles} == {1}


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("by", ["id", "beginning", "host:pid"])
def test_drained_worker_releases_its_runs_and_is_replaced(
    stage: Stage, client: Client, deploy: Callable[[str], None], by: str
) -> None:
    fleet = start(stage)
    handles = start_runs(stage, client, 10)
    wait_until(
        lambda: all(one.memory > 2**20 for one in client.workers()),
        "each worker has reported its memory with a heartbeat",
    )
    worker, other = client.workers()
    name = {"id": worker.id, "beginning": worker.id[:8], "host:pid": f"{worker.host}:{worker.pid}"}[by]
    stage.run("workers", "drain", name)
    wait_until(lambda: worker.pid not in children(fleet.pid), "it has ended")
    wait_until(lambda: len(children(fleet.pid)) == 2, "another one is in its place")
    assert other.pid in children(fleet.pid)
    assert_continues(stage, handles)
    assert_all_end_well(stage, handles)
    unknown = stage._start("workers", "drain", "nobody")
    assert unknown.wait(30) == 3
    assert "there is no worker 'nobody'" in output_of(stage, unknown)
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_drain_request_reaches_a_worker_by_heartbeat_when_the_notification_is_lost(
    stage: Stage, client: Client, deploy: Callable[[str], None]
) -> None:
    """Check that the heartbeat delivers the request, because the notification may get lost."""
    options = ["--processes", "1", "--lease", "2"]
    fleet = stage._start("workers", "start", "deployed:runs", *options)
    ready(stage, 1)
    (pid,) = children(fleet.pid)
    (worker,) = client.workers()
    stage.place.admin.hset(Keys(stage.namespace, 0).worker(worker.id), "drain", "1")
    wait_until(lambda: children(fleet.pid) and pid not in children(fleet.pid), "another one is in its place")
    assert stop(fleet) == 0
