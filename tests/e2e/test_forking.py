"""Handlers that start processes and end them. Only those processes end: the worker and its other runs continue."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from coordinator import Client, Status
from tests.e2e.processes import Stage, children, stop
from tests.waiting import wait_until

APP = "tests.e2e.forking_app:runs"
KINDS = (
    "uses_pool",
    "terminates_process",
    "terminates_process_async",
    "kills_group_of_tool",
    "hangs_up_group_of_tool",
)
UNASKED = "ignored SIGTERM"

pytestmark = pytest.mark.timeout(240)


def start(stage: Stage) -> subprocess.Popen[bytes]:
    """Start one worker process, and return its supervisor when the worker is ready."""
    fleet = stage._start("workers", "start", APP, "--lease", "60", "--grace", "60")
    wait_until(lambda: " ready: " in stage.logs(), "the worker to be ready", 60)
    return fleet


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_handler_that_ends_its_own_child_does_not_drain_its_worker(
    stage: Stage, client: Client, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setenv("RUNS_LOOP", loop)
    fleet = start(stage)
    (worker,) = children(fleet.pid)
    neighbours = client.enqueue_many([("neighbour", {})] * 3)
    wait_until(lambda: len(stage.events("start")) == 3, "the neighbours to run")
    for kind in KINDS:
        handle = client.enqueue(kind)
        pid, ran_on, ended_by = handle.result(60)
        assert (pid, ran_on, ended_by) == (worker, loop, -signal.SIGTERM), kind
        assert handle.view().attempt == 1
    assert children(fleet.pid) == [worker]
    stage.open_gate("enough")
    assert {handle.result(60) for handle in neighbours} == {worker}
    assert {handle.view().attempt for handle in neighbours} == {1}
    assert "draining" not in stage.logs()
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_a_worker_names_the_likely_cause_of_a_signal_that_its_supervisor_did_not_order(
    stage: Stage, client: Client
) -> None:
    fleet = start(stage)
    (worker,) = children(fleet.pid)
    os.kill(worker, signal.SIGTERM)
    wait_until(lambda: UNASKED in stage.logs(), "the warning")
    (warning,) = [line for line in stage.logs().splitlines() if UNASKED in line]
    assert "WARNING" in warning
    assert "process group" in warning
    assert f"workers drain {worker}" in warning
    assert children(fleet.pid) == [worker]
    stage.run("workers", "drain", str(worker))
    wait_until(lambda: children(fleet.pid) not in ([], [worker]), "the drained worker to be replaced", 60)
    assert stop(fleet) == 0


def test_a_signal_to_the_whole_control_group_drains_once(stage: Stage, client: Client) -> None:
    """systemd sends SIGTERM to the supervisor and to its workers, in any order."""
    fleet = start(stage)
    (worker,) = children(fleet.pid)
    (handle,) = client.enqueue_many([("neighbour", {})])
    wait_until(lambda: stage.events("start"), "the run to start")
    os.kill(worker, signal.SIGTERM)
    fleet.send_signal(signal.SIGTERM)
    wait_until(lambda: "draining 1 run" in stage.logs(), "the drain")
    assert UNASKED not in stage.logs()
    fleet.send_signal(signal.SIGTERM)  # skips the grace
    assert fleet.wait(60) == 0, stage.logs()
    view = handle.view()
    assert (view.status, view.counters.strikes) == (Status.QUEUED, 0)
