"""Graphs of LangGraph in a real fleet, under SIGKILL and a roll. A node whose writes were saved is not called again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter, defaultdict

import pytest

from coordinator import Client, Status
from tests.e2e.graph_app import STEPS
from tests.e2e.processes import Stage, children
from tests.waiting import wait_until

RUNS = int(os.environ.get("RUNS_TEST_GRAPHS", "10"))
KILLS = int(os.environ.get("RUNS_TEST_KILLS", "5"))


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(240)
def test_no_saved_node_is_called_again_while_workers_are_killed_and_rolled(stage: Stage, client: Client) -> None:
    stage.coordinator()
    options = ["--processes", "2", "--concurrency", "10", "--lease", "5"]
    fleet = stage._start("workers", "start", "tests.e2e.graph_app:runs", *options)
    handles = [client.enqueue("agent", {}) for _ in range(RUNS)]
    for handle in handles:
        handle.send("resume", "yes")
    for kill in range(1, KILLS + 1):
        enough = RUNS * STEPS * kill // (KILLS + 3)
        wait_until(lambda: len(stage.events("paid")) >= enough, "some models to be called", timeout=90)  # noqa: B023
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(wait_until(lambda: children(fleet.pid), "a process", timeout=60)), signal.SIGKILL)
    fleet.send_signal(signal.SIGHUP)  # a roll
    assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: RUNS}
    assert [handle.result() for handle in handles] == [list(range(STEPS))] * RUNS

    # A call is repeated only if the process was killed after the call and before the save. Then the next call in the same run has
    # the same number. A number that comes back after a higher one was saved and repeated.
    called: dict[str, list[int]] = defaultdict(list)
    for event in stage.events("model"):
        called[event.run].append(event.number)
    for numbers in called.values():
        assert numbers == sorted(numbers), "a saved node was called again"
    repeated = sum(len(numbers) - len(set(numbers)) for numbers in called.values())
    assert repeated <= KILLS * RUNS
    assert all(count <= 1 + KILLS for numbers in called.values() for count in Counter(numbers).values())
