"""`--health` with real processes: what an orchestrator sees during a start, an outage, a blocked process and a drain."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator import Client, Status
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import Stage, children, stop, wait_for_start
from tests.servers import Server, free_port
from tests.waiting import wait_until

APP, HARD = "tests.e2e.app:runs", "tests.e2e.fleet_app:runs"


def get(port: int, path: str) -> tuple[int, list[str]]:
    """Return the status and the reasons; the status is 0 while the port does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())["reasons"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["reasons"]
    except (urllib.error.URLError, ConnectionError):
        return 0, []


def start(stage: Stage, port: int, *options: Any) -> subprocess.Popen[bytes]:
    return stage._start("workers", "start", APP, HARD, "--health", f"127.0.0.1:{port}", *map(str, options))


def answers(port: int, path: str, status: int) -> list[str]:
    found: list[str] = []

    def asked() -> bool:
        answer, found[:] = get(port, path)
        return answer == status

    wait_until(asked, f"{path} answers {status}", timeout=60)
    return found


@pytest.mark.matrix("more cases with real processes")
def test_fleet_is_ready_with_all_processes_live_in_an_outage_and_not_ready_in_a_drain(
    make_stage: MakeStage, start_server: Callable[..., Server]
) -> None:
    server, port = start_server(), free_port()
    stage = make_stage(server)
    fleet = start(stage, port, "--processes", 2, "--lease", 4, "--grace", 60)
    answers(port, "/ready", 200)
    assert stage.logs().count(" ready: ") == 2
    with Client(stage.url, stage.namespace) as client:
        handle = client.enqueue("patient", {})
        wait_for_start(stage)
        server.kill()
        wait_until(lambda: stage.logs().count("heartbeat failed") >= 2, "both have noticed")
        until = stage.now() + 9.0  # This is longer than two leases.

        def stays_live() -> bool:
            assert get(port, "/live") == (200, [])
            return stage.now() > until

        wait_until(stays_live, "more than two leases have passed")
        assert get(port, "/ready") == (200, [])
        server.restart()
        fleet.send_signal(signal.SIGTERM)  # This is answered immediately, whichever process has noticed the stop.
        assert answers(port, "/ready", 503) == ["the fleet is draining"]
        assert get(port, "/live") == (200, [])
        assert stop(fleet) == 0, stage.logs()
        view = handle.view()  # The other process may have had the run for a moment.
        assert (view.status, view.counters.strikes, view.counters.recoveries) == (Status.QUEUED, 0, 0)


@pytest.mark.matrix("more cases with real processes")
def test_second_stop_reaches_a_process_that_has_not_handled_the_first(stage: Stage, client: Client) -> None:
    """Send the second signal while the first is pending: the kernel merges equal signals.

    The handler has a grace of an hour.
    """
    port = free_port()
    fleet = start(stage, port)
    answers(port, "/ready", 200)
    handle = client.enqueue("patient", {})
    wait_for_start(stage)
    (child,) = children(fleet.pid)
    os.kill(child, signal.SIGSTOP)
    for _ in range(2):
        fleet.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_pending(fleet.pid, signal.SIGTERM), "the supervisor has got it")
        assert answers(port, "/ready", 503) == ["the fleet is draining"], "and its event loop has seen to it"
    os.kill(child, signal.SIGCONT)
    assert fleet.wait(60) == 0, stage.logs()
    view = handle.view()
    assert (view.status, view.counters.releases, view.counters.recoveries) == (Status.QUEUED, 1, 0)


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Return True if a signal is pending for the process."""
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool((int(lines["ShdPnd"], 16) | int(lines["SigPnd"], 16)) >> (number - 1) & 1)


@pytest.mark.matrix("more cases with real processes")
def test_fleet_with_a_paused_process_is_not_live(stage: Stage, client: Client) -> None:
    """Pause one of two processes with SIGSTOP, as a hypervisor would."""
    port = free_port()
    fleet = start(stage, port, "--processes", 2, "--lease", 4)
    answers(port, "/ready", 200)
    assert get(port, "/live") == (200, [])
    still = children(fleet.pid)[0]
    subprocess.run(["kill", "-STOP", str(still)], check=True)
    (reason,) = answers(port, "/live", 503)
    assert reason.startswith(f"worker process {still} has had no heartbeat for ")
    subprocess.run(["kill", "-CONT", str(still)], check=True)
    answers(port, "/live", 200)
    assert stop(fleet) == 0


def test_coordinator_is_ready_after_the_first_answer_of_its_server(
    make_stage: MakeStage, start_server: Callable[..., Server]
) -> None:
    server, port = start_server(), free_port()
    stage = make_stage(server)
    server.kill()
    process = stage._start("coordinator", "start", "--health", str(port))
    assert answers(port, "/ready", 503) == ["the coordinator has not had an answer from the server yet"]
    assert get(port, "/live") == (200, [])
    server.restart()
    answers(port, "/ready", 200)
    assert stop(process) == 0


@pytest.mark.matrix("more cases with real processes")
def test_used_health_port_stops_both_commands_before_they_start(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert start(stage, port).wait(30) == 2
        assert stage._start("coordinator", "start", "--health", str(port)).wait(30) == 2
    said = [line for line in stage.logs().splitlines() if line]
    assert said == [
        f"error: --health 127.0.0.1:{port}: the port is in use by another process: choose a free one",
        f"error: --health {port}: the port is in use by another process: choose a free one",
    ]


# ---- a coordinator with a fleet --------------------------------------------------------------------------------------


def test_coordinator_of_a_fleet_works_and_stops_last(stage: Stage, client: Client) -> None:
    """Check that the coordinator enqueues a delayed run, and that it still works while the fleet drains."""
    port = free_port()
    fleet = start(stage, port, "--coordinator", "--grace", 60)
    answers(port, "/ready", 200)
    assert client.enqueue("steps", {"total": 1}, delay=0.5).wait(30) == Status.COMPLETED
    client.enqueue("patient", {})
    wait_for_start(stage, 2)
    fleet.send_signal(signal.SIGTERM)
    assert set(answers(port, "/ready", 503)) == {"the fleet is draining"}, "the coordinator is not stopping yet"
    late = client.enqueue("steps", {"total": 1}, delay=0.5)
    wait_until(lambda: late.view().status == Status.QUEUED, "the coordinator still works")
    assert stop(fleet) == 0
    logs = stage.logs()
    assert logs.index("draining 1 run ") < logs.index("has stopped")
    assert "no coordinator is running" not in logs


def test_one_fleet_serves_the_registries_of_several_modules(stage: Stage, client: Client) -> None:
    """Start a fleet with two registries."""
    fleet = start(stage, free_port())
    assert client.enqueue("steps", {"total": 1}).wait(60) == Status.COMPLETED
    assert client.enqueue("reads_stdin", {}).wait(60) == Status.COMPLETED
    assert stop(fleet) == 0


def test_kind_in_two_registries_is_rejected_in_one_sentence(stage: Stage) -> None:
    again = "tests.e2e.fleet_app:raising", "tests.e2e.fleet_app:dying"
    assert stage._start("workers", "start", *again).wait(30) == 3
    (sentence,) = stage.logs().splitlines()
    assert sentence.startswith("error: kind 'never' has two handlers, ")
    assert sentence.endswith("give one kind=")
