"""What the supervisor logs and counts about a process that ended, and about the runs of a process that died."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from coordinator.clock import SystemClock
from coordinator.config import Settings
from coordinator.metrics import catalog
from coordinator.store.plans.coordinators import Recovered
from tests.waiting import eventually
from workers.process.options import WorkerOptions
from workers.supervisor.child_pool import ChildPool, describe_abandoned
from workers.supervisor.child_process import ChildProcess
from workers.supervisor.restart_backoff import FREE_RESTARTS


@pytest.mark.parametrize(
    ("results", "unknown", "text"),
    [
        ([], 0, "it held no runs"),
        ([Recovered("ok", queued=1)], 0, "1 run requeued"),
        ([Recovered("ok", queued=1), Recovered("ok", queued=2, dead=1)], 0, "3 runs requeued, 1 dead"),
        ([Recovered("ok", delayed=2, cancelled=1)], 0, "2 runs delayed, 1 cancelled"),
        ([], 1, "the server did not answer, so its runs wait for its lease to expire"),
    ],
)
def test_result_of_abandoning_runs_is_described(results: list[Recovered], unknown: int, text: str) -> None:
    assert describe_abandoned(results, unknown=unknown) == text


async def start_idle_process(*_: Any) -> ChildProcess:
    """Start a process that SIGTERM ends and that reports nothing, like a worker process that is still starting."""
    reports, its_reports = os.pipe()
    its_lifeline, lifeline = os.pipe()
    process = await asyncio.create_subprocess_exec("sleep", "60", stdin=its_lifeline)
    os.close(its_reports)
    os.close(its_lifeline)
    os.set_blocking(reports, False)
    return ChildProcess(process, lifeline, reports, SystemClock().monotonic())


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> AsyncIterator[ChildPool]:
    """A pool of processes that never become ready. Its slot is kept filled."""
    monkeypatch.setattr("workers.supervisor.child_pool.spawn", start_idle_process)
    caplog.set_level(logging.INFO, "workers.supervisor")
    made = ChildPool([], WorkerOptions(settings=Settings("redis://localhost")), SystemClock(), grace=0, exit_timeout=30)
    filled = asyncio.create_task(made.keep_slot_filled(0))
    await eventually(lambda: 0 in made.current, "the first process")
    yield made
    made.stop()
    await filled
    await made.wait_until_empty()


def ends(pool: ChildPool) -> dict[str, float]:
    """Return how many processes of a pool have ended in each way."""
    return {labels[0]: count for labels, count in pool.metrics.gather(pool).values[catalog.PROCESS_ENDS.name].items()}


def has_next_process(pool: ChildPool, old: ChildProcess) -> bool:
    """Return True if another process than the old one is in the slot of a pool."""
    return pool.current.get(0) not in (None, old)


async def test_process_that_a_roll_stops_while_it_starts_is_logged_and_counted_as_stopped(
    pool: ChildPool, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = pool.current[0], await pool.start_successor(0)
    assert new is not None
    await pool.hand_over_slot(0, new)
    assert pool.current[0] is new
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            f"worker process {old.pid} was stopped before it had started: it held no runs; worker process {new.pid} takes over",
        )
    ]
    assert ends(pool) == {"drained": 0, "stopped": 1, "died": 0}


async def test_new_process_that_a_roll_dismisses_while_it_starts_is_logged_and_counted_as_stopped(
    pool: ChildPool, caplog: pytest.LogCaptureFixture
) -> None:
    new = await pool.start_successor(0)
    assert new is not None
    await pool.dismiss_successor(0, new)
    assert [record.getMessage() for record in caplog.records] == [
        f"worker process {new.pid} was stopped before it had started: it held no runs; the process before it stays"
    ]
    assert ends(pool) == {"drained": 0, "stopped": 1, "died": 0}


async def test_processes_that_are_stopped_while_they_start_do_not_delay_the_next_process(
    pool: ChildPool, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = []
    for _ in range(FREE_RESTARTS + 1):
        stopped.append(old := pool.current[0])
        old.drain()
        await old.wait_until_gone()
        await eventually(partial(has_next_process, pool, old), "the next process")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            f"worker process {child.pid} was stopped before it had started: it held no runs; starting another worker process",
        )
        for child in stopped
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_starting_process_that_another_program_ends_is_logged_and_counted_as_died(
    pool: ChildPool, caplog: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    old = pool.current[0]
    os.kill(old.pid, number)
    await old.wait_until_gone()
    await eventually(partial(has_next_process, pool, old), "the next process")
    assert [record.getMessage() for record in caplog.records] == [
        f"worker process {old.pid} died ({number.name}): it held no runs; starting another worker process"
    ]
    assert ends(pool) == {"drained": 0, "stopped": 0, "died": 1}


async def test_process_that_had_announced_a_worker_counts_as_died_if_it_ends_without_a_last_report() -> None:
    child = await start_idle_process()
    child.worker_ids.add((0, "w1"))
    child.drain()
    await child.process.wait()
    child.record_exit()
    child.close()
    assert (child.stopped, child.ending, child.lifecycle.blame) == (False, "died (SIGTERM)", "")
