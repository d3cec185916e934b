"""Thousands of waiting runs whose timeouts come due in the same second, while coordinators are killed and signals are sent.

RUNS_TEST_TIMEOUTS is the number of runs. 20,000 runs take about a minute on two
cores, most of which is the time in which the runs start. `scripts/bench waits --many 1000000` lets a million timeouts come due.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from coordinator import Client, Ended, Handle
from coordinator.store.keys import Keys
from tests.e2e.processes import Stage, stop
from tests.waiting import wait_until

RUNS = int(os.environ.get("RUNS_TEST_TIMEOUTS", "2000"))
STARTED_PER_SECOND = 400  # runs that a slow machine enqueues, starts and suspends
LEAD = 2 + RUNS / STARTED_PER_SECOND  # seconds until all timeouts come due
SIGNALLED = 4  # every fourth run gets a signal
EARLY = 0.1  # seconds before the timeouts at which the first signals are sent
HANG = 60 + RUNS / 50
ZERO = 0.002  # seconds; deadlines are rounded to milliseconds

pytestmark = [pytest.mark.matrix("large numbers of runs"), pytest.mark.timeout(180 + RUNS / 20)]


def waiting(stage: Stage) -> int:
    partitions = range(stage.place.partitions)
    return sum(int(stage.place.admin.zcard(Keys(stage.namespace, one).waiting())) for one in partitions)


def send(handle: Handle[Any], number: int) -> float | None:
    """Send a signal to a run. Return when the server had stored it, or None if the run had ended before."""
    try:
        assert handle.send("word", number)
    except Ended:
        return None
    return time.time()


def test_runs_whose_timeouts_come_due_together_wake_once(stage: Stage, client: Client) -> None:
    coordinator = stage.coordinator()
    options = ["--processes", "2", "--log-level", "WARNING"]  # not two lines for each run
    fleet = stage._start("workers", "start", "tests.e2e.wait_app:runs", *options)
    assert client.enqueue("nested", {"depth": 1}).result(60) == 1, "a worker is ready"
    at = time.time() + LEAD
    handles = client.enqueue_many([("alarm", {"number": number, "at": at}) for number in range(RUNS)])
    wait_until(lambda: time.time() > at - EARLY, "the timeouts to be near", LEAD + 60)
    print(f"{waiting(stage)} of {RUNS} runs wait {EARLY} s before their timeouts")
    chosen = range(0, RUNS, SIGNALLED)
    with ThreadPoolExecutor(2) as pool:
        sending = pool.map(send, [handles[number] for number in chosen], chosen)
        for share in (0.6, 0.2):  # kill the coordinator when this share of the runs waits
            wait_until(lambda: waiting(stage) <= share * RUNS, "timeouts", HANG)  # noqa: B023
            coordinator.kill()
            coordinator.wait()
            print(f"{waiting(stage)} runs wait when a coordinator is killed")
            coordinator = stage.coordinator()
        sent_at = dict(zip(chosen, sending, strict=True))
    check(sent_at, at, [handle.result(HANG) for handle in handles])
    woken = Counter(event.run for event in stage.events("woke"))
    assert woken == Counter(handle.id for handle in handles), "each run woke once"
    assert sum(handle.view().counters.failures + handle.view().counters.strikes for handle in handles) == 0
    assert waiting(stage) == 0
    assert stop(coordinator) == stop(fleet) == 0


def check(sent_at: dict[int, float | None], at: float, results: list[list[Any]]) -> None:
    """Check that each run got its own signal or the timeout, and every signal that was stored before the timeout.

    Args:
        sent_at: When the signal of each signalled run was stored.
        at: When the timeouts came due.
        results: The payloads that each run has received before and after its timeout.
    """
    by_signal = 0
    for number, (payload, later) in enumerate(results):
        if number not in sent_at:
            assert (payload, later) == (None, None)
            continue
        stored = sent_at[number]
        assert (payload, later) in ((number, None), (None, number), (None, None)), "a signal is received once"
        assert stored is not None or (payload, later) == (None, None), "only a stored signal is received"
        if stored is not None and stored < at - ZERO:
            assert payload == number, "a signal that was stored before the timeout is received"
        by_signal += payload is not None
    print(f"{by_signal} runs of {len(sent_at)} with a signal received it before their timeout")
