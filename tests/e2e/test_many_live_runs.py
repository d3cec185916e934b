"""Thousands of live runs in one process, which is killed with SIGKILL: all of them continue in the process that replaces it.

RUNS_TEST_LIVE is the number of runs. `RUNS_TEST_LIVE=10000 scripts/test tests/e2e/test_many_live_runs.py` is the largest number
that one process accepts.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict

import pytest

from coordinator import Client, Event
from tests.e2e.processes import Stage, children, stop
from tests.waiting import wait_until

LIVE = int(os.environ.get("RUNS_TEST_LIVE", "1000"))
SAVES_PER_SECOND = 500  # of all runs together
READ = 20  # runs whose output is read
HANG = 60 + LIVE / 20

pytestmark = [pytest.mark.matrix("large numbers of runs"), pytest.mark.timeout(120 + LIVE / 5)]


def count(stage: Stage, part: bytes) -> int:
    """Return how often a part of a line occurs in the journal. Reading the lines one by one would take too long."""
    return stage.journal.read_bytes().count(part)


def test_all_live_runs_of_a_killed_process_continue_from_their_last_save(stage: Stage, client: Client) -> None:
    stage.coordinator()
    options = ["--concurrency", str(LIVE), "--log-level", "WARNING"]  # not two lines for each run
    fleet = stage._start("workers", "start", "tests.e2e.live_app:runs", *options)
    handles = client.enqueue_many([("live", {"every": LIVE / SAVES_PER_SECOND})] * LIVE)
    # A run saves the number 1 only in its second step, so all runs are in the middle of their work.
    wait_until(lambda: count(stage, b" saved 1\n") == LIVE, "all runs to live and to save", HANG)
    (killed,) = children(fleet.pid)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: count(stage, b" start ") == 2 * LIVE, "all runs to live in the next process", HANG)
    (successor,) = children(fleet.pid)
    stage.open_gate("enough")
    results = [handle.result(HANG) for handle in handles]
    check_journal(stage, dict(zip([handle.id for handle in handles], results, strict=True)), [killed, successor])
    views = [handle.view() for handle in handles]
    assert {view.attempt for view in views} == {2}, "no run was taken from a worker that lived"
    assert {view.counters.strikes for view in views} == {0}, "each run had made progress"
    assert "the server has taken its lease" not in stage.logs()
    for handle, result in list(zip(handles, results, strict=True))[:: max(1, LIVE // READ)]:
        emitted = [item.value for item in handle.stream(settled=True, timeout=HANG) if isinstance(item, Event)]
        assert emitted == list(range(result)), "each event is delivered once and in order"
    assert stop(fleet) == 0


def check_journal(stage: Stage, results: dict[str, int], processes: list[int]) -> None:
    """Check that each run saved each number once, resumed once from its last acknowledged save, and ended once."""
    starts, saved, ends = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list), list[str]()
    for event in stage.events():
        if event.what == "start":
            assert event.number >= len(saved[event.run]), "a run resumes from its last acknowledged save"
            starts[event.run].append(event.pid)
        elif event.what == "saved":
            saved[event.run].append(event.number)
        elif event.what == "end":
            ends.append(event.run)
    assert sorted(ends) == sorted(results)
    assert set(map(tuple, starts.values())) == {tuple(processes)}
    for run, result in results.items():
        # The server may have stored one more save before the kill, whose answer the process did not live to write down.
        assert len(saved[run]) >= result - 1
        assert saved[run] == sorted(set(saved[run])), "no number was saved twice"
