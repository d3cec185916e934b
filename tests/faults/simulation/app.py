"""The handlers of a simulation. They check that acknowledged saves are present when they are called again."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

from coordinator.model.policies.deadline import Deadline
from coordinator.model.policies.retry import Retry, RetryLater
from tests.faults.simulation.laws.step import Broken
from workers.handlers.async_run import AsyncRun
from workers.handlers.registry import Registry


class Memory:
    """The acknowledged transcript of each run. No simulated fault affects it."""

    def __init__(self) -> None:
        self._saved: dict[
            str, list[tuple[int, list[Any]]]
        ] = {}  # run -> epoch of the owner that saved, and the whole transcript
        self._restarts: dict[str, int] = {}  # run -> epoch of its last revive from the start
        self.talks: dict[str, int] = {}  # run that waits for signals -> how many it waits for

    def restarted(self, id: str, epoch: int) -> None:
        """Forget earlier saves: an operator revived the run from the start."""
        self._saved.pop(id, None)
        self._restarts[id] = epoch

    def was_restarted(self, id: str) -> bool:
        """Return whether an operator revived the run from the start."""
        return id in self._restarts

    def began(self, run: AsyncRun[Any]) -> None:
        """Check that the saves of earlier owners are present.

        A live worker that was declared lost, and whose claim is answered late, begins with the checkpoint of the time
        of its claim, even if other owners have saved since then. Nothing can inform it in time, and the server refuses
        its writes.
        """
        have, saved = list(run.messages), self._longest(run.id, before=run.epoch)
        if have[: len(saved)] != saved:
            raise Broken(f"run {run.id} started with {have} although {saved} had been acknowledged")

    def flushed(self, run: AsyncRun[Any]) -> None:
        have = list(run.messages)
        if run.epoch > self._restarts.get(run.id, 0) and len(have) > len(self._longest(run.id)):
            self._saved.setdefault(run.id, []).append((run.epoch, have))

    def _longest(self, id: str, before: float = math.inf) -> list[Any]:
        found = [messages for epoch, messages in self._saved.get(id, []) if epoch < before]
        return max(found, key=len, default=[])


def registry(
    dice: random.Random, memory: Memory, crash: Callable[[], None], complain: Callable[[Broken], None]
) -> Registry[Any]:
    """Return handlers that sleep, save, fail and kill their process at random."""
    runs: Registry[Any] = Registry()

    def begin(run: AsyncRun[Any]) -> None:
        try:
            memory.began(run)
        except Broken as broken:
            complain(broken)
            raise

    async def work() -> str:
        await asyncio.sleep(dice.random() * dice.choice([0.02, 0.2, 0.5]))
        return "worked"

    @runs.handler(retry=Retry(limit=3, wait=0.5), throttle=0.5)
    async def agent(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        begin(run)
        async for turn in run.loop(limit=turns):
            if len(run.messages) <= turn:
                run.messages.append({"turn": turn, "by": run.token})
            run.state["turn"] = turn
            what = dice.random()
            if what < 0.4:
                await run.flush()
                memory.flushed(run)
            elif what < 0.5:
                run.checkpoint()
            elif what < 0.7:
                await run.phase("work", work)
                memory.flushed(run)
            await asyncio.sleep(dice.random() * dice.choice([0.01, 0.2, 0.2, 0.6]))
            if dice.random() < trouble:
                raise dice.choice([ValueError("trouble"), RetryLater(after=dice.random() * 2)])
        if [message["turn"] for message in run.messages] != list(range(turns)):
            complain(Broken(f"run {run.id} ends with {list(run.messages)}"))
        return turns

    @runs.handler(throttle=0.2)
    async def steps(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        begin(run)
        for step in range(turns):
            await run.phase(f"step-{step}", work)
        if dice.random() < trouble:
            raise ValueError("trouble")
        return turns

    @runs.handler(throttle=0.2, deadline=Deadline(soft=0.5, hard=3.0, progress=2.0))
    async def watched(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        begin(run)
        for step in range(turns):
            await run.phase(f"step-{step}", work)
            if dice.random() < 0.1:
                await asyncio.sleep(dice.choice([0.5, 5.0]))
        return turns

    @runs.handler(retry=Retry(limit=3, wait=0.5), throttle=0.2, linger=dice.choice([0.0, 0.3, 2.0]))
    async def chat(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Wait for one signal in each turn, for another one with a timeout, and for a time. The numbers must have no gap."""
        begin(run)
        memory.talks.setdefault(run.id, turns)
        async for turn in run.loop(limit=turns):
            talk = await run.receive("talk")
            if (talk.number, talk.payload) != (turn + 1, turn):
                complain(Broken(f"run {run.id} received {talk} in turn {turn}"))
            number = 0
            if turn % 2:
                hurry = await run.receive("hurry", timeout=dice.choice([0.1, 1.0, 3.0]), default=None)
                before = max((message["hurry"] for message in run.messages[:turn]), default=0)
                number = before if hurry is None else hurry.number
                if hurry is not None and (hurry.number, hurry.payload) != (before + 1, before):
                    complain(Broken(f"run {run.id} received {hurry} after {before} in turn {turn}"))
            if turn % 3 == 2:
                await run.sleep(dice.choice([0.05, 0.5, 3.0]))
            if len(run.messages) <= turn:
                run.messages.append({"turn": turn, "by": run.token, "hurry": number})
            if dice.random() < 0.3:
                await run.flush()
                memory.flushed(run)
            if dice.random() < trouble / 4:
                raise ValueError("trouble")
        return turns

    @runs.handler
    async def poison(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        await asyncio.sleep(0.2 * dice.random())
        crash()
        await asyncio.sleep(0)
        raise AssertionError("a dead process does nothing")

    return runs
