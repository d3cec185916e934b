"""`--metrics` with real processes: after kills, the counts equal the history of the runs."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator import Client, Handle, Status
from coordinator.metrics.catalog import CATALOG
from coordinator.model.story import lost_work
from tests.e2e.processes import Stage, children, stop
from tests.servers import free_port
from tests.waiting import wait_until

RUNS = 12
Found = dict[str, dict[tuple[str, ...], float]]


def scrape(port: int) -> Found:
    """Return the samples by name and label values; empty while the port does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    found: Found = {}
    for family in text_string_to_metric_families(text):
        assert family.name in CATALOG
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def scrape_until(port: int, predicate: Callable[[Found], bool], reason: str) -> Found:
    """Scrape until the predicate holds, and return the samples."""
    last: list[Found] = [{}]

    def holds() -> bool:
        last[0] = scrape(port)
        return predicate(last[0])

    wait_until(holds, reason)
    return last[0]


def kill(stage: Stage, pid: int) -> None:
    """Kill a worker process, and wait until the supervisor has given its runs to others."""
    runs = {event.run for event in stage.events("start") if event.pid == pid}
    before = len(stage.events("start"))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(stage.events("start")) >= before + len(runs), "all runs continue", timeout=60)


@pytest.mark.matrix("more cases with real processes")
def test_counts_after_kills_equal_the_history_of_the_runs(stage: Stage, client: Client) -> None:
    port = free_port()
    fleet = stage._start(
        "workers", "start", stage.app, "--processes", "2", "--concurrency", str(RUNS), "--lease", "5", "--coordinator",
        "--metrics", f"127.0.0.1:{port}",
    )  # fmt: skip
    wait_until(lambda: scrape(port).get("runs_processes", {}).get(("ready",)) == 2, "two ready processes", timeout=60)
    handles: list[Handle[int]] = client.enqueue_many(
        ("steps", {"total": 1_000_000, "seconds": 0.01, "gate": "enough"}) for _ in range(RUNS)
    )
    wait_until(lambda: len(stage.events("start")) == RUNS, "all runs are started", timeout=60)
    wait_until(lambda: len(stage.steps()) == RUNS and min(map(len, stage.steps().values())) > 3, "steps", timeout=60)
    held = Counter(event.pid for event in stage.events("start"))
    victim = held.most_common(1)[0][0]
    kill(stage, victim)
    scrape_until(port, lambda found: found["runs_work_at_risk_seconds"][()] > 0, "work is at risk")
    wait_until(lambda: len(children(fleet.pid)) == 2, "the process is replaced", timeout=60)
    second = next(event.pid for event in reversed(stage.events("start")) if event.pid != victim)
    kill(stage, second)

    def is_replaced(found: Found) -> bool:
        died = found.get("runs_process_ends_total", {}).get(("died",), 0)
        return died == 2 and found["runs_processes"].get(("ready",)) == 2

    # A process that is still starting has no handler for SIGTERM, so the roll would count it as stopped, and not as drained.
    scrape_until(port, is_replaced, "the process is replaced")
    fleet.send_signal(signal.SIGHUP)  # a roll: the processes release their runs
    wait_until(
        lambda: scrape(port).get("runs_process_ends_total", {}).get(("drained",)) == 2, "both are replaced", timeout=60
    )
    stage.open_gate("enough")
    for handle in handles:
        assert handle.result(timeout=60) > 3
    views = [handle.view() for handle in handles]
    recoveries = sum(view.counters.recoveries for view in views)
    releases = sum(view.counters.releases for view in views)
    assert recoveries >= held[victim] + 1
    assert releases > 0
    starts = len(stage.events("start"))  # the journal of the handlers, which knows nothing of the server
    assert starts == RUNS + recoveries + releases

    assert client.enqueue("steps", delay=3600).cancel() is Status.CANCELLED  # ends while no worker executes it

    def is_counted(found: Found) -> bool:
        done = found.get("runs_attempts_total", {}).get(("steps", "completed"), 0) >= RUNS
        cancelled = found.get("runs_ended_total", {}).get(("steps", "cancelled"), 0) == 1
        return done and cancelled and found["runs_in_status"]["running",] == 0

    found = scrape_until(port, is_counted, "the last outcome is counted")
    assert found["runs_attempts_total"] == {("steps", "completed"): RUNS, ("steps", "released"): releases}
    assert found["runs_ended_total"] == {("steps", "completed"): RUNS, ("steps", "cancelled"): 1}
    assert found["runs_recovered_total"]["supervisor", "queued"] == recoveries
    assert sum(found["runs_recovered_total"].values()) == recoveries
    assert found["runs_resume_seconds_count"]["steps",] == recoveries
    assert found["runs_process_ends_total"] == {("drained",): 2, ("stopped",): 0, ("died",): 2}
    assert found["runs_queued_seconds_count"]["steps",] == RUNS
    assert found["runs_in_status"]["completed",] == RUNS
    assert found["runs_save_seconds_count"]["steps",] > 0
    assert found.get("runs_fenced_writes_total", {}) == {}
    lost = sum(lost_work(entry) for view in views for entry in view.story if entry.how == "recovered")
    assert found["runs_redone_seconds_total"]["steps",] == pytest.approx(lost, abs=0.001 * recoveries)
    assert lost > 0
    assert found["runs_server_up"] == {(): 1}
    assert all(view.status is Status.COMPLETED for view in views)
    assert stop(fleet) == 0


def test_counts_of_drained_processes_are_kept_in_a_roll(stage: Stage, client: Client) -> None:
    port = free_port()
    fleet = stage._start("workers", "start", stage.app, "--metrics", f"127.0.0.1:{port}")
    handles = client.enqueue_many(("steps", {"total": 3}) for _ in range(20))
    for handle in handles:
        assert handle.result(timeout=60) == 3
    fleet.send_signal(signal.SIGHUP)
    wait_until(
        lambda: scrape(port).get("runs_process_ends_total", {}).get(("drained",)) == 1,
        "the process is replaced",
        timeout=60,
    )
    client.enqueue("steps", {"total": 3}).result(timeout=60)
    found = scrape_until(
        port,
        lambda found: found["runs_attempts_total"].get(("steps", "completed")) == 21,
        "the counts of both processes",
    )
    assert found["runs_slots"] == {(): 100}
    assert stop(fleet) == 0


@pytest.mark.matrix("more cases with real processes")
def test_age_of_the_last_heartbeat_grows_while_a_process_is_stopped(stage: Stage) -> None:
    port = free_port()
    fleet = stage._start(
        "workers", "start", stage.app, "--processes", "1", "--lease", "30", "--metrics", f"127.0.0.1:{port}"
    )

    def age(found: Found) -> float:
        return found.get("runs_heartbeat_age_seconds", {}).get((), -1.0)

    scrape_until(port, lambda found: age(found) >= 0 and found["runs_processes"]["ready",] == 1, "a first heartbeat")
    (process,) = children(fleet.pid)
    os.kill(process, signal.SIGSTOP)
    try:
        first = age(scrape(port))
        scrape_until(port, lambda found: age(found) > first + 0.5, "an older heartbeat")
    finally:
        os.kill(process, signal.SIGCONT)
