"""Phases that run at the same time, while the worker drains."""

import asyncio
from typing import Any

import pytest

from coordinator.errors import Refused
from workers import AsyncRun, Registry, Run, Stopped, current_run
from workers.testing import AsyncRun as MemoryRun
from workers.testing import Run as PlainMemoryRun
from workers.testing import drain_matrix

pytestmark = pytest.mark.unit
runs = Registry()


class Journal(list[str]):
    """The calls of the phases, and a door that keeps the slow ones waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.door = asyncio.Event()


@runs.handler
async def two_chains(run: AsyncRun[Any]) -> list[str]:
    async def work(name: str, steps: int) -> str:
        for step in range(steps):
            await run.phase(f"{name}-{step}", do, name, step)
        return name

    async def do(name: str, step: int) -> None:
        run.resources.append(f"{name} {step}")
        await asyncio.sleep(0 if name == "short" else 0.001)  # a phase that takes longer than the others

    async with asyncio.TaskGroup() as group:
        chains = [group.create_task(work("short", 4)), group.create_task(work("long", 2))]
    return [chain.result() for chain in chains]


def test_a_drain_at_any_cut_repeats_no_phase_that_ran_beside_others():
    drain_matrix(two_chains.inputs(), resources=Journal, effects=sorted)


async def test_the_stop_is_raised_when_the_last_parallel_phase_has_ended():
    run = MemoryRun(Journal())

    async def quick() -> None:
        run.stop("drain")

    async def slow() -> str:
        await run.resources.door.wait()
        return "kept"

    slow_phase = asyncio.ensure_future(run.phase("slow", slow))
    await asyncio.sleep(0)  # the started phase reaches its function
    await run.phase("quick", quick)
    run.resources.door.set()
    with pytest.raises(Stopped):
        await slow_phase
    assert await run.after_release().phase("slow", slow) == "kept"


async def test_a_phase_does_not_begin_beside_others_during_a_drain():
    run, begun = MemoryRun(Journal()), list[str]()

    async def slow() -> None:
        await run.resources.door.wait()

    async def late(name: str) -> None:
        begun.append(name)

    slow_phase = asyncio.ensure_future(run.phase("slow", slow))
    await asyncio.sleep(0)  # the started phase reaches its function
    run.stop("drain")
    late_phases = [asyncio.ensure_future(run.phase(name, late, name)) for name in ("a", "b")]
    await asyncio.sleep(0)  # both phases reach the point where they wait
    assert not any(phase.done() for phase in late_phases)
    run.resources.door.set()
    ended = await asyncio.gather(slow_phase, *late_phases, return_exceptions=True)
    assert begun == []
    assert all(isinstance(error, Stopped) for error in ended[1:])


async def test_a_cancel_does_not_wait_for_parallel_phases():
    run = MemoryRun(Journal())

    async def slow() -> None:
        await run.resources.door.wait()

    slow_phase = asyncio.ensure_future(run.phase("slow", slow))
    await asyncio.sleep(0)  # the started phase reaches its function
    run.stop("cancel")
    with pytest.raises(Stopped):
        await run.phase("late", slow)
    slow_phase.cancel()


async def test_a_phase_inside_a_phase_does_not_wait_for_the_outer_phase():
    run = MemoryRun(Journal())

    async def outer() -> None:
        run.stop("drain")
        await run.phase("inner", inner)

    async def inner() -> None:
        raise AssertionError("the phase must not begin")

    with pytest.raises(Stopped):
        async with asyncio.timeout(10):
            await run.phase("outer", outer)


async def test_clean_up_after_a_drain_may_run_parallel_phases():
    run, done = MemoryRun(Journal()), list[str]()

    async def tidy(name: str) -> None:
        await asyncio.sleep(0)  # the other phase begins meanwhile
        done.append(name)

    run.stop("drain")
    with pytest.raises(Stopped):
        await run.phase("work", tidy, "work")
    await asyncio.gather(run.phase("a", tidy, "a"), run.phase("b", tidy, "b"))
    assert done == ["a", "b"]


# -- the current run


@runs.handler
async def asks(run: AsyncRun) -> bool:
    async def inside() -> bool:
        return current_run() is run

    return current_run() is run and await run.phase("inside", inside)


@runs.handler
def asks_plain(run: Run) -> bool:
    return current_run() is run


async def test_code_that_a_handler_calls_gets_the_current_run():
    assert await asks(MemoryRun())
    assert asks_plain(PlainMemoryRun())


def test_outside_of_a_handler_there_is_no_current_run():
    with pytest.raises(Refused, match="no current run"):
        current_run()
