"""Parents with many children while worker processes are killed: every parent gets each result once, and no child has a twin."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import defaultdict
from functools import partial

import pytest

from coordinator import Client, Status
from tests.e2e.processes import Stage, children
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases of a promise")

DEEPER = int(os.environ.get("RUNS_TEST_DEPTH", "1")) > 1
PARENTS, CHILDREN, KILLS = (50, 20, 30) if DEEPER else (8, 10, 4)
LAST_BUT_ONE = 2  # With one more strike than this, the run is dead.


@pytest.mark.timeout(600 if DEEPER else 120)
def test_killed_workers_cost_no_parent_a_child_and_give_no_child_a_twin(stage: Stage, client: Client) -> None:
    stage.coordinator()
    options = ["--processes", "2", "--concurrency", "5", "--lease", "15"]
    fleet = stage._start("workers", "start", "tests.e2e.family_app:runs", *options)
    inputs = [{"first": CHILDREN * number, "count": CHILDREN} for number in range(PARENTS)]
    handles = [client.enqueue("family", one) for one in inputs]
    for kill in range(KILLS):
        ended = (kill + 1) * PARENTS * CHILDREN // (KILLS + 2)
        wait_until(partial(_is_time, client, stage, ended), "it is time to kill", timeout=60)
        working = {event.pid for event in stage.events("start")}
        if victims := [pid for pid in children(fleet.pid) if pid in working]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(victims), signal.SIGKILL)
    for number, handle in enumerate(handles):
        assert handle.wait(300 if DEEPER else 60) is Status.COMPLETED, handle.view()
        assert handle.result() == sum(range(CHILDREN * number, CHILDREN * (number + 1)))
    runs = defaultdict[int, set[str]](set)
    for event in stage.events("start"):
        runs[event.number].add(event.run)
    assert {number for number, found in runs.items() if len(found) > 1} == set()
    assert set(runs) == set(range(PARENTS * CHILDREN))


def _is_time(client: Client, stage: Stage, ended: int) -> bool:
    """Return True if that many children have ended, and no run would be dead after one more kill."""
    if len({event.number for event in stage.events("end")}) < ended:
        return False
    listed = [view for status in (Status.QUEUED, Status.RUNNING) for view in client.list(status=status, limit=1000)]
    return all(view.counters.strikes < LAST_BUT_ONE for view in listed)
