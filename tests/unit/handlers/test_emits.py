"""run.emit in memory: the events that a reader has at the end, and the matrices that compare them."""

from __future__ import annotations

import pytest

from coordinator import Note, NotPlain, TooLarge
from workers import AsyncRun, Registry, Run, testing

runs = Registry()


@runs.handler
async def counts(run: AsyncRun, turns: int) -> None:
    async for turn in run.loop(turns):
        run.emit({"turn": turn})
        run.note("counting", turn)


@runs.handler
def counts_plainly(run: Run, turns: int) -> None:
    for turn in run.loop(turns):
        run.emit(turn)
        run.checkpoint()


@runs.handler
async def says_its_attempt(run: AsyncRun) -> None:
    run.emit("begins")
    await run.flush()
    run.emit(run.attempt)
    await run.flush()


async def test_run_in_memory_has_the_events_of_its_handler() -> None:
    run = testing.AsyncRun()
    await counts(run, 2)
    assert run.emitted == [{"turn": 0}, Note("counting", 0), {"turn": 1}, Note("counting", 1)]


def test_next_attempt_begins_after_the_events_of_the_last_cut() -> None:
    run = testing.Run(backing=testing.MemoryBacking(crash_at=3))
    with pytest.raises(testing.Crash):
        counts_plainly(run, 4)
    assert run.emitted == [0, 1]
    again = run.after_crash()
    assert again.emitted == [0, 1]
    counts_plainly(again, 4)
    assert again.emitted == [0, 1, 1, 2, 3], "the turn that was interrupted after its cut begins again"


async def test_note_is_an_event_only_after_the_first_event() -> None:
    run = testing.AsyncRun()
    run.note("before")
    run.emit(1)
    run.note("after")
    assert run.emitted == [1, Note("after")]
    assert run.notes == [Note("before"), Note("after")]


def test_matrices_return_the_events() -> None:
    assert testing.crash_matrix(counts.inputs(1)).emitted == ({"turn": 0}, Note("counting", 0))
    assert len(testing.drain_matrix(counts.inputs(3)).emitted) == 6


def test_crash_matrix_notices_events_that_depend_on_the_attempt() -> None:
    with pytest.raises(AssertionError, match=r"the emitted events were \['begins', 'begins', 2\]"):
        testing.crash_matrix(says_its_attempt.inputs())


def test_value_that_cannot_be_stored_is_refused() -> None:
    run = testing.Run()
    with pytest.raises(NotPlain, match="the event"):
        run.emit({1, 2})
    with pytest.raises(TooLarge):
        run.emit("x" * 262_145)
    assert run.emitted == []
