"""The server goes away. No worker counts as dead because of that."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import Any

import pytest

from coordinator import Client, Status
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import children, stop, wait_for_start
from tests.waiting import wait_until

# Recovery is paused for as long: a worker that continues within that time, on a busy machine too, has lost nothing.
LEASE = 4.0
HELD = "recovery paused for"  # A coordinator logs this when it pauses recovery.


@pytest.mark.promise(5)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["killed", pytest.param("paused", marks=pytest.mark.matrix("more cases of a promise"))])
def test_outage_of_three_leases_gives_no_strike(make_stage: MakeStage, start_server: Any, how: str) -> None:
    """Replace the coordinator while the server is gone, so that the new one finds only expired leases.

    There is no recovery and no strike, and all runs continue.
    """
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
        # The test needs three leases in which nothing happens, so it waits for the clock.
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


@pytest.mark.matrix("waits through a timeout")
@pytest.mark.timeout(60)
def test_drain_without_a_server_ends_and_logs_the_runs_it_left(make_stage: MakeStage, start_server: Any) -> None:
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


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(150)
def test_a_lost_hosts_runs_come_back_although_the_only_coordinator_is_stopped_most_of_the_time(
    make_stage: MakeStage, start_server: Any
) -> None:
    stage = make_stage(start_server())
    coordinator = stage.coordinator()
    lost = stage.fleet(1, lease=LEASE, concurrency=5)
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": 1000, "seconds": 0.1})] * 5)
        wait_for_start(stage, 5)
        for pid in (lost.pid, *children(lost.pid)):
            os.kill(pid, signal.SIGKILL)

        def recovered() -> bool:
            """Let the coordinator run for a short time, after a gap that pauses recovery."""
            os.kill(coordinator.pid, signal.SIGSTOP)
            time.sleep(3.4)  # the stuttering itself: a gap of more than three ticks
            os.kill(coordinator.pid, signal.SIGCONT)
            time.sleep(0.6)  # the stuttering itself: less than a tick
            return {handle.view().status for handle in handles} == {Status.QUEUED}

        wait_until(recovered, "the runs of the lost host are queued again", timeout=100)
        assert {handle.view().counters.recoveries for handle in handles} == {1}
