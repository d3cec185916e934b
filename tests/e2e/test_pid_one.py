"""Supervisors that are process 1 of their container, two on one host: process ids mean different processes in each of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import Client
from tests.e2e.processes import ROOT, Stage, children
from tests.waiting import wait_until

pytestmark = [pytest.mark.matrix("containers"), pytest.mark.timeout(240)]
RUNS, STEPS = 8, 30
ENTER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def missing_requirement() -> str:
    """Return why a PID namespace can't be created here; empty if it can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    tried = subprocess.run([*ENTER, "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"PID namespaces need root: {tried.stderr.strip()}"


def start_as_process_one(stage: Stage) -> int:
    """Start a fleet of one process in a PID namespace of its own, and return the supervisor's process id on the host."""
    before = stage.logs().count(" ready: ")
    command = [*ENTER, str(Path(sys.executable).parent / "workers"), "start", stage.app, "--lease", "3", "--grace", "5"]
    log = stage.directory / f"log-{len(stage.started)}"
    with log.open("wb") as output:
        entered = subprocess.Popen(
            command, cwd=ROOT, env=stage.environment("worker"), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    stage.started.append(entered)
    wait_until(lambda: stage.logs().count(" ready: ") > before, "the worker to be ready", timeout=60)
    return int(Path(f"/proc/{entered.pid}/task/{entered.pid}/children").read_text())


def test_killed_workers_of_two_containers_are_replaced_and_sigterm_drains(stage: Stage) -> None:
    if sentence := missing_requirement():
        pytest.skip(sentence)  # It depends on the machine, and cannot be installed.
    stage.coordinator()
    supervisors = [start_as_process_one(stage) for _ in range(2)]
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": STEPS, "seconds": 0.1})] * RUNS)
        wait_until(lambda: len(stage.steps()) == RUNS, "all runs work", timeout=60)
        for supervisor in supervisors:
            (worker,) = children(supervisor)
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda: children(supervisor) not in ([], [worker]), "the worker is replaced")  # noqa: B023
        assert [handle.result(timeout=90) for handle in handles] == [STEPS] * RUNS
        for events in stage.steps().values():
            assert len(events) - STEPS <= 2, "a run repeated at most the steps that the kills interrupted"
    for supervisor, entered in zip(supervisors, stage.started[1:], strict=True):
        os.kill(supervisor, signal.SIGTERM)
        assert entered.wait(60) == 0, stage.logs()
