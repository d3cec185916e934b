"""Runs that take too long, in a real fleet.

One handler ignores every request to stop, one blocks its event loop, and one is killed again and again. The other runs
of the same processes continue without a strike.
"""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from coordinator import Client, RunFailed, Status
from coordinator.store.keys import Namespace
from tests.e2e.processes import Stage, children, stop
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases with real processes")


def start(stage: Stage, *, processes: int, lease: float) -> subprocess.Popen[bytes]:
    options = ["--processes", processes, "--concurrency", 20, "--lease", lease, "--grace", 0.5]
    return stage._start("workers", "start", "tests.e2e.app:runs", "tests.e2e.critic_app:runs", *map(str, options))


def used(stage: Stage, run: str) -> int:
    """Return the milliseconds that the finished attempts of a run have used."""
    keys = Namespace(stage.namespace, stage.place.partitions).keys_of(run)
    return int((stage.place.admin.hget(keys.run(run), "spent") or b"0").split()[0])


@pytest.mark.timeout(150)
def test_plain_handler_that_ignores_stops_costs_only_its_run_and_its_process(stage: Stage, client: Client) -> None:
    """Check that the worker itself releases its other runs: there is no coordinator, and the lease never expires."""
    fleet = start(stage, processes=1, lease=60)
    neighbours = client.enqueue_many([("owner", {})] * 10)
    wait_until(lambda: len(stage.events("start")) == 10, "the neighbours run", timeout=60)
    (before,) = children(fleet.pid)
    handle = client.enqueue("deaf", {})
    with pytest.raises(RunFailed, match="hard deadline of 1 s has passed") as failed:
        handle.result(60)
    assert failed.value.type == "DeadlineExceeded"
    wait_until(
        lambda: len({e.run for e in stage.events("start") if e.pid != before}) == 10,
        "the neighbours run in another process",
        timeout=60,
    )
    assert before not in children(fleet.pid)
    stage.open_gate("all")
    assert {neighbour.wait(60) for neighbour in neighbours} == {Status.COMPLETED}
    counters = [neighbour.view().counters for neighbour in neighbours]
    assert {(c.strikes, c.recoveries, c.releases, c.attempt) for c in counters} == {(0, 0, 1, 2)}
    assert len(stage.events("deaf")) == 1, "a kill is not tried again"
    assert stop(fleet) == 0


@pytest.mark.timeout(200)
@pytest.mark.parametrize("in_a_group", [False, True])
def test_run_that_blocks_its_event_loop_is_the_only_one_that_dies(
    stage: Stage, client: Client, in_a_group: bool
) -> None:
    """Block the event loop in each attempt: the run gets three strikes.

    The other runs get none, although they never make progress.
    """
    stage.coordinator()
    fleet = start(stage, processes=2, lease=3)
    neighbours = client.enqueue_many([("owner", {})] * 10)
    wait_until(lambda: len(stage.events("start")) == 10, "the neighbours run", timeout=60)
    handle = client.enqueue("blocks", {"in_a_group": in_a_group})
    assert handle.wait(150) == Status.DEAD
    view = handle.view()
    assert (view.counters.strikes, view.attempt, len(stage.events("blocks"))) == (3, 3, 3)
    assert (
        view.why == "3 strikes without progress; the last: it blocked the event loop of its process, which was replaced"
    )
    stage.open_gate("all")
    assert {neighbour.wait(60) for neighbour in neighbours} == {Status.COMPLETED}
    counters = [neighbour.view().counters for neighbour in neighbours]
    assert {c.strikes for c in counters} == {0}
    assert sum(c.recoveries for c in counters) > 0, "the test shows nothing if they were elsewhere"
    assert "time.sleep(600)" in stage.logs()
    assert f"blocked by: {handle.id}" in stage.logs()
    assert stop(fleet) == 0


@pytest.mark.timeout(150)
def test_time_of_a_killed_attempt_counts_toward_the_deadline(stage: Stage, client: Client) -> None:
    fleet = start(stage, processes=1, lease=3)
    handle = client.enqueue("turns", {})
    begun = wait_until(lambda: stage.events("start"), "it runs", timeout=60)[0]
    wait_until(lambda: stage.now() > begun.at + 4, "it has used some time, and by far not all")
    os.kill(begun.pid, signal.SIGKILL)
    first = wait_until(lambda: used(stage, handle.id), "the attempt is counted", timeout=60)
    with pytest.raises(RunFailed, match="hard deadline of 12 s has passed"):
        handle.result(60)
    assert first >= 2000
    assert 12000 <= used(stage, handle.id) < first + 12000, "the second attempt had what the first one left"
    assert handle.view().counters.attempt == 2
    assert stop(fleet) == 0
