"""External calls in real processes that are killed: the rate is kept, and the places of killed processes come back."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from coordinator import Client, Status
from tests.e2e.processes import Stage, children, find_most_at_once
from tests.waiting import wait_until

pytestmark = [pytest.mark.matrix("more cases of a promise"), pytest.mark.timeout(300)]

PROCESSES = int(os.environ.get("RUNS_TEST_LIMIT_PROCESSES", "8"))
TASKS = int(os.environ.get("RUNS_TEST_LIMIT_TASKS", "500"))
RATE, BURST = 50, 20
TOLERANCE = 0.05  # seconds between the time that a script reads and the time of its command in the server's log
LEASE = 3.0
OVER = "end-of-the-log"
APP = "tests.e2e.limit_app:runs"


def fleet(stage: Stage, processes: int, lease: float = LEASE) -> subprocess.Popen[bytes]:
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


@dataclass
class Starts:
    """The starts of calls, by the server's time: (time, cost) by request. A repeated request starts once."""

    made: dict[str, tuple[float, int]] = field(default_factory=dict)


@contextlib.contextmanager
def watched_starts(stage: Stage) -> Iterator[Starts]:
    """Read from the log of the server when it lets calls start. A script adds each of them to the holders of its name."""
    starts = Starts()

    def read(log: Any) -> None:
        for entry in log.listen():
            words = entry["command"].split()
            if len(words) == 4 and words[0].lower() == "zadd" and ":holders:" in words[1]:
                starts.made.setdefault(words[3], (entry["time"], int(float(words[2]))))
            if words == ["ECHO", OVER]:
                return

    with contextlib.ExitStack() as stack:
        for server in stage.place.servers:
            admin = stack.enter_context(redis.Redis.from_url(server.url))
            reader = threading.Thread(target=read, args=(stack.enter_context(admin.monitor()),))
            reader.start()
            stack.callback(reader.join)
            stack.callback(admin.echo, OVER)
        yield starts


def find_breach(starts: Starts, rate: float = RATE) -> str:
    """Return the first window in which calls used more than the burst and the rate allow; empty if there is none."""
    calls = sorted(starts.made.values())
    for first, (begin, _) in enumerate(calls):
        used = 0
        for at, cost in calls[first:]:
            used += cost
            allowed = BURST + rate * (at - begin + TOLERANCE)
            if used > allowed:
                return f"{used} tokens in {at - begin:.3f} s, {allowed:.0f} are allowed"
    return ""


def test_rate_is_kept_in_every_window_while_processes_are_killed(stage: Stage, client: Client) -> None:
    client.set_rate("api", f"{RATE}/s", burst=BURST)
    stage.coordinator()
    with watched_starts(stage) as starts:
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
    assert len(starts.made) >= TASKS, "the log has each start"
    assert find_breach(starts) == ""
    assert find_breach(starts, RATE / 1.1) != "", "a rate that is too high by a tenth would be found"
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
    # The lease ends, a coordinator notices it in its next second, and the waiting call asks again. The rest is for a busy machine.
    soon = LEASE + 1 + 6
    wait_until(lambda: len(stage.events("enter")) == 2, "the place of the lost host is free", timeout=soon)
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
