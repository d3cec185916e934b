"""The handlers of the lab. What they leave in a transcript follows from their inputs, so that any loss or damage is seen.

Each writes what it does to the journal: its start with how much was there, each step, what was acknowledged, its end.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from typing import Any

from coordinator.model.deadline import Watched
from tests.e2e.app import journal
from tests.waiting import block_for, work_for
from workers import AsyncRun, Deadline, Extend, Kill, Registry, Retry, Run

runs = Registry()
SLOW = 0.03  # seconds that a turn takes at most


def message(topic: str, turn: int) -> dict[str, Any]:
    """The message of a turn. Topics that begin with 'large' have long ones, so that their checkpoints are read in pages."""
    text = hashlib.sha256(f"{topic} {turn}".encode()).hexdigest()
    return {"role": "assistant", "turn": turn, "content": text * (300 if topic.startswith("large") else 1)}


def result(topic: str, turns: int) -> str:
    """What a run comes to, however often it was interrupted."""
    return digest([message(topic, turn) for turn in range(turns)])


def digest(messages: Sequence[Any]) -> str:
    text = "\n".join(f"{message['turn']} {message['content']}" for message in messages)
    return f"{len(messages)} {hashlib.sha256(text.encode()).hexdigest()}"


def begin(run: AsyncRun | Run, topic: str) -> None:
    """Says what was there when the attempt began, and whether it is what was written."""
    there = len(run.messages)
    journal(run, "start", there)
    if [dict(kept) for kept in run.messages] != [message(topic, turn) for turn in range(there)]:
        journal(run, "damaged", there)


def said(run: AsyncRun | Run, turn: int) -> bool:
    """Whether an attempt that was interrupted in this turn has left its message; else the step is to be done now."""
    if len(run.messages) > turn:
        return True
    journal(run, "step", turn)
    return False


@runs.handler(throttle=0.05)
async def agent(run: AsyncRun, topic: str, turns: int) -> str:
    """Saves in all the ways there are: throttled, flushed, by a phase, by a turn's end."""
    begin(run, topic)
    async for turn in run.loop(limit=turns):
        if not said(run, turn):
            await work_for(random.uniform(0, SLOW))
            run.messages.append(message(topic, turn))
        if turn % 4 == 1:
            run.checkpoint()  # a cut before the phase: a stop at its beginning would leave the message unfinished
            await run.phase("look", asyncio.sleep, random.uniform(0, SLOW))
        if turn % 3 == 2:
            run.state["turn"] = turn
            await run.flush()
            journal(run, "saved", len(run.messages))
    journal(run, "end", len(run.messages))
    return digest(run.messages)


@runs.handler(throttle=0)
def plain(run: Run, topic: str, turns: int) -> str:
    """The same in a thread, each turn saved."""
    begin(run, topic)
    for turn in run.loop(limit=turns):
        if not said(run, turn):
            block_for(random.uniform(0, SLOW))
            run.messages.append(message(topic, turn))
        run.note("turns", done=turn, total=turns)
    journal(run, "end", len(run.messages))
    return digest(run.messages)


@runs.handler(throttle=0.05, retry=Retry(limit=50, wait=0.1))
async def stumbling(run: AsyncRun, topic: str, turns: int) -> str:
    """Raises now and then, with something new each time, and is tried again."""
    begin(run, topic)
    async for turn in run.loop(limit=turns):
        if not said(run, turn):
            await work_for(random.uniform(0, SLOW))
            run.messages.append(message(topic, turn))
        if turn % 5 == 4 and run.state.get("stumbled") != turn:
            run.state["stumbled"] = turn
            await run.flush()
            journal(run, "saved", len(run.messages))
            raise OSError("a stone in the way")
    journal(run, "end", len(run.messages))
    return digest(run.messages)


@runs.handler
async def failing(run: AsyncRun, topic: str, turns: int) -> str:
    """Comes to a failure that nobody tries again."""
    begin(run, topic)
    if not said(run, 0):
        run.messages.append(message(topic, 0))
    await run.flush()
    journal(run, "saved", len(run.messages))
    await work_for(random.uniform(0, SLOW * turns))
    journal(run, "end", len(run.messages))
    raise ValueError("as it should")


@runs.handler(throttle=0)
async def fitting(run: AsyncRun, topic: str, turns: int) -> str:
    """An ordinary run. An operator also enqueues some with an input that it does not know: those can't be started."""
    begin(run, topic)
    async for turn in run.loop(limit=turns):
        if not said(run, turn):
            await work_for(random.uniform(0, SLOW))
            run.messages.append(message(topic, turn))
    journal(run, "end", len(run.messages))
    return digest(run.messages)


def patience(run: Watched) -> Extend | Kill:
    return Extend(0.3) if run.extensions == 0 else Kill("it was given more time once")


@runs.handler(deadline=Deadline(soft=0.3, hard=30.0, escalator=patience))
async def overdue(run: AsyncRun, topic: str, turns: int) -> str:
    """Never comes to an end: its critic gives it more time, and then kills it."""
    begin(run, topic)
    if not said(run, 0):
        run.messages.append(message(topic, 0))
    await run.flush()
    journal(run, "saved", len(run.messages))
    while True:
        run.checkpoint()  # where it is told to stop
        await work_for(SLOW * turns)
