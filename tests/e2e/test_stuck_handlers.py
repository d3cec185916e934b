"""A plain handler that does not stop although its run is over: its process is replaced, and `/ready` names the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator import Client, Status
from tests.e2e.processes import ROOT, Stage, children, stop
from tests.e2e.test_health import get
from tests.servers import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(200)


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("how", ["cancelled by force", "lost with the lease"])
def test_process_of_a_hung_handler_is_replaced_when_its_run_is_over(stage: Stage, client: Client, how: str) -> None:
    port = free_port()
    options = ["--concurrency", "10", "--lease", "3", "--grace", "1", "--health", f"127.0.0.1:{port}"]
    fleet = stage._start("workers", "start", "tests.e2e.stuck_app:runs", *options)
    stage.coordinator()
    neighbours = client.enqueue_many([("neighbour", {})] * 3)
    wait_until(lambda: len(stage.events("start")) == 3, "the neighbours to run", 60)
    handle = client.enqueue("hangs")
    wait_until(lambda: stage.events("hangs"), "the handler to hang")
    (before,) = children(fleet.pid)
    if how == "cancelled by force":
        handle.cancel(grace=0.5)
        assert handle.wait(60) == Status.CANCELLED
    else:
        os.kill(before, signal.SIGSTOP)
        wait_until(lambda: handle.view().counters.recoveries > 0, "the coordinator to recover the run", 60)
        handle.cancel()
        os.kill(before, signal.SIGCONT)
    reason = f"worker process {before} is being replaced: the handler of run {handle.id} does not stop"
    wait_until(lambda: reason in get(port, "/ready")[1], "/ready to name the run", 60)
    wait_until(lambda: before not in children(fleet.pid), "the process to be replaced", 60)
    wait_until(lambda: get(port, "/ready")[0] == 200, "the new process to be ready", 60)
    stage.open_gate("all")
    assert {neighbour.result(60) for neighbour in neighbours} == set(children(fleet.pid))
    assert stage.logs().count(f"run {handle.id} belongs to another owner: its handler is stopped") <= 1
    assert {neighbour.view().counters.failures for neighbour in neighbours} == {0}
    if how == "cancelled by force":
        assert {neighbour.view().counters.strikes for neighbour in neighbours} == {0}
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_hung_suspect_does_not_keep_its_process_from_other_runs(stage: Stage, client: Client) -> None:
    """A suspect is alone in its process, so a hung one would keep all slots of the process empty."""
    fleet = stage._start("workers", "start", "tests.e2e.stuck_app:runs", "--concurrency", "10", "--grace", "1")
    stage.coordinator()
    handle = client.enqueue("hangs_as_a_suspect")
    wait_until(lambda: len(stage.events("hangs")) == 3, "the suspect to run alone and hang", 60)
    (before,) = children(fleet.pid)
    neighbour = client.enqueue("neighbour")
    stage.open_gate("all")
    handle.cancel(grace=0.5)
    assert handle.wait(60) == Status.CANCELLED
    assert neighbour.result(60) != before
    assert before not in children(fleet.pid)
    assert stop(fleet) == 0


def answer(stage: Stage, program: str, *arguments: str) -> Any:
    """Return the JSON that a command prints."""
    command = [str(Path(sys.executable).parent / program), *arguments, "--json"]
    return json.loads(subprocess.check_output(command, cwd=ROOT, env=stage.environment("worker")))


@pytest.mark.matrix("more cases with real processes")
def test_hung_handler_is_named_in_lists_until_its_process_is_replaced(stage: Stage, client: Client) -> None:
    port = free_port()
    options = ["--concurrency", "10", "--lease", "3", "--grace", "1", "--health", f"127.0.0.1:{port}"]
    fleet = stage._start("workers", "start", "tests.e2e.stuck_app:runs", *options)
    stage.coordinator()
    client.enqueue("patient")
    handle = client.enqueue("hangs")
    wait_until(lambda: stage.events("hangs") and stage.events("waits"), "both handlers to run", 60)
    (before,) = children(fleet.pid)
    handle.cancel(grace=0.5)
    assert handle.wait(60) == Status.CANCELLED

    def named() -> bool:
        return [(one.stuck, one.draining) for one in client.workers()] == [((handle.id,), True)]

    wait_until(named, "the worker to name the run", 60)
    (listed,) = answer(stage, "workers", "list")["workers"]
    assert (listed["pid"], listed["stuck"], listed["draining"]) == (before, [handle.id], True)
    (stuck,) = answer(stage, "coordinator", "runs", "--stuck")["runs"]
    assert stuck["id"] == handle.id
    assert f"a handler of it does not stop and occupies a slot of worker process {before} on " in stuck["why"]
    assert answer(stage, "coordinator", "runs", "--stuck", "--kind", "other")["runs"] == []
    reason = f"worker process {before} is being replaced: the handler of run {handle.id} does not stop"
    assert reason in get(port, "/ready")[1]
    stage.open_gate("all")
    wait_until(lambda: before not in children(fleet.pid), "the process to be replaced", 60)
    wait_until(lambda: [one.stuck for one in client.workers()] == [()], "the new process to be listed", 60)
    assert answer(stage, "coordinator", "runs", "--stuck")["runs"] == []
    assert stop(fleet) == 0
