"""Promise 6: a poison run can not loop, and can not take other runs down with it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from coordinator import Client, Handle, Status
from tests.e2e.places import TOPOLOGY
from tests.e2e.processes import Stage, children, wait_for_start
from tests.unrest import UNREST
from tests.waiting import wait_until

pytestmark = pytest.mark.promise(6)

GOOD = 100


def statuses(handles: Sequence[Handle[Any]], timeout: float = 150) -> Counter[Status]:
    return Counter(handle.wait(timeout) for handle in handles)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("poisonous", [1, pytest.param(12, marks=pytest.mark.matrix("more cases of a promise"))])
def test_only_the_poison_run_is_dead(stage: Stage, client: Client, poisonous: int) -> None:
    """Abort the process from a poison run among 100 good ones, one of which is slow to reach its first checkpoint."""
    stage.coordinator()
    good = client.enqueue_many([("steps", {"total": 5, "seconds": 0.1})] * (GOOD // 2))
    good.append(client.enqueue("slow_first", {"seconds": 2.0}))
    poison = client.enqueue_many([("poison", {})] * poisonous)
    good += client.enqueue_many([("steps", {"total": 5, "seconds": 0.1})] * (GOOD // 2 - 1))
    stage.fleet(2, concurrency=50, lease=3)
    assert statuses(good) == {Status.COMPLETED: GOOD}
    assert statuses(poison) == {Status.DEAD: poisonous}
    assert {handle.view().counters.strikes for handle in poison} == {3}
    # A claim that no replica has confirmed is released: an attempt in which no handler began.
    assert UNREST or {handle.view().attempt for handle in poison} == {3}, (
        "a poison run is tried three times and no more"
    )
    assert "3 strikes" in poison[0].view().why


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(200)
def test_malformed_runs_do_not_stop_other_runs(stage: Stage, client: Client) -> None:
    """Enqueue 30 runs whose inputs do not fit before 300 good ones, for four processes.

    300 complete, and 30 are dead with a sentence.
    """
    stage.coordinator()
    malformed = client.enqueue_many([("add", {"left": 1, "wrong": 2})] * 30)
    good = client.enqueue_many([("add", {"left": 1, "right": number}) for number in range(300)])
    stage.fleet(4, concurrency=20)
    assert statuses(good) == {Status.COMPLETED: 300}
    assert statuses(malformed) == {Status.DEAD: 30}
    view = malformed[0].view()
    assert view.error is not None
    assert "wrong" in view.error.message
    malformed[0].revive()
    assert malformed[0].view().counters.life == 2


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(120)
def test_most_workers_killed_at_once_are_recovered_after_one_pause(stage: Stage, client: Client) -> None:
    """Kill a whole process tree, six of seven workers: recovery pauses for one lease and then proceeds.

    If a check falls between two deadlines, the first runs get one strike; none gets two. No worker is started
    afterwards: a new supervisor would abandon the runs of dead processes on its host, and none would be left to
    recover.
    """
    stage.coordinator()
    fleet = stage.fleet(6, lease=4, concurrency=10)
    handles = client.enqueue_many([("steps", {"total": 100_000, "seconds": 0.1, "gate": "all"})] * 50)
    wait_for_start(stage, 50)
    stage.fleet(1, lease=4, concurrency=60)
    wait_until(lambda: stage.logs().count("ready: ") == 7, "the seventh process is ready", timeout=60)
    tree = [fleet.pid, *children(fleet.pid)]
    for pid in tree:
        os.kill(pid, signal.SIGSTOP)  # No child gets time to notice that its supervisor is gone.
    for pid in tree:
        os.kill(pid, signal.SIGKILL)
    before = {event.run: event.token for event in stage.events("start")}
    wait_until(
        lambda: all(before[e.run] != e.token for e in {e.run: e for e in stage.events("start")}.values()),
        "all resumed",
        timeout=60,
    )
    stage.open_gate("all")
    assert statuses(handles) == {Status.COMPLETED: 50}
    assert {handle.view().counters.strikes for handle in handles} <= {0, 1}
    assert {handle.view().counters.recoveries for handle in handles} == {1}


@pytest.mark.timeout(120)
def test_suspect_gets_its_attempt_although_no_process_is_empty(stage: Stage, client: Client) -> None:
    """Keep the only process busy, so that the supervisor starts one more process for the suspect alone."""
    stage.coordinator()
    stage.fleet(1, lease=4, concurrency=5)
    holder = client.enqueue("holder", {})
    wait_for_start(stage)
    poison = client.enqueue("poison", {})
    assert poison.wait(90) == Status.DEAD
    # In its third and last attempt the poison was alone. So the run that occupies the process was killed with it twice and not a
    # third time; or once, if the other partition was the first to give the poison to the new process.
    wait_until(lambda: holder.view().status == Status.RUNNING, "the run that occupies the process runs again")
    assert holder.view().counters.recoveries in ((2,) if TOPOLOGY == "one" else (1, 2))
    assert "starting an extra worker process: a suspect run waits" in stage.logs()


@pytest.mark.matrix("more cases of a promise")
@pytest.mark.timeout(120)
def test_runs_in_four_partitions_survive_a_kill(stage: Stage) -> None:
    partitioned = f"{stage.namespace}p4"
    stage.enter(partitioned)
    stage.run("coordinator", "init", "--partitions", "4")
    stage.coordinator()
    fleet = stage.fleet(2, concurrency=30)
    with Client(stage.url, partitioned) as client:
        handles = client.enqueue_many([("steps", {"total": 10, "seconds": 0.1})] * 80)
        assert len({handle.id[-2:] for handle in handles}) == 4
        wait_for_start(stage, 40)
        os.kill(children(fleet.pid)[0], signal.SIGKILL)
        assert statuses(handles) == {Status.COMPLETED: 80}
