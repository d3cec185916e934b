"""`run.enqueue` and `run.gather` without a server: runs in memory keep what a handler enqueues, and execute its children."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import KeyConflict, Refused
from workers import AsyncRun as WorkerAsyncRun
from workers import Registry, testing
from workers import Run as WorkerRun

runs = Registry()


@runs.handler
async def notify(run: WorkerAsyncRun, users: list[str]) -> list[str]:
    return [(await run.enqueue("mail", {"user": user}, delay=60)).id for user in users]


@runs.handler
def notify_plainly(run: WorkerRun, users: list[str]) -> list[str]:
    return [run.enqueue("mail", {"user": user}, delay=60).id for user in users]


async def test_run_in_memory_keeps_what_it_enqueues() -> None:
    run: Any = testing.AsyncRun()
    ids = await notify.function(run, ["ada", "bob"])
    assert [(one.id, one.kind, one.inputs, one.options) for one in run.enqueued] == [
        (id, "mail", {"user": user}, {"delay": 60}) for id, user in zip(ids, ["ada", "bob"], strict=True)
    ]
    handle = await testing.AsyncRun().enqueue("mail")
    with pytest.raises(Refused, match="does not execute"):
        await handle.result()


@pytest.mark.parametrize("crash_at", [1, 2, 3, 4])
def test_crashed_handler_enqueues_each_run_once(crash_at: int) -> None:
    first: Any = testing.Run(backing=testing.MemoryBacking(crash_at=crash_at))
    with pytest.raises(testing.Crash):
        notify_plainly.function(first, ["ada", "bob"])
    second: Any = first.after_crash()
    ids = notify_plainly.function(second, ["ada", "bob"])
    assert [one.id for one in second.enqueued] == ids
    assert [one.inputs["user"] for one in second.enqueued] == ["ada", "bob"]


def test_key_in_memory_names_one_run() -> None:
    run = testing.Run()
    first, again = run.enqueue("mail", {"n": 1}, key="k"), run.enqueue("mail", {"n": 1}, key="k")
    assert (first.created, again.created, first.id == again.id) == (True, False, True)
    with pytest.raises(KeyConflict):
        run.enqueue("mail", {"n": 2}, key="k")


@runs.handler
def double(run: WorkerRun, n: int) -> int:
    return 2 * n


def test_run_in_memory_executes_the_children_that_it_waits_for() -> None:
    assert testing.Run().gather("all", [double.inputs(1), double.inputs(2)]) == [2, 4]
