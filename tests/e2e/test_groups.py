"""Groups in real processes: the limit holds while processes are killed, and a large group does not stand before a small one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter, defaultdict

import pytest

from coordinator import Client, Status
from tests.e2e.processes import Stage, children, find_most_at_once
from tests.waiting import wait_until

pytestmark = [pytest.mark.matrix("more cases of a promise"), pytest.mark.timeout(300)]

KILLS = int(os.environ.get("RUNS_TEST_KILLS", "6"))
GROUPS = int(os.environ.get("RUNS_TEST_GROUPS", "30"))  # 1,000 in the full size
LARGE = int(os.environ.get("RUNS_TEST_GROUP_SIZE", "1000"))  # 100,000 in the full size
CUSTOMERS = int(os.environ.get("RUNS_TEST_CUSTOMERS", "5"))
EACH = int(os.environ.get("RUNS_TEST_CUSTOMER_RUNS", "12"))
AT_ONCE = 2
SLOTS = 20


def fleet(stage: Stage, processes: int) -> subprocess.Popen[bytes]:
    options = ["--processes", str(processes), "--concurrency", str(SLOTS), "--lease", "3"]
    return stage._start("workers", "start", "tests.e2e.group_app:runs", *options)


def test_no_group_is_above_its_limit_while_processes_are_killed(stage: Stage, client: Client) -> None:
    stage.coordinator()
    started = fleet(stage, 3)
    inputs = [{"customer": f"c{number % CUSTOMERS}", "seconds": 0.1} for number in range(CUSTOMERS * EACH)]
    handles = client.enqueue_many([("work", one) for one in inputs], group=lambda one: one["customer"])
    killed: dict[int, float] = {}
    for kill in range(1, KILLS + 1):
        enough = len(handles) * kill // (KILLS + 2)
        wait_until(lambda: len(stage.events("leave")) >= enough, "some runs ended", timeout=120)  # noqa: B023
        pid = random.choice(wait_until(lambda: children(started.pid), "the fleet has a process", timeout=60))
        killed[pid] = stage.now()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: len(handles)}
    customers = {handle.id: one["customer"] for handle, one in zip(handles, inputs, strict=True)}
    events = defaultdict(list)
    for event in stage.events():
        events[customers[event.run]].append(event)
    assert len(events) == CUSTOMERS
    for customer, its in events.items():
        assert find_most_at_once(its, killed) <= AT_ONCE, customer


def test_run_of_a_small_group_starts_within_one_round_of_all_groups(stage: Stage, client: Client) -> None:
    stage.coordinator()
    client.set_limit("turn", at_once=1)  # before a worker has published it: the runs are enqueued first
    inputs = [{"customer": "large"} for _ in range(LARGE)]
    inputs += [{"customer": f"c{number}"} for number in range(GROUPS) for _ in range(3)]
    client.enqueue_many([("turn", one) for one in inputs], group=lambda one: one["customer"])
    small = client.enqueue("turn", {"customer": "small"}, group="small")
    fleet(stage, 1)
    assert small.wait(120) == Status.COMPLETED
    order = [event.run for event in stage.events("turn")]
    assert order.index(small.id) <= GROUPS + 1 + SLOTS, "each other group had one turn, and the slots were full"


def test_starts_of_each_group_stay_within_the_rate_of_the_handler(stage: Stage, client: Client) -> None:
    """Runs wait before a worker exists, so that they all could start at once. A process is killed in the middle."""
    stage.coordinator()
    inputs = [{"customer": f"c{number % 2}"} for number in range(60)]
    handles = client.enqueue_many([("paced", one) for one in inputs], group=lambda one: one["customer"])
    started = fleet(stage, 2)
    wait_until(lambda: len(stage.events("enter")) >= 20, "some runs started", timeout=60)
    os.kill(random.choice(children(started.pid)), signal.SIGKILL)
    assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: len(handles)}
    views = [handle.view() for handle in handles]
    for customer in ("c0", "c1"):
        # The server's time of the claim. An attempt that was lost has no time of its own any more.
        starts = sorted(view.started for view in views if view.group == customer and view.attempt == 1 and view.started)
        assert len(starts) >= 25
        for first, begin in enumerate(starts):
            for last in range(first, len(starts)):
                seconds = (starts[last] - begin).total_seconds()
                assert last - first + 1 <= 3 + 20 * seconds + 0.1, f"{starts[first : last + 1]} of {customer}"
