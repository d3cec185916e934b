"""The handlers of the lab. Their transcripts follow from their inputs, so that any loss or damage is visible.

Each handler writes its progress to the journal: its start with the number of messages that it found, each step, each
acknowledged save, its end.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.model.policies.deadline import Watched
from tests.e2e.app import journal
from tests.waiting import block_for, work_for
from workers import AsyncRun, Budget, ChildFailed, Deadline, Extend, Kill, Registry, Retry, Run

runs = Registry()
SLOW = 0.03  # the longest turn, in seconds
BUDGET = 6  # requests of a run of the kind `spending`
RATE = "outside"  # the name of the rate under which runs call the outside


def message(topic: str, turn: int) -> dict[str, Any]:
    """Return the message of a turn. Topics that begin with 'large' have long messages, so that checkpoints need several pages."""
    text = hashlib.sha256(f"{topic} {turn}".encode()).hexdigest()
    return {"role": "assistant", "turn": turn, "content": text * (300 if topic.startswith("large") else 1)}


def result(topic: str, turns: int) -> str:
    """Return the result of a run, which does not depend on interruptions."""
    return digest([message(topic, turn) for turn in range(turns)])


def digest(messages: Sequence[Any]) -> str:
    text = "\n".join(f"{message['turn']} {message['content']}" for message in messages)
    return f"{len(messages)} {hashlib.sha256(text.encode()).hexdigest()}"


def begin(run: AsyncRun | Run, topic: str) -> None:
    """Write down what was stored when the attempt began, and whether it is correct."""
    there = len(run.messages)
    journal(run, "start", there)
    if [dict(kept) for kept in run.messages] != [message(topic, turn) for turn in range(there)]:
        journal(run, "damaged", there)


def has_message(run: AsyncRun | Run, turn: int) -> bool:
    """Return whether an interrupted attempt has left the message of this turn. If not, the step is to be done now."""
    if len(run.messages) > turn:
        return True
    journal(run, "step", turn)
    return False


@runs.handler(throttle=0.05)
async def agent(run: AsyncRun, topic: str, turns: int) -> str:
    """Save in all possible ways: throttled, flushed, by a phase, at the end of a turn."""
    begin(run, topic)
    async for turn in run.loop(limit=turns):
        if not has_message(run, turn):
            await work_for(random.uniform(0, SLOW))
            run.messages.append(message(topic, turn))
            run.emit(turn)  # No cut separates it from the message, so a resumed attempt has both or none.
        if turn % 4 == 1:
            run.checkpoint()  # A cut before the phase: a stop at the phase's beginning would discard the message.
            await run.phase("look", asyncio.sleep, random.uniform(0, SLOW))
        if turn % 3 == 2:
            run.state["turn"] = turn
            await run.flush()
            journal(run, "saved", len(run.messages))
    journal(run, "end", len(run.messages))
    return digest(run.messages)


@runs.handler(throttle=0)
def plain(run: Run, topic: str, turns: int) -> str:
    """Do the same in a thread, and save each turn."""
    begin(run, topic)
    for turn in run.loop(limit=turns):
        if not has_message(run, turn):
            block_for(random.uniform(0, SLOW))
            run.messages.append(message(topic, turn))
        run.note("turns", done=turn, total=turns)
    journal(run, "end", len(run.messages))
    return digest(run.messages)


@runs.handler(throttle=0.05, retry=Retry(limit=50, wait=0.1))
async def stumbling(run: AsyncRun, topic: str, turns: int) -> str:
    """Raise an error now and then, after some progress, and be retried."""
    begin(run, topic)
    async for turn in run.loop(limit=turns):
        if not has_message(run, turn):
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
    """Fail without a retry."""
    begin(run, topic)
    if not has_message(run, 0):
        run.messages.append(message(topic, 0))
    await run.flush()
    journal(run, "saved", len(run.messages))
    await work_for(random.uniform(0, SLOW * turns))
    journal(run, "end", len(run.messages))
    raise ValueError("as it should")


@runs.handler(throttle=0)
async def fitting(run: AsyncRun, topic: str, turns: int) -> str:
    """Run normally. The operator also enqueues runs with an unknown input, which cannot start."""
    begin(run, topic)
    async for turn in run.loop(limit=turns):
        if not has_message(run, turn):
            await work_for(random.uniform(0, SLOW))
            run.messages.append(message(topic, turn))
    journal(run, "end", len(run.messages))
    return digest(run.messages)


@runs.handler(throttle=0.05, linger=0.2)
async def asking(run: AsyncRun, topic: str, turns: int) -> str:
    """Wait in each turn for an answer, now and then for a hint with a timeout, and for a time."""
    begin(run, topic)
    async for turn in run.loop(limit=turns):
        run.spend(requests=1)
        answer = await run.receive("answer")
        journal(run, "received", answer.number)
        if (answer.number, answer.payload) != (turn + 1, turn):
            journal(run, "disordered", answer.number)
        if turn % 2:
            await run.receive("hint", timeout=random.choice([0.05, 0.5]), default=None)
        if turn % 3 == 2:
            await run.sleep(random.choice([0.05, 0.5]))
        if not has_message(run, turn):
            run.messages.append(message(topic, turn))
    journal(run, "end", len(run.messages))
    return digest(run.messages)


def answer_all(send: Callable[[str, int, str], object], turns: int) -> None:
    """Send a run all its answers, each after the one before, with keys, so that any process may do so at any time."""
    for turn in range(turns):
        send("answer", turn, f"answer {turn}")


@runs.handler(throttle=0.05, linger=0.1)
async def summing(run: AsyncRun, topic: str, turns: int) -> int:
    """Add up the results of children. A child that did not complete gets a successor in the next step."""
    begin(run, topic)
    missing, total = list(range(1, turns + 1)), 0
    while missing:
        found = await run.gather(
            "parts", [part.inputs(f"{topic}-{n}", n) for n in missing], at_once=3, return_failures=True
        )
        total += sum(one for one in found if not isinstance(one, ChildFailed))
        missing = [n for n, one in zip(missing, found, strict=True) if isinstance(one, ChildFailed)]
    journal(run, "end", total)
    return total


@runs.handler(throttle=0.05)
async def part(run: AsyncRun, topic: str, turns: int) -> int:
    """Run as a child of `summing`."""
    begin(run, topic)
    if not has_message(run, 0):
        await work_for(random.uniform(0, SLOW))
        run.messages.append(message(topic, 0))
    journal(run, "end", turns)
    return turns


@runs.handler(throttle=0.05, retry=Retry(limit=50, wait=0.1))
async def charging(run: AsyncRun, topic: str, turns: int) -> str:
    """Make an effect in each turn, without a check: if its outcome is unknown, the run fails."""
    begin(run, topic)

    async def charge(turn: int) -> int:
        journal(run, "effect", turn)
        await work_for(random.uniform(0, SLOW))
        return turn

    async for turn in run.loop(limit=turns):
        await run.once(f"charge {turn}", charge, turn)
        if not has_message(run, turn):
            run.messages.append(message(topic, turn))
    journal(run, "end", len(run.messages))
    return digest(run.messages)


@runs.handler(throttle=0.05, budget=Budget(requests=BUDGET))
async def spending(run: AsyncRun, topic: str, turns: int) -> str:
    """Spend something in each turn, and fail when the budget is spent."""
    begin(run, topic)

    async def spend() -> None:
        journal(run, "spent", 1)
        run.spend(requests=1)
        await work_for(random.uniform(0, SLOW))

    async for turn in run.loop(limit=turns):
        await run.phase("spend", spend)
        if not has_message(run, turn):
            run.messages.append(message(topic, turn))
    journal(run, "end", len(run.messages))
    return digest(run.messages)


@runs.handler(throttle=0.05)
async def calling(run: AsyncRun, topic: str, turns: int) -> str:
    """Call the outside under a rate in each turn. Now and then the other side asks for a pause."""
    begin(run, topic)
    async for turn in run.loop(limit=turns):
        async with run.limit(RATE, cost=random.randint(1, 5)) as limit:
            await work_for(random.uniform(0, SLOW))
            if random.random() < 0.1:
                limit.back_off(0.2)
        if not has_message(run, turn):
            run.messages.append(message(topic, turn))
    journal(run, "end", len(run.messages))
    return digest(run.messages)


def expected_result(kind: str, topic: str, turns: int) -> object:
    """Return the result of a completed run."""
    if kind == "summing":
        return sum(range(1, turns + 1))
    return turns if kind == "part" else result(topic, turns)


def patience(run: Watched) -> Extend | Kill:
    return Extend(0.3) if run.extensions == 0 else Kill("it was given more time once")


@runs.handler(deadline=Deadline(soft=0.3, hard=30.0, escalator=patience))
async def overdue(run: AsyncRun, topic: str, turns: int) -> str:
    """Never end. The escalator first extends the deadline and then kills the run."""
    begin(run, topic)
    if not has_message(run, 0):
        run.messages.append(message(topic, 0))
    await run.flush()
    journal(run, "saved", len(run.messages))
    while True:
        run.checkpoint()  # the cut at which the stop is delivered
        await work_for(SLOW * turns)
