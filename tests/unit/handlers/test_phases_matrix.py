"""Phases across crashes: one name in every turn, one name many times in a turn, and a handler that a deploy has changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from workers import AsyncRun, Registry, Run, testing

TURNS = 6
runs: Registry[Any] = Registry()


@dataclass
class World:
    """Records the external effects of a handler."""

    effects: list[Any] = field(default_factory=list)

    def act(self, what: Any) -> dict[str, Any]:
        self.effects.append(what)
        return {"of": what, "number": len(self.effects)}

    async def act_async(self, what: Any) -> dict[str, Any]:
        return self.act(what)


def effects(world: World) -> list[Any]:
    return world.effects


@runs.handler
async def turns(run: AsyncRun[World]) -> list[Any]:
    """Run a phase of the same name in each turn, and append its output to the messages."""
    async for turn in run.loop(limit=TURNS):
        output = await run.phase("act", run.resources.act_async, turn)
        run.messages.append(output)
    return run.messages.copy()


@runs.handler
def plain_turns(run: Run[World]) -> list[Any]:
    for turn in run.loop(limit=TURNS):
        run.messages.append(run.phase("act", run.resources.act, turn))
    return run.messages.copy()


@runs.handler
async def thread_turns(run: AsyncRun[World]) -> list[Any]:
    """Run a sync function in a phase of an async handler."""
    async for turn in run.loop(limit=TURNS):
        run.messages.append(await run.phase("act", run.resources.act, turn))
    return run.messages.copy()


@runs.handler
async def twins(run: AsyncRun[World]) -> list[Any]:
    """Use one name three times in a turn, and once before and after the loop."""
    outputs = [await run.phase("act", run.resources.act_async, "before")]
    async for turn in run.loop(limit=TURNS):
        acts = [await run.phase("act", run.resources.act_async, [turn, number]) for number in range(3)]
        run.messages.extend(acts)  # not in between, because the end of a phase is a cut and the turn starts again
    return [*outputs, *run.messages.copy(), await run.phase("act", run.resources.act_async, "after")]


@runs.handler
def plain_twins(run: Run[World]) -> list[Any]:
    outputs = [run.phase("act", run.resources.act, "before")]
    for turn in run.loop(limit=TURNS):
        run.messages.extend([run.phase("act", run.resources.act, [turn, number]) for number in range(3)])
    return [*outputs, *run.messages.copy(), run.phase("act", run.resources.act, "after")]


@pytest.mark.parametrize("handler", [turns, plain_turns, thread_turns], ids=lambda h: h.kind)
def test_one_phase_per_turn_has_one_effect_per_turn_for_every_kill_point(handler: Any) -> None:
    matrix = testing.crash_matrix(handler.inputs(), resources=World, effects=effects)
    assert matrix.effects == list(range(TURNS))
    assert matrix.result == [{"of": turn, "number": turn + 1} for turn in range(TURNS)]
    assert matrix.cuts == 2 * TURNS, "after each phase and after each turn"


@pytest.mark.parametrize("handler", [twins, plain_twins], ids=lambda h: h.kind)
def test_equal_names_inside_a_turn_and_around_the_loop_stay_distinct_for_every_kill_point(handler: Any) -> None:
    matrix = testing.crash_matrix(handler.inputs(), resources=World, effects=effects)
    acts = ["before", *([turn, number] for turn in range(TURNS) for number in range(3)), "after"]
    assert matrix.effects == acts
    assert matrix.result == [{"of": what, "number": number} for number, what in enumerate(acts, 1)]


async def called(handler: Any, run: testing.AsyncRun | testing.Run) -> Any:
    value = handler.function(run)
    return await value if inspect.isawaitable(value) else value


async def killed(handler: Any, run: testing.AsyncRun | testing.Run) -> None:
    with pytest.raises(testing.Crash):
        await called(handler, run)


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("handler", [turns, plain_turns, thread_turns, twins, plain_twins], ids=lambda h: h.kind)
async def test_run_that_is_killed_repeatedly_does_each_step_once(handler: Any, every: int) -> None:
    """Each attempt is killed after that number of cuts."""
    whole = testing.crash_matrix(handler.inputs(), resources=World, effects=effects)
    world = World()
    make = testing.AsyncRun if handler.is_async else testing.Run
    run: Any = make(world, backing=testing.MemoryBacking(crash_at=every))
    for _ in range(whole.cuts // every):
        await killed(handler, run)
        run = run.after_crash(testing.MemoryBacking(crash_at=every))
    assert await called(handler, run) == whole.result
    assert world.effects == whole.effects
    assert all(name.startswith("phase:-:") for name in run._draft.phases), "those of a turn go with it"


# ---- a deploy between two attempts -------------------------------------------------------------------------------------


def outlined(*names: str) -> Any:
    """Return a handler with these phases in order, each with its own output."""
    made: Registry[Any] = Registry()

    @made.handler
    async def report(run: AsyncRun[World]) -> dict[str, Any]:
        return {name: (await run.phase(name, run.resources.act_async, name))["of"] for name in names}

    return report


def looped(*names: str) -> Any:
    made: Registry[Any] = Registry()

    @made.handler
    def report(run: Run[World]) -> list[Any]:
        for turn in run.loop(limit=3):
            outputs = {name: run.phase(name, run.resources.act, [turn, name])["of"] for name in names}
            run.messages.append(outputs)
        return run.messages.copy()

    return report


CHANGES = [
    pytest.param(("a", "c"), ("a", "b", "c"), id="inserted"),
    pytest.param(("a", "c"), ("b", "a", "c"), id="before all"),
    pytest.param(("a", "c"), ("c", "a"), id="the other way round"),
    pytest.param(("a", "b", "c"), ("a", "c"), id="left out"),
    pytest.param(("a",), ("a2",), id="renamed"),
    pytest.param(("a", "a#0"), ("a#0", "a", "b"), id="a name like a count"),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("make", [outlined, looped], ids=["async", "turns, plain"])
async def test_after_a_deploy_no_phase_gets_the_output_of_another(
    make: Callable[..., Any], before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """The old handler is killed at each of its cuts in turn, and the new handler resumes the run."""
    old, new = make(*before), make(*after)
    number = 0
    while True:
        number += 1
        world = World()
        kind = testing.AsyncRun if old.is_async else testing.Run
        first: Any = kind(world, backing=testing.MemoryBacking(crash_at=number))
        try:
            await called(old, first)
        except testing.Crash:
            done = list(world.effects)
        else:
            break
        again = first.after_crash()
        turn = again.iteration
        result = await called(new, again)
        for place, outputs in enumerate([result] if make is outlined else result):
            names = before if make is looped and place < turn else after
            assert outputs == {name: name if make is outlined else [place, name] for name in names}
        assert all(world.effects.count(what) == 1 for what in done), "what was done is not done again"
    assert number > 1
