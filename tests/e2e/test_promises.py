"""The promises of the design, each with real processes and at least 50 runs, checked with a journal that the handlers write."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from coordinator import Client, Handle, Status
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import Stage, children, stop, wait_for_coordinator, wait_for_start
from tests.unrest import UNREST
from tests.waiting import wait_until

RUNS = 60
GONE = -2  # PTTL returns this for a key that does not exist.
LONG = 60.0  # A worker does not lose this lease by a short pause.


def finished(client: Client, handles: Sequence[Handle[Any]], timeout: float = 90) -> Counter[Status]:
    """Return the status in which each run ended."""
    return Counter(handle.wait(timeout) for handle in client.wait(handles, timeout))


def one_child(fleet_pid: int) -> int:
    return random.choice(wait_until(lambda: children(fleet_pid), "the fleet has a process"))


def one_with_saved_runs(stage: Stage, fleet_pid: int, count: int, total: int) -> int:
    """Return a process that has N runs with a saved step, none of them at their last step."""

    def found() -> list[int]:
        newest = {event.run: event for event in stage.events("saved")}
        busy = Counter(event.pid for event in newest.values() if event.number < total - 1)
        return [pid for pid in children(fleet_pid) if busy[pid] >= count]

    return random.choice(wait_until(found, f"the fleet has a process with {count} runs that have saved", timeout=60))


def has_noticed(stage: Stage) -> int:
    """Return how often a worker has logged that it lost runs."""
    logs = stage.logs()
    return logs.count("belongs to another owner") + logs.count("the server has taken its lease")


@pytest.mark.promise(1)
def test_acknowledged_work_survives_kills_of_every_process(make_stage: MakeStage, start_server: Any) -> None:
    """Promise 1: workers, supervisor, coordinator and server are killed; each run comes to exactly one ending."""
    server = start_server()
    stage = make_stage(server)
    coordinator, fleet = stage.coordinator(), stage.fleet(2)
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": 15, "seconds": 0.1})] * RUNS)
        wait_for_start(stage, 20)
        os.kill(one_child(fleet.pid), signal.SIGKILL)
        coordinator.kill()
        server.kill()
        server.restart()
        coordinator = stage.coordinator()
        wait_for_start(stage, 50)
        fleet.kill()
        stage.fleet(2)
        assert finished(client, handles) == {Status.COMPLETED: RUNS}
        assert {handle.result() for handle in handles} == {15}
        # Each run has one ending, no other run exists, and no step is missing.
        assert sorted(view.id for view in client.list(limit=1000)) == sorted(handle.id for handle in handles)
    for steps in stage.steps().values():
        assert {event.number for event in steps} == set(range(15))


@pytest.mark.promise(2)
def test_resumed_run_sees_at_least_the_last_acknowledged_checkpoint(stage: Stage, client: Client) -> None:
    """Promise 2."""
    stage.coordinator()
    fleet = stage.fleet(2, lease=2)
    handles = client.enqueue_many([("saved", {"total": 12, "seconds": 0.1})] * RUNS)
    for _ in range(3):
        os.kill(one_with_saved_runs(stage, fleet.pid, 10, 12), signal.SIGKILL)
    assert finished(client, handles) == {Status.COMPLETED: RUNS}
    acknowledged: dict[str, int] = {}
    resumed = 0
    for event in stage.events():
        if event.what == "start":
            resumed += event.number > 0
            assert event.number >= acknowledged.get(event.run, 0), f"{event} lost acknowledged steps"
        elif event.what == "saved":
            acknowledged[event.run] = event.number + 1
    assert resumed >= (3 if UNREST else 10)
    assert all(handle.result() == list(range(12)) for handle in handles)


@pytest.mark.promise(3)
def test_worker_that_continues_after_its_lease_writes_nothing(stage: Stage, client: Client) -> None:
    """Promise 3: a paused process loses its runs. When it continues, its saves are refused and its handlers stop."""
    stage.coordinator()
    sleeping, other = stage.fleet(1, lease=1, concurrency=RUNS), None
    handles = client.enqueue_many([("saved", {"total": 30, "seconds": 0.2})] * RUNS)
    wait_for_start(stage, RUNS)
    zombie = one_child(sleeping.pid)
    os.kill(zombie, signal.SIGSTOP)
    other = stage.fleet(1, lease=LONG, concurrency=RUNS)
    wait_until(
        lambda: len({e.run for e in stage.events("start") if e.pid != zombie}) == RUNS, "all are elsewhere", timeout=60
    )
    woken_at = max(event.at for event in stage.events())
    os.kill(zombie, signal.SIGCONT)
    assert finished(client, handles) == {Status.COMPLETED: RUNS}
    newest = {event.run: event.token for event in stage.events("start")}
    late = [e for e in stage.events("saved") if e.at > woken_at and e.pid == zombie and newest[e.run] != e.token]
    assert late == [], "a stale owner's save was acknowledged"
    assert all(handle.result() == list(range(30)) for handle in handles)
    # The "saved" lines of each run grow by one from owner to owner: no step was written twice or overwritten.
    for run in newest:
        numbers = [event.number for event in stage.events("saved") if event.run == run]
        assert numbers == sorted(set(numbers))
    assert stop(sleeping) == 0
    assert stop(other) == 0


@pytest.mark.promise(3)
def test_saves_of_a_worker_that_continues_after_its_lease_are_refused(stage: Stage, client: Client) -> None:
    """Promise 3: the stale worker's saves are sent before it can know.

    The new owner has saved nothing yet, so only the token tells their saves apart, and no sequence number does. The worker has a
    long lease that ends early on the server. So it continues long before its next heartbeat, which would tell it.
    """
    stage.coordinator()
    wait_for_coordinator(stage)
    sleeping = stage.fleet(1, lease=10 * LONG, concurrency=RUNS)
    handles = client.enqueue_many([("marks", {})] * RUNS)
    wait_for_start(stage, RUNS)
    zombie = one_child(sleeping.pid)
    os.kill(zombie, signal.SIGSTOP)
    stage.expire_leases([worker.id for worker in client.workers() if worker.pid == zombie])
    awake = stage.fleet(1, lease=LONG, concurrency=RUNS)
    wait_until(
        lambda: len({e.run for e in stage.events("start") if e.pid != zombie}) == RUNS, "all are elsewhere", timeout=60
    )
    newest = {event.run: event.token for event in stage.events("start")}
    stage.open_gate(str(zombie))
    before = has_noticed(stage)
    os.kill(zombie, signal.SIGCONT)
    wait_until(lambda: has_noticed(stage) > before, "the zombie has noticed")
    assert {event.pid for event in stage.events("offered")} == {zombie}, "only this process has offered saves"
    assert {handle.id: stage.saved_state(handle.id) for handle in handles} == dict.fromkeys(newest), "nothing is saved"
    stage.open_gate(str(one_child(awake.pid)))
    wait_until(
        lambda: {handle.id: (stage.saved_state(handle.id) or {}).get("by") for handle in handles} == newest,
        "what the owners offer is saved",
    )
    stage.open_gate("all")
    assert finished(client, handles) == {Status.COMPLETED: RUNS}
    assert {handle.id: handle.result() for handle in handles} == newest


@pytest.mark.promise(3)
def test_results_of_a_worker_that_continues_after_its_lease_are_refused(stage: Stage, client: Client) -> None:
    """Promise 3: the stale worker's handlers return when it continues, before it can know.

    Their results are refused.
    """
    stage.coordinator()
    sleeping = stage.fleet(1, lease=1, concurrency=RUNS)
    handles = client.enqueue_many([("owner", {})] * RUNS)
    wait_for_start(stage, RUNS)
    zombie = one_child(sleeping.pid)
    os.kill(zombie, signal.SIGSTOP)
    stage.fleet(1, lease=LONG, concurrency=RUNS)
    wait_until(
        lambda: len({e.run for e in stage.events("start") if e.pid != zombie}) == RUNS, "all are elsewhere", timeout=60
    )
    stage.open_gate(str(zombie))
    before = has_noticed(stage)
    os.kill(zombie, signal.SIGCONT)
    wait_until(lambda: has_noticed(stage) > before, "the zombie has noticed")
    stage.open_gate("all")
    assert finished(client, handles) == {Status.COMPLETED: RUNS}
    newest = {event.run: event.token for event in stage.events("start")}
    assert {handle.id: handle.result() for handle in handles} == newest


@pytest.mark.promise(4)
def test_graceful_release_repeats_nothing_and_gives_no_strike(stage: Stage, client: Client) -> None:
    """Promise 4: processes are replaced one by one; no strike, no failure, no repeated step.

    This holds also for a run without any progress yet, which would get a strike in a crash.
    """
    stage.coordinator()
    fleet = stage.fleet(2, lease=LONG, grace=LONG, concurrency=2 * RUNS)
    idle = client.enqueue_many([("owner", {})] * 10)
    handles = client.enqueue_many([("steps", {"total": 100_000, "seconds": 0.1, "gate": "all"})] * RUNS)
    wait_for_start(stage, RUNS + len(idle))
    for replaced in range(3):
        ready = 2 + replaced
        wait_until(lambda ready=ready: stage.logs().count(" ready: ") >= ready, "both processes can be drained")  # type: ignore[misc]
        old = children(fleet.pid)[0]
        stage.run("workers", "drain", str(old))
        wait_until(lambda old=old: old not in children(fleet.pid) and len(children(fleet.pid)) == 2, "it is replaced")  # type: ignore[misc]
    stage.open_gate("all")
    assert finished(client, [*handles, *idle]) == {Status.COMPLETED: RUNS + len(idle)}
    assert UNREST or any(handle.view().counters.releases for handle in idle)
    views = [handle.view() for handle in (*handles, *idle)]
    assert sum(view.counters.releases for view in views) >= (1 if UNREST else RUNS // 2)
    assert {(view.counters.strikes, view.counters.failures, view.counters.recoveries) for view in views} == {(0, 0, 0)}
    steps = stage.steps()
    for handle in handles:
        numbers = [event.number for event in steps[handle.id]]
        assert numbers == list(range(handle.result())), "a step was done twice or left out"


@pytest.mark.promise(5)
def test_crash_is_noticed_immediately_and_repeats_only_unsaved_work(stage: Stage, client: Client) -> None:
    """Promise 5: with a lease of a minute, the runs of a killed process continue within seconds and repeat at most one
    step each.
    """
    stage.coordinator()
    fleet = stage.fleet(2, lease=LONG, concurrency=RUNS // 2)
    # Each process has half of the runs.
    wait_until(lambda: stage.logs().count(" ready: ") == 2, "both processes are ready", timeout=60)
    handles = client.enqueue_many([("steps", {"total": 20, "seconds": 0.2})] * RUNS)
    wait_for_start(stage, RUNS)
    wait_until(lambda: len(stage.events("step")) > 2 * RUNS, "the runs do steps")
    killed = one_child(fleet.pid)
    os.kill(killed, signal.SIGKILL)
    assert finished(client, handles, timeout=55) == {Status.COMPLETED: RUNS}
    begun = {event.run for event in stage.events("start") if event.pid == killed}
    held = begun - {event.run for event in stage.events("end") if event.pid == killed}
    assert UNREST or len(held) == RUNS // 2  # With failovers, runs in other partitions may have ended before the kill.
    recovered = {handle.id for handle in handles if handle.view().counters.recoveries}
    assert held <= recovered <= begun
    for steps in stage.steps().values():
        # The save of a step overlaps with the next step, so two steps may be repeated, and never more.
        assert len(steps) - 20 <= 2
        assert {event.number for event in steps} == set(range(20))


@pytest.mark.promise(8)
def test_ended_run_leaves_no_data_after_its_retention(stage: Stage, client: Client) -> None:
    """Promise 8."""
    stage.coordinator()
    fleet = stage.fleet(1)
    handles = client.enqueue_many(
        [("steps", {"total": 3})] * RUNS, retention=1.0, key=lambda inputs: os.urandom(8).hex()
    )
    assert finished(client, handles) == {Status.COMPLETED: RUNS}
    failing = client.enqueue_many([("add", {"left": 1, "right": "x"})] * 5, retention=1.0)
    assert finished(client, failing) == {Status.FAILED: 5}
    assert stop(fleet) == 0
    # Only tombstones and hints are left, each with a TTL of a minute at most. The index of ended runs says when its
    # entries go.
    admin, until = stage.place.admin, 1000 * (time.time() + 61)
    for key in admin.scan_iter(match=f"{{{stage.namespace}:*", count=1000):
        name = key.decode().split(":")[2]
        if name == "ended":
            assert admin.zcount(key, until, "+inf") == 0
        elif name not in ("namespace", "watch", "coordinators", "limits", "routes"):
            assert admin.pttl(key) in (GONE, *range(1, 60_001)), key
    assert not admin.exists(f"{{{stage.namespace}:0}}:live")
