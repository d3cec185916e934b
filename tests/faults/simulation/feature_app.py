"""Handlers of a simulation that use children, output, effects, budgets, groups and limits, and check what they get."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from coordinator.model.policies.budget import Budget
from coordinator.model.policies.retry import Retry
from tests.faults.simulation.facts import LIMIT, Facts
from tests.faults.simulation.laws.step import Broken
from tests.faults.simulation.watcher import Watchers
from workers.handlers.async_run import AsyncRun
from workers.handlers.operations.children import ChildFailed
from workers.handlers.operations.effects import NotDone
from workers.handlers.registry import Registry

PIECES = 4  # the largest number of children of a step


def events_of(turns: int) -> list[list[int]]:
    """Return all values that a run of the kind `teller` emits."""
    return [value for turn in range(turns) for value in events_of_turn(turn)]


def events_of_turn(turn: int) -> list[list[int]]:
    return [[turn, part] for part in range(turn % 3 + 1)]


def features(
    dice: random.Random, facts: Facts, watchers: Watchers, complain: Callable[[Broken], None]
) -> Registry[Any]:
    """Return the handlers. `watchers` know what the server has stored about a run."""
    runs: Registry[Any] = Registry()
    linger = dice.choice([0.0, 0.3, 2.0])

    async def rest() -> None:
        await asyncio.sleep(dice.random() * dice.choice([0.01, 0.2, 0.6]))

    # -- children

    @runs.handler(throttle=0.2)
    async def piece(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Run as a child, and spend something for the tree."""
        for step in range(turns):
            await run.phase(f"step-{step}", rest)
            facts.spent[run.id] += 1
            run.spend(requests=1)
        if dice.random() < trouble:
            raise ValueError("trouble")
        return turns

    @runs.handler(linger=linger)
    async def endless(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Run as a child that only a cancel can end."""
        await run.receive("never")
        raise AssertionError("nobody sends this signal")

    @runs.handler(retry=Retry(limit=3, wait=0.5), throttle=0.2, linger=linger)
    async def family(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Collect children in both ways. Then drop one that never ends by itself."""
        count = min(turns, PIECES)
        pieces = [piece.inputs(number, trouble) for number in range(count)]
        for number, found in enumerate(
            await run.gather("all", pieces, at_once=turns % 3 or None, return_failures=True)
        ):
            if not isinstance(found, ChildFailed) and found != number:
                complain(Broken(f"run {run.id} gathered {found!r} from child {number}"))
        await rest()
        seen = []
        async for done in run.as_completed("each", pieces):
            seen.append(done.index)
            if done.error is None and done.result != done.index:
                complain(Broken(f"run {run.id} got {done.result!r} from child {done.index}"))
        if sorted(seen) != list(range(count)):
            complain(Broken(f"run {run.id} iterated over the children {seen} of {count}"))
        if dice.random() < trouble:
            raise ValueError("trouble")
        if turns == 5:
            async for _ in run.as_completed("first", [pieces[0], endless.inputs(1, 0.0)]):
                break
        return turns

    # -- output

    @runs.handler(retry=Retry(limit=3, wait=0.5), throttle=dice.choice([0.0, 0.5]), linger=linger)
    async def teller(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Emit the events of a turn together with its message, so that each checkpoint covers both."""
        facts.emits(run.id, run.epoch, len(events_of(len(run.messages))))
        async for turn in run.loop(limit=turns):
            if len(run.messages) <= turn:
                run.messages.append({"turn": turn})
                for value in events_of_turn(turn):
                    run.emit(value)
                facts.emits(run.id, run.epoch, len(events_of(turn + 1)))
            await rest()
            if dice.random() < 0.2:
                await run.flush()
            if dice.random() < trouble:
                raise ValueError("trouble")
            if turn % 4 == 3:
                await run.sleep(dice.choice([0.05, 1.0]))
        return turns

    # -- effects

    @runs.handler(retry=Retry(limit=3, wait=0.5), throttle=0.2)
    async def charging(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Make effects that the world outside does not recognise as repeated, and others that it recognises."""

        async def charge(name: str) -> str:
            facts.effects[run.id, name] += 1
            if facts.effects[run.id, name] > 1:
                complain(Broken(f"effect {name!r} of run {run.id} happened twice"))
            await rest()
            return name

        async def post(key: str) -> str:
            await rest()
            facts.sink.add(key)
            await rest()
            return key

        async def find(key: str) -> str | type[NotDone]:
            await rest()
            return key if key in facts.sink else NotDone

        for number in range(turns):
            key = run.effect_key(f"post {number}")
            if await run.once(f"post {number}", post, key, check=find) != key:
                complain(Broken(f"run {run.id} got another output of effect {number}"))
            if key not in facts.sink:
                complain(Broken(f"run {run.id} counts effect {number} as done, but it never happened"))
            if turns < 10 and await run.once(f"charge {number}", charge, f"charge {number}") != f"charge {number}":
                complain(Broken(f"run {run.id} got another output of charge {number}"))
            if dice.random() < trouble / 4:
                raise ValueError("trouble")
        return turns

    # -- budgets

    async def pay(run: AsyncRun[Any]) -> None:
        stored, allowed = watchers.now(run.id), LIMIT + watchers.granted(run.id)
        if stored is not None and stored.token == run.token and stored.requests >= allowed:
            complain(Broken(f"run {run.id} works although it has spent {stored.requests} of {allowed} requests"))
        facts.spent[run.id] += 1
        run.spend(requests=1)
        await rest()

    async def spend_turns(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        async for _ in run.loop(limit=turns):
            await run.phase("pay", pay, run)
            if dice.random() < trouble / 4:
                raise ValueError("trouble")
        return turns

    @runs.handler(retry=Retry(limit=3, wait=0.5), throttle=0.2, budget=Budget(requests=LIMIT))
    async def thrifty(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Fail when the budget is spent."""
        return await spend_turns(run, turns, trouble)

    @runs.handler(throttle=0.2, linger=linger, budget=Budget(requests=LIMIT, then="wait"))
    async def begging(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Wait for a grant when the budget is spent."""
        return await spend_turns(run, turns, trouble)

    # -- groups and limits

    @runs.handler(retry=Retry(limit=3, wait=0.5), throttle=0.2, at_once=2, linger=linger)
    async def grouped(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Work in a group, of which few runs may run at the same time."""
        for step in range(turns):
            await run.phase(f"step-{step}", rest)
        if turns == 5:
            await run.sleep(dice.choice([0.1, 3.0]))
        if dice.random() < trouble:
            raise ValueError("trouble")
        return turns

    @runs.handler(throttle=0.2)
    async def calling(run: AsyncRun[Any], turns: int, trouble: float) -> int:
        """Call the outside world under a rate."""
        for number in range(turns):
            async with run.limit("api", cost=dice.choice([1, 3, 5])) as limit:
                await rest()
                what = dice.random()
                if what < 0.3:
                    limit.cost = dice.choice([0, 2, 7])
                elif what < 0.4:
                    limit.back_off(dice.choice([0.1, 1.0]))
            await run.phase(f"step-{number}", rest)
        return turns

    return runs
