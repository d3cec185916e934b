"""A drain inside a turn of `run.loop` stops the handler only where the turn can be resumed without repeating it."""

from __future__ import annotations

from typing import Any

import pytest

from workers import AsyncRun, Registry, Run, Stopped, testing

runs = Registry()
TURNS = 6


@runs.handler
async def flushes_each_turn(run: AsyncRun) -> list[int]:
    async for turn in run.loop(limit=TURNS):
        run.messages.append(turn)
        await run.flush()
    return list(run.messages)


@runs.handler
def flushes_each_turn_plain(run: Run) -> list[int]:
    for turn in run.loop(limit=TURNS):
        run.messages.append(turn)
        run.flush()
    return list(run.messages)


@runs.handler
async def checkpoints_each_turn(run: AsyncRun) -> list[int]:
    async for turn in run.loop(limit=TURNS):
        run.messages.append(turn)
        run.checkpoint()
    return list(run.messages)


@runs.handler
async def counts_in_its_state(run: AsyncRun) -> int:
    async for _ in run.loop(limit=TURNS):
        run.state["count"] = run.state.get("count", 0) + 1
        await run.phase("tell", str, run.state["count"])
    return int(run.state["count"])


@runs.handler
def counts_in_its_state_plain(run: Run) -> int:
    for _ in run.loop(limit=TURNS):
        run.state["count"] = run.state.get("count", 0) + 1
        run.phase("tell", str, run.state["count"])
    return int(run.state["count"])


@runs.handler
async def replaces_its_transcript(run: AsyncRun) -> list[int]:
    async for turn in run.loop(limit=TURNS):
        run.messages.replace([*run.messages, turn][-3:])
        await run.flush()
    return list(run.messages)


@runs.handler
async def asks_and_saves_in_a_phase(run: AsyncRun) -> list[Any]:
    """The stop may also come at the beginning of a phase."""
    async for turn in run.loop(limit=TURNS):
        run.messages.append(turn)
        await run.flush()
        await run.phase("store", str, turn)
        run.messages.append(-turn)
    return list(run.messages)


HANDLERS = list(runs.handlers.values())


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.kind)
def test_a_drain_repeats_no_turn(handler: Any) -> None:
    assert testing.drain_matrix(handler.inputs()).cuts >= TURNS


def run_for(*messages: Any) -> testing.Run:
    run = testing.Run()
    run.messages.extend(messages)
    return run


CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "search", "arguments": "{}"}}]}


def test_a_drain_stops_inside_a_turn_with_open_tool_calls() -> None:
    run = run_for()
    for _ in run.loop(limit=1):
        run.messages.append(CALL)
        run.stop()
        with pytest.raises(Stopped):
            run.checkpoint()
        return


def test_a_drain_stops_inside_a_turn_that_has_only_run_phases() -> None:
    run = run_for()
    for _ in run.loop(limit=1):
        run.phase("first", str, 1)
        run.stop()
        with pytest.raises(Stopped):
            run.phase("second", str, 2)
        return


@pytest.mark.parametrize("why", ["cancel", "deadline", "lost"])
def test_other_stops_are_raised_immediately(why: Any) -> None:
    run = run_for()
    for _ in run.loop(limit=1):
        run.messages.append(1)
        run.stop(why)
        with pytest.raises(Stopped):
            run.flush()
        return


def test_a_deferred_drain_is_raised_at_the_end_of_the_turn() -> None:
    run = run_for()
    turns = run.loop(limit=3)
    run.messages.append(next(turns))
    run.stop()
    run.flush()
    with pytest.raises(Stopped):
        next(turns)
    assert run.iteration == 1


def test_outside_of_a_loop_every_cut_stops() -> None:
    run = run_for()
    run.messages.append(1)
    run.stop()
    with pytest.raises(Stopped):
        run.flush()
