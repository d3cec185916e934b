"""Drains of real processes at bad moments: no run is lost, fails, ends early, or gets a strike."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from coordinator import Client, Handle, Status
from coordinator.store.scripts import CLAIM
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import Stage, children, stop, wait_for_start
from tests.proxy import Proxy, naming
from tests.servers import Server
from tests.waiting import wait_until

APP = "tests.e2e.drain_app:runs"
KINDS = ("family", "broad", "bare", "bare_async")

pytestmark = pytest.mark.timeout(240)


def start(stage: Stage, url: str = "", **options: float) -> subprocess.Popen[bytes]:
    """Start one worker process and wait until it is ready."""
    words = [word for name, value in {"lease": 60, "grace": 1, **options}.items() for word in (f"--{name}", str(value))]
    if url:
        words += ["--url", url]
    before = stage.logs().count(" ready: ")
    fleet = stage._start("workers", "start", APP, *words)
    wait_until(lambda: stage.logs().count(" ready: ") > before, "it is ready", 60)
    return fleet


def assert_no_cost(handles: Sequence[Handle[Any]]) -> None:
    counters = [handle.view().counters for handle in handles]
    assert {(one.strikes, one.failures, one.recoveries) for one in counters} == {(0, 0, 0)}


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    made = Proxy(valkey_server.port)
    yield made
    made.close()


@pytest.mark.matrix("more cases of a promise")
def test_runs_of_a_stopped_process_continue_in_an_idle_process(stage: Stage, client: Client) -> None:
    """Check 20 runs with their state: each moves once, and no step is repeated."""
    first = start(stage, grace=60)
    handles = client.enqueue_many([("walks", {})] * 20)
    wait_until(lambda: len(stage.steps()) == 20, "all runs have started", 60)
    second = start(stage)
    (old,), (new,) = children(first.pid), children(second.pid)
    assert stop(first) == 0
    wait_until(
        lambda: len({e.run for e in stage.events("step") if e.pid == new}) == 20,
        "all runs continue in the other process",
    )
    assert {event.pid for event in stage.events("step")} == {old, new}
    assert {(handle.view().status, handle.view().attempt) for handle in handles} == {(Status.RUNNING, 2)}
    stage.open_gate("enough")
    results = [handle.result(60) for handle in handles]
    for handle, result in zip(handles, results, strict=True):
        assert [event.number for event in stage.steps()[handle.id]] == list(range(result + 1)), (
            "a step is not there once"
        )
    assert_no_cost(handles)
    assert stop(second) == 0


def test_claim_answered_during_a_drain_leaves_no_run_behind(stage: Stage, client: Client, proxy: Proxy) -> None:
    """Stop the process after the server has assigned runs to it and before the process has received the answer."""
    fleet = start(stage, proxy.url)
    fault = proxy.hold_next_reply(naming(CLAIM.sha.encode()))
    handles = client.enqueue_many([("walks", {})] * 5)
    wait_until(fault.happened.is_set, "the claim was sent", 30)
    wait_until(lambda: any(handle.view().status == Status.RUNNING for handle in handles), "the server has given them")
    fleet.send_signal(signal.SIGTERM)
    wait_until(lambda: "draining 0 runs" in stage.logs(), "the drain has begun")
    fault.over.set()
    assert fleet.wait(60) == 0, stage.logs()
    assert Counter(handle.view().status for handle in handles) == {Status.QUEUED: 5}
    assert not stage.events("step"), "nothing was begun for a moment"
    assert_no_cost(handles)
    assert not client.workers()


@pytest.mark.matrix("more cases of a promise")
@pytest.mark.parametrize("stops", [1, 2])
def test_server_that_returns_during_a_drain_receives_every_release(
    make_stage: MakeStage, start_server: Callable[..., Server], stops: int
) -> None:
    server = start_server()
    stage = make_stage(server.url)
    with Client(stage.url, stage.namespace) as client:
        fleet = start(stage)
        handles = client.enqueue_many([("walks", {})] * 10)
        wait_until(lambda: len(stage.steps()) == 10, "all runs have started", 30)
        server.pause()
        for _ in range(stops):
            fleet.send_signal(signal.SIGTERM)
            wait_until(lambda: "draining 10 runs" in stage.logs(), "the drain has begun")
        wait_until(lambda: len(stage.events("over")) == 10, "all handlers have stopped", 30)
        server.resume()
        assert fleet.wait(60) == 0, stage.logs()
        assert Counter(handle.view().status for handle in handles) == {Status.QUEUED: 10}
        assert {handle.view().counters.releases for handle in handles} == {1}
        assert_no_cost(handles)
        assert not client.workers()
        done = {event.run: event.number for event in stage.events("over")}
        assert {handle.id: handle.view().iteration for handle in handles} == done, "the newest state came along"


@pytest.mark.matrix("more cases of a promise")
def test_drain_without_a_server_ends_and_names_the_runs_left_to_recovery(
    make_stage: MakeStage, start_server: Callable[..., Server]
) -> None:
    """Check this also with a handler whose grace is an hour.

    When the server is back, no run is lost and no run has a strike.
    """
    server = start_server()
    stage = make_stage(server.url)
    with Client(stage.url, stage.namespace) as client:
        fleet = start(stage, lease=2, grace=3600)
        handles = client.enqueue_many([("walks", {})] * 5)
        wait_until(lambda: len(stage.steps()) == 5, "all runs have started", 30)
        server.pause()
        for _ in range(2):
            fleet.send_signal(signal.SIGTERM)
            wait_until(lambda: "draining 5 runs" in stage.logs(), "the drain has begun")
        assert fleet.wait(120) == 1
        assert "it did not end within its grace" not in stage.logs(), "it ends by itself"
        left = re.findall(r"run (\S+) is left to recovery", stage.logs())
        assert sorted(left) == sorted(handle.id for handle in handles)
        server.resume()
        stage.coordinator()
        wait_until(lambda: {handle.view().status for handle in handles} == {Status.QUEUED}, "all are back", 60)
        assert {handle.view().counters.strikes for handle in handles} == {0}


@pytest.mark.matrix("more cases of a promise")
def test_process_that_was_paused_past_its_lease_stops_its_handlers(stage: Stage, client: Client) -> None:
    """Check that also handlers that write nothing are stopped. Their work since the lease expired is discarded."""
    stage.coordinator()
    fleet = start(stage, lease=2)
    handles = client.enqueue_many([("walks", {})] * 5)
    wait_for_start(stage, 5)
    (zombie,) = children(fleet.pid)
    os.kill(zombie, signal.SIGSTOP)
    peer = start(stage)
    wait_until(lambda: len({e.run for e in stage.events("start") if e.pid != zombie}) == 5, "all are elsewhere", 60)
    os.kill(zombie, signal.SIGCONT)
    begun = {event.token for event in stage.events("start") if event.pid == zombie}
    wait_until(lambda: begun <= {event.token for event in stage.events("over")}, "its handlers have stopped")
    tokens = {event.run: event.token for event in stage.events("start")}
    stage.open_gate("enough")
    assert Counter(handle.wait(60) for handle in handles) == {Status.COMPLETED: 5}
    last = {event.run: event.token for event in stage.events("over")}
    assert last == {event.run: event.token for event in stage.events("start")}
    assert set(tokens) == set(last)
    assert [stop(fleet), stop(peer)] == [0, 0]


@pytest.mark.matrix("more cases with real processes")
def test_handlers_that_resist_a_stop_are_released(stage: Stage, client: Client) -> None:
    """Check a task group whose children's clean-up raises, a broad except, and bare loops with a cut.

    All are released and continue in another process.
    """
    fleet = start(stage, grace=0.2)
    handles = client.enqueue_many([(kind, {}) for kind in KINDS for _ in range(5)])
    for attempt in (1, 2):
        wait_for_start(stage, attempt * len(handles))
        assert stop(fleet) == 0, stage.logs()
        views = [handle.view() for handle in handles]
        assert Counter((view.status, view.attempt) for view in views) == {(Status.QUEUED, attempt): len(handles)}
        assert_no_cost(handles)
        fleet = start(stage, grace=0.2)
    stage.open_gate("enough")
    assert Counter(handle.wait(60) for handle in handles) == {Status.COMPLETED: len(handles)}
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_a_deploy_repeats_no_turn_of_a_handler_that_flushes_at_the_end_of_each_turn(
    stage: Stage, client: Client
) -> None:
    """A stop at the flush would be a stop inside the turn, and the turn would run again."""
    turns = 400
    handles = [client.enqueue(kind, {"turns": turns}) for kind in ("flushes", "flushes_plain") for _ in range(5)]
    for _ in range(3):
        before = len(stage.events("start"))
        fleet = start(stage, grace=60)
        wait_until(lambda before=before: len(stage.events("start")) >= before + 10, "all to run", 60)  # type: ignore[misc]
        assert stop(fleet) == 0
    fleet = start(stage)
    for handle in handles:
        assert handle.result(120) == list(range(turns)), "a turn was repeated"
    assert any(handle.view().attempt > 1 for handle in handles)
    assert_no_cost(handles)
    assert stop(fleet) == 0
