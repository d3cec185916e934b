"""External calls in real processes that are killed: the rate is kept, and the places of killed processes come back."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter

import pytest

from coordinator import Client, Status
from tests.e2e.processes import Event, Stage, children, find_most_at_once
from tests.waiting import wait_until

pytestmark = [pytest.mark.matrix("more cases of a promise"), pytest.mark.timeout(300)]

PROCESSES = int(os.environ.get("RUNS_TEST_LIMIT_PROCESSES", "8"))
TASKS = int(os.environ.get("RUNS_TEST_LIMIT_TASKS", "500"))
RATE, BURST = 50, 20
DELAY = 2.0  # seconds that a busy machine may take from the server's answer to the line in the journal
APP = "tests.e2e.limit_app:runs"


def fleet(stage: Stage, processes: int, lease: float = 3.0) -> subprocess.Popen[bytes]:
    options = ["--processes", str(processes), "--concurrency", "20", "--lease", str(lease)]
    return stage._start("workers", "start", APP, *options)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def lose_host(started: subprocess.Popen[bytes]) -> None:
    """Kill a supervisor with its processes, so that no process tells the server about it."""
    pids = children(started.pid)
    started.kill()
    for pid in pids:
        kill(pid)
    started.wait()


def find_breach(calls: list[Event]) -> str:
    """Return the first window in which calls used more than the burst and the rate allow; empty if there is none."""
    calls = sorted(calls, key=lambda event: event.at)
    for first, begin in enumerate(calls):
        used = 0
        for end in calls[first:]:
            used += end.number
            allowed = BURST + RATE * (end.at - begin.at + DELAY)
            if used > allowed:
                return f"{used} tokens in {end.at - begin.at:.3f} s, {allowed:.0f} are allowed"
    return ""


def test_rate_is_kept_in_every_window_while_processes_are_killed(stage: Stage, client: Client) -> None:
    client.set_rate("api", f"{RATE}/s", burst=BURST)
    stage.coordinator()
    started = fleet(stage, PROCESSES)
    handles = client.enqueue_many(
        [("call" if number % 3 else "plain_call", {"cost": random.choice([1, 1, 1, 2])}) for number in range(TASKS)]
    )
    for share in range(1, 8):
        wait_until(lambda: len(stage.events("call")) >= TASKS * share // 8, "some calls were made", timeout=120)  # noqa: B023
        pids = children(started.pid)
        if pids:
            kill(random.choice(pids))
    assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: TASKS}
    assert len({event.run for event in stage.events("call")}) == TASKS
    assert find_breach(stage.events("call")) == ""
    wait_until(lambda: client.rates()[0].waiting == 0, "no call waits", timeout=30)


def test_place_of_a_killed_process_comes_back_long_before_its_lease_ends(stage: Stage, client: Client) -> None:
    client.set_rate("gpu", at_once=1)
    stage.coordinator()
    lease = 60.0
    holding = fleet(stage, 1, lease)
    first = client.enqueue("hold", {"gate": "open"})
    wait_until(lambda: stage.events("enter"), "the first call has the place", timeout=60)
    fleet(stage, 1, lease)
    second = client.enqueue("hold", {"gate": "open"})
    wait_until(lambda: client.rates()[0].waiting == 1, "the second call waits", timeout=60)
    for pid in children(holding.pid):
        kill(pid)
    wait_until(lambda: len(stage.events("enter")) == 2, "the place of the killed process is free", timeout=lease / 2)
    (stage.directory / f"{stage.journal.name}.open").touch()
    assert [handle.wait(60) for handle in (first, second)] == [Status.COMPLETED] * 2


def test_place_of_a_lost_host_comes_back_and_the_next_call_gets_it(stage: Stage, client: Client) -> None:
    client.set_rate("gpu", at_once=1)
    stage.coordinator()
    lost = fleet(stage, 1)
    first = client.enqueue("hold", {"gate": "open"})
    wait_until(lambda: stage.events("enter"), "the first call has the place", timeout=60)
    fleet(stage, 1)
    second = client.enqueue("hold", {"gate": "open"})
    wait_until(lambda: client.rates()[0].waiting == 1, "the second call waits", timeout=60)
    lose_host(lost)
    wait_until(lambda: len(stage.events("enter")) == 2, "the place of the lost host is free", timeout=60)
    (stage.directory / f"{stage.journal.name}.open").touch()
    assert [handle.wait(60) for handle in (first, second)] == [Status.COMPLETED] * 2
    wait_until(lambda: client.rates()[0].held == 0, "no call is under way", timeout=30)


def test_places_are_never_exceeded_while_processes_are_killed(stage: Stage, client: Client) -> None:
    client.set_rate("gpu", at_once=3)
    stage.coordinator()
    started = fleet(stage, 3)
    count = 60
    handles = client.enqueue_many([("brief", {"seconds": 0.1})] * count)
    killed: dict[int, float] = {}
    for share in range(1, 5):
        wait_until(lambda: len(stage.events("leave")) >= count * share // 6, "some calls ended", timeout=120)  # noqa: B023
        pid = random.choice(wait_until(lambda: children(started.pid), "the fleet has a process", timeout=60))
        killed[pid] = stage.now()
        kill(pid)
    assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: count}
    assert find_most_at_once(stage.events(), killed) <= 3
