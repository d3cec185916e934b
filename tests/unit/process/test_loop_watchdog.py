"""When a blocked event loop is logged, when it has been blocked for too long, and which run blocks it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from coordinator.clock import SystemClock
from coordinator.logs import about
from tests.waiting import eventually
from workers.liveness import loop_watchdog as blocked
from workers.liveness.loop_watchdog import NO_RUN, TICK, BlockTimer, LoopWatchdog, run_of


def ticks(timer: BlockTimer, seconds: float, *, moved: bool = False) -> list[str]:
    marks = (timer.tick(TICK, moved=moved) for _ in range(round(seconds / TICK)))
    return [mark for mark in marks if mark]


def test_each_threshold_is_reported_once():
    timer = BlockTimer(15)
    assert ticks(timer, 0.75) == []
    assert ticks(timer, 0.25) == ["log"]
    assert ticks(timer, 13.75) == []
    assert ticks(timer, 30) == ["limit"]


def test_loop_that_moves_resets_the_timer():
    timer = BlockTimer(15)
    for _ in range(100):
        assert ticks(timer, 0.75) == []
        assert ticks(timer, TICK, moved=True) == []
    assert ticks(timer, 1) == ["log"]


def test_suspended_process_does_not_count_as_a_blocked_loop():
    timer = BlockTimer(15)
    assert timer.tick(3600, moved=False) is None
    assert timer.seconds <= 2 * TICK


def test_late_ticks_on_a_busy_machine_count_in_full():
    """Ticks that take twice their time still count in full."""
    timer = BlockTimer(15)
    assert [timer.tick(2 * TICK, moved=False) for _ in range(2)] == [None, "log"]


def seen_from_a_thread(loop: asyncio.AbstractEventLoop) -> str:
    """Block the event loop, and return the run that a thread sees in it meanwhile."""
    found: list[str] = []
    looking = threading.Thread(target=lambda: found.append(run_of(asyncio.current_task(loop))))
    looking.start()
    looking.join(60)
    return found[0]


async def test_run_is_identified_from_its_own_task_and_its_task_groups():
    loop = asyncio.get_running_loop()

    async def handler(run: str) -> list[str]:
        about.set({"run": run})
        found = [seen_from_a_thread(loop)]

        async def part() -> None:
            found.append(seen_from_a_thread(loop))

        async with asyncio.TaskGroup() as group:
            group.create_task(part())
        return found

    assert list(await asyncio.gather(handler("one"), handler("two"))) == [["one", "one"], ["two", "two"]]


async def test_no_run_is_blamed_for_work_outside_all_runs():
    loop = asyncio.get_running_loop()
    assert seen_from_a_thread(loop) == NO_RUN
    found: asyncio.Future[Any] = loop.create_future()
    loop.call_soon(lambda: found.set_result(seen_from_a_thread(loop)))
    assert await found == NO_RUN


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("supervised", [True, False])
async def test_blocked_loop_is_logged_with_its_stack_and_the_process_is_replaced(monkeypatch, caplog, supervised: bool):
    monkeypatch.setattr(blocked, "LEAST_LIMIT", 1.5)
    asked: list[str] = []
    watched = LoopWatchdog(SystemClock(), 1.0, asked.append if supervised else None)
    watching = threading.Thread(target=lambda: asyncio.run(until_it_moves_again(watched)))

    async def blocks_the_loop_for_too_long() -> None:
        about.set({"run": "r1"})
        watching.start()
        gave_up = threading.Event()
        while not watched.too_long:
            assert not gave_up.wait(0.01)

    async with asyncio.timeout(60):
        await asyncio.create_task(blocks_the_loop_for_too_long())
        await eventually(lambda: not watching.is_alive(), "it to be seen that the loop moves again")
    assert asked == (["r1"] if supervised else [])
    assert "blocks_the_loop_for_too_long" in caplog.text
    assert "blocked by: r1" in caplog.text
    assert ("no supervisor replaces this process" in caplog.text) != supervised


async def until_it_moves_again(watched: LoopWatchdog) -> None:
    watching = asyncio.create_task(watched.watch())
    await eventually(lambda: watched.too_long, "the limit")
    await eventually(lambda: not watched.too_long, "it to move")
    watching.cancel()
