"""A fleet keeps its promises whichever of its processes dies, and always shuts down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator import Client, Status
from coordinator.config import Settings
from coordinator.store.keys import Keys
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import Stage, children, stop, wait_for_start
from tests.servers import Server
from tests.waiting import eventually, wait_until
from workers.process.options import WorkerOptions
from workers.supervisor.supervisor import Supervisor

APP, HARD = "tests.e2e.app:runs", "tests.e2e.fleet_app:runs"
LONG_LEASE = 60.0  # This lease is longer than any test.


def start(
    stage: Stage, *places: str, processes: int = 1, grace: float = 5.0, lease: float = LONG_LEASE
) -> subprocess.Popen[bytes]:
    """Start a fleet whose leases outlast the test, so that only the supervisor can free the runs of a dead child."""
    options = ["--processes", processes, "--concurrency", 20, "--lease", lease, "--grace", grace]
    return stage._start("workers", "start", *(places or (APP, HARD)), *map(str, options))


def gone(pid: int) -> bool:
    """Return True if the process has ended. A zombie that is not reaped yet has ended, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def ready(stage: Stage, count: int = 1) -> None:
    wait_until(lambda: stage.logs().count(" ready: ") >= count, f"{count} processes are ready", timeout=60)


def first_child(fleet: subprocess.Popen[bytes]) -> int:
    return wait_until(lambda: children(fleet.pid), "the fleet has a process")[0]


@pytest.fixture
def orphans(stage: Stage) -> Iterator[Callable[[], list[int]]]:
    """Return the processes that a handler left behind."""

    def found() -> list[int]:
        return [event.number for event in stage.events("heir")]

    yield found
    for pid in found():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# ---- a child dies ----------------------------------------------------------------------------------------------------


def test_runs_of_a_killed_child_restart_elsewhere_immediately(stage: Stage, client: Client) -> None:
    """Check that the supervisor abandons the runs: there is no coordinator, and the lease never expires."""
    fleet = start(stage, processes=2)
    handles = client.enqueue_many([("holder", {})] * 30)
    wait_for_start(stage, 30)
    pid = first_child(fleet)
    hit = {event.run for event in stage.events("start") if event.pid == pid}
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: hit == {e.run for e in stage.events("start") if e.run in hit and e.pid != pid},
        "all are elsewhere",
        LONG_LEASE / 2,
    )
    assert {handle.view().status for handle in handles} == {Status.RUNNING}
    assert stop(fleet) == 0
    assert {handle.view().status for handle in handles} == {Status.QUEUED}


def test_killed_child_is_abandoned_although_its_own_processes_live_on(
    stage: Stage, client: Client, orphans: Callable[[], list[int]]
) -> None:
    """Leave a forked process behind that holds the child's pipes open: the supervisor must not wait until they close."""
    fleet = start(stage)
    handle = client.enqueue("forks", {})
    assert handle.result(LONG_LEASE / 2) == "went on"
    assert not any(gone(pid) for pid in orphans()), "the test shows nothing if they have ended"
    assert len(orphans()) == 2
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("code", [0, 1])
def test_handler_that_exits_its_process_gets_a_strike(stage: Stage, client: Client, code: int) -> None:
    """Ignore the exit code, because a handler can choose it."""
    stage.coordinator()  # After the second strike the run is delayed.
    fleet = start(stage)
    handle = client.enqueue("exits", {"code": code})
    assert handle.wait(90) == Status.DEAD
    assert handle.view().counters.strikes == 3
    assert len(stage.events("start")) == 3
    assert stop(fleet) == 0


def test_standard_input_of_a_handler_is_empty(stage: Stage, client: Client) -> None:
    """Give handlers an empty standard input. The supervisor's commands reach a child another way."""
    start(stage)
    assert client.enqueue("reads_stdin", {}).result(60) == ""


# ---- children that can't start ---------------------------------------------------------------------------------------


@pytest.mark.matrix("more cases with real processes")
def test_failing_lifespan_is_reported_and_restarted_slowly_without_claims(stage: Stage, client: Client) -> None:
    handle = client.enqueue("never", {})
    fleet = start(stage, "tests.e2e.fleet_app:raising")
    wait_until(
        lambda: "end as soon as they start (4 times" in stage.logs(), "the supervisor has had enough", timeout=60
    )
    tries = stage.logs().count("the lifespan raised OSError: no model here; no run was claimed")
    assert tries in (4, 5)
    assert handle.view().status == Status.QUEUED
    assert handle.view().attempt == 0
    assert stop(fleet, timeout=30) in (0, 3)


@pytest.mark.matrix("more cases with real processes")
def test_children_that_die_after_they_are_ready_are_restarted_slowly(stage: Stage) -> None:
    """Limit the restarts, because no run is to blame and so no strike would ever end them."""
    fleet = start(stage, "tests.e2e.fleet_app:dying")
    wait_until(
        lambda: "end as soon as they start (4 times" in stage.logs(), "the supervisor has had enough", timeout=60
    )
    assert stop(fleet, timeout=30) in (0, 1)


@pytest.mark.matrix("more cases with real processes")
async def test_supervisor_retries_a_process_that_can_not_be_started(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fail the start for lack of processes or files: this may pass, and must not end the fleet."""
    monkeypatch.setenv("JOURNAL", str(stage.journal))
    make, refused = asyncio.create_subprocess_exec, [BlockingIOError(11, "Resource temporarily unavailable")] * 3

    async def scarce(*arguments: Any, **options: Any) -> Any:
        if refused:
            raise refused.pop()
        return await make(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", scarce)
    files = len(os.listdir("/proc/self/fd"))
    fleet = Supervisor([APP], WorkerOptions(Settings(stage.urls["worker"], stage.namespace), processes=2))
    running = asyncio.create_task(fleet.run())
    await eventually(lambda: sum(child.ready for child in fleet.children.values()) == 2, "both are ready")
    fleet.stop()
    assert await running == 0
    assert caplog.text.count("could not be started") == 3
    assert len(os.listdir("/proc/self/fd")) <= files + 2, "what was opened for them is closed"


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("place", ["tests.e2e.fleet_app:hanging", HARD])
def test_stop_while_children_start_ends_immediately(stage: Stage, place: str) -> None:
    """Stop the fleet while the children are importing, or while they wait for a lifespan that never opens."""
    fleet = start(stage, place, processes=2)
    first_child(fleet)
    if place != HARD:
        mark = Path(f"{stage.journal}.endless")
        wait_until(lambda: mark.exists() and len(mark.read_text().splitlines()) == 2, "both wait for their lifespan")
    assert stop(fleet, timeout=30) == 0


@pytest.mark.matrix("more cases with real processes")
def test_stop_while_the_server_is_gone_ends_immediately(
    make_stage: MakeStage, start_server: Callable[[], Server]
) -> None:
    server = start_server()
    stage = make_stage(server)
    server.kill()
    fleet = start(stage)
    wait_until(lambda: "retrying for" in stage.logs(), "the fleet waits for the server")
    before = stage.now()
    fleet.send_signal(signal.SIGTERM)
    assert fleet.wait(25) == 0, stage.logs()
    assert stage.now() - before < 20, "without a stop it continues for 30 s"


# ---- shutdown --------------------------------------------------------------------------------------------------------


@pytest.mark.matrix("more cases with real processes")
def test_children_of_a_killed_supervisor_drain_and_end(stage: Stage, client: Client) -> None:
    fleet = start(stage, processes=2, grace=0.5)
    handles = client.enqueue_many([("holder", {})] * 10)
    wait_for_start(stage, 10)
    orphans = children(fleet.pid)
    fleet.kill()
    wait_until(lambda: all(gone(pid) for pid in orphans), "the children have ended")
    assert Counter(handle.view().status for handle in handles) == {Status.QUEUED: 10}
    assert {handle.view().counters.strikes for handle in handles} == {0}
    assert "Traceback" not in stage.logs()
    assert not client.workers()


def test_second_signal_skips_the_grace_period(stage: Stage, client: Client) -> None:
    fleet = start(stage)
    handle = client.enqueue("patient", {})
    wait_for_start(stage)
    fleet.send_signal(signal.SIGTERM)
    wait_until(lambda: "draining 1 run " in stage.logs(), "the drain has begun")
    assert stop(fleet, timeout=60) == 0
    view = handle.view()
    assert (view.status, view.counters.strikes, view.counters.releases) == (Status.QUEUED, 0, 1)
    assert "s of grace; a second signal skips the grace" in stage.logs()
    assert "to release their runs without grace; a process that has not ended in 45 s is killed" in stage.logs()


@pytest.mark.matrix("more cases with real processes")
def test_interrupt_of_the_process_group_shuts_down_in_order(stage: Stage, client: Client) -> None:
    """Send the signal to the whole process group, as Ctrl-C in a terminal does."""
    command = [str(Path(sys.executable).parent / "workers"), "start", APP, "--processes", "2", "--grace", "0.5"]
    environment = stage.environment("worker")
    with (stage.directory / "log-group").open("wb") as log:
        fleet = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    stage.started.append(fleet)
    handles = client.enqueue_many([("holder", {})] * 10)
    wait_for_start(stage, 10)
    pids = children(fleet.pid)
    os.killpg(fleet.pid, signal.SIGINT)
    assert fleet.wait(60) == 0
    assert all(gone(pid) for pid in pids)
    assert {(handle.view().status, handle.view().counters.strikes) for handle in handles} == {(Status.QUEUED, 0)}


@pytest.mark.matrix("more cases with real processes")
def test_process_whose_lifespan_fails_on_close_does_not_wait_for_a_plain_handler(stage: Stage, client: Client) -> None:
    fleet = start(stage, "tests.e2e.fleet_app:closing_badly")
    handle = client.enqueue("deaf", {})
    wait_for_start(stage)
    pid = first_child(fleet)
    assert stop(fleet, timeout=60) != 0
    assert gone(pid)
    assert (handle.view().status, handle.view().counters.strikes) == (Status.QUEUED, 0)


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(120)
async def test_child_that_does_not_end_is_killed_without_a_strike(
    stage: Stage, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block the event loop of the child, so that it does not handle the signal."""
    monkeypatch.setenv("JOURNAL", str(stage.journal))
    options = WorkerOptions(Settings(stage.urls["worker"], stage.namespace), grace=0.5, lease=LONG_LEASE)
    fleet = Supervisor(["tests.e2e.fleet_app:blocking"], options, exit_timeout=1.0)
    running = asyncio.create_task(fleet.run())
    handle = await asyncio.to_thread(client.enqueue, "blocks", {})
    await eventually(lambda: stage.events("start"), "the loop is blocked")
    fleet.stop()
    assert await running == 1
    view = await asyncio.to_thread(handle.view)
    assert (view.status, view.counters.strikes, view.counters.recoveries) == (Status.QUEUED, 0, 1)


# ---- what other users and processes see ------------------------------------------------------------------------------


def test_process_arguments_contain_no_secret(
    make_stage: MakeStage, start_server: Callable[..., Server], namespace: str
) -> None:
    server = start_server()
    server.admin.config_set("requirepass", "s3cret-word")
    stage = make_stage(f"redis://:s3cret-word@127.0.0.1:{server.port}/0")
    fleet = start(stage)
    ready(stage)
    for pid in [fleet.pid, *children(fleet.pid)]:
        assert b"s3cret-word" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert "s3cret-word" not in stage.logs()
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_children_survive_an_outage_and_leave_nothing_behind(
    make_stage: MakeStage, start_server: Callable[..., Server]
) -> None:
    server = start_server()
    stage = make_stage(server)
    fleet = start(stage, processes=2, lease=2.0)
    ready(stage, 2)
    pids = sorted(children(fleet.pid))
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": 40, "seconds": 0.1})] * 10)
        wait_for_start(stage, 10)
        server.kill()
        wait_until(lambda: stage.logs().count("heartbeat failed") >= 2, "both have noticed")
        server.restart()
        assert Counter(handle.wait(60) for handle in handles) == {Status.COMPLETED: 10}
    assert sorted(children(fleet.pid)) == pids
    assert {event.run: event.token for event in stage.events("start")} == {e.run: e.token for e in stage.events("step")}
    assert stop(fleet) == 0
    assert not server.admin.exists(Keys(stage.namespace, 0).workers())


def test_last_process_stops_the_embedded_server(stage: Stage, tmp_path: Path) -> None:
    stage.urls = {"worker": f"embedded://{tmp_path / 'here'}"}
    fleet = start(stage)
    ready(stage)
    server = int((tmp_path / "here" / "valkey.pid").read_text())
    assert stop(fleet) == 0
    wait_until(lambda: gone(server), "the server has gone with its last user")
