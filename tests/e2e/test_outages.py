"""The server goes away; nobody is taken for dead because of it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

from coordinator import Client, Status
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import children, stop, wait_for_start
from tests.waiting import wait_until

LEASE = 4.0  # and so long is recovery held: who wakes up within it, on a busy machine too, has lost nothing
HELD = "recovery is held for"  # what a coordinator says then


@pytest.mark.promise(5)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["killed", pytest.param("paused", marks=pytest.mark.matrix("more cases of a promise"))])
def test_three_leases_without_a_server_cost_nothing(make_stage: MakeStage, start_server: Any, how: str) -> None:
    """Workers stay alive, the coordinator is replaced meanwhile: no recovery, no strike, all runs go on. The new coordinator is the
    first that the server answers, so that it finds nothing but leases that have run out."""
    server = start_server()
    stage = make_stage(server)
    coordinator = stage.coordinator()
    fleet = stage.fleet(3, lease=LEASE, concurrency=20)
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": 60, "seconds": 0.1})] * 50)
        wait_for_start(stage, 50)
        steps, holds = len(stage.events("step")), stage.logs().count(HELD)
        server.kill() if how == "killed" else server.pause()
        coordinator.kill()
        coordinator.wait()
        # nothing happens for three leases: that is the point, and so the clock is asked
        began = stage.now()
        wait_until(lambda: stage.now() - began > 3 * LEASE + 0.5, "three leases have passed")
        workers = children(fleet.pid)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        stage.coordinator()
        server.restart() if how == "killed" else server.resume()
        wait_until(lambda: stage.logs().count(HELD) > holds, "the coordinator has looked at the leases, and holds")
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        assert Counter(handle.wait(90) for handle in handles) == {Status.COMPLETED: 50}
        assert {handle.view().counters.recoveries for handle in handles} == {0}
        assert {handle.view().attempt for handle in handles} == {1}
    assert len(stage.events("step")) == 50 * 60 > steps


@pytest.mark.timeout(60)
def test_a_drain_without_a_server_ends_and_says_what_it_left(make_stage: MakeStage, start_server: Any) -> None:
    server = start_server()
    stage = make_stage(server)
    fleet = stage.fleet(1, lease=2, grace=0.5)
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("sleeper", {})] * 3)
        wait_for_start(stage, 3)
        server.kill()
        assert stop(fleet, signal.SIGTERM, timeout=50) != 0
        log = stage.logs()
        assert all(f"run {handle.id} is left to recovery" in log for handle in handles)
