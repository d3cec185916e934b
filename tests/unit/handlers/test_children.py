"""Steps with children, without a server: what a step saves and announces, also when the attempt ends in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from coordinator.model.enqueue import Inputs
from coordinator.model.run_id import child_base
from coordinator.store.plans.attempts import ChildEnding, Collected
from tests.unit.handlers.test_context import FACTS, Backing
from workers.handlers.async_run import AsyncRun
from workers.handlers.checkpoint.bookkeeping import Base, Bookkeeping
from workers.handlers.checkpoint.draft import Draft
from workers.handlers.facts import Stopped
from workers.handlers.operations.children import Child, Children

FIRST, OLD, OUTSIDE = (child_base(number, 0) for number in (1, 2, 3))


@dataclass
class Joined:
    """One announcement of a step."""

    base: str
    old: str


class ChildrenBacking(Backing):
    """A server on which every child completes as soon as it is enqueued. It can crash at an announcement or at an enqueue."""

    def __init__(self, life: int = 1, crash: str = "") -> None:
        super().__init__(asyncio.get_running_loop())
        self.life, self.crash = life, crash
        self.joined: list[Joined] = []
        self.left: list[list[str]] = []
        self.full = False
        self.spawned: list[int] = []

    def make_child_base(self) -> str:
        return child_base(self.life, 0)

    async def join_children(self, base: str, count: int, old: str) -> None:
        if self.crash == "join":
            raise Stopped("lost")
        self.joined.append(Joined(base, old))

    async def drop_steps(self, bases: Sequence[str]) -> bool:
        self.left.append([*bases, *(cut.bookkeeping.decode() for cut in self.flushed)])
        if self.crash == "drop":
            raise Stopped("lost")
        return not self.full

    async def spawn(self, children: Sequence[Child]) -> None:
        self.spawned += [child.index for child in children]
        if self.crash == "spawn":
            raise Stopped("lost")

    async def collect(self, base: str, by: str, start: int) -> Collected:
        ended = sorted(set(self.spawned))
        return Collected("ok", 3, len(ended), tuple(ChildEnding(i, "completed", b"") for i in ended if i >= start))


async def gather(backing: ChildrenBacking, more: bytes = b"", step: str = "all") -> None:
    children = Children(Draft(bookkeeping=Bookkeeping.parse(more)), backing, child_base(1, 0), {})
    await children.begin(step, [Inputs("k", {}, None)] * 3, {}, None).gather(False)


async def crashed(backing: ChildrenBacking, more: bytes = b"", step: str = "all") -> bytes:
    """Return what the attempt has saved before it crashed."""
    with pytest.raises(Stopped):
        await gather(backing, more, step)
    return backing.cuts[-1].bookkeeping if backing.cuts else more


async def test_crashed_step_continues_with_the_same_base() -> None:
    first, second = ChildrenBacking(crash="spawn"), ChildrenBacking()
    await gather(second, await crashed(first))
    assert [one.base for one in first.joined] == [one.base for one in second.joined]
    assert second.spawned == [0, 1, 2], "children whose enqueue was not answered are enqueued again"


async def test_revived_step_names_its_old_base_until_it_is_announced() -> None:
    first, crashing, last = ChildrenBacking(crash="spawn"), ChildrenBacking(2, crash="join"), ChildrenBacking(2)
    saved = await crashed(first)
    await gather(last, await crashed(crashing, saved))
    (again,) = last.joined
    assert again.old == first.joined[0].base
    assert again.base != again.old


async def test_step_that_is_revived_twice_before_it_is_announced_names_its_first_base() -> None:
    first, second, last = ChildrenBacking(crash="spawn"), ChildrenBacking(2, crash="join"), ChildrenBacking(3)
    await gather(last, await crashed(second, await crashed(first)))
    assert last.joined[0].old == first.joined[0].base


async def test_announced_step_names_its_old_base_no_longer() -> None:
    first, second, third = ChildrenBacking(crash="spawn"), ChildrenBacking(2, crash="spawn"), ChildrenBacking(2)
    saved = await crashed(second, await crashed(first))
    await gather(third, saved)
    assert third.joined[0].base == second.joined[0].base
    last = ChildrenBacking(3)
    await gather(last, third.cuts[-1].bookkeeping)
    assert last.joined[0].old == second.joined[0].base


def turn_with_children(life: int = 1) -> bytes:
    """Return the bookkeeping of a run in whose first turn a step began, and of a step outside of the loop."""
    return Bookkeeping(
        bases={
            "wait:0:gather all#0": Base(life, FIRST, 3, OLD),
            "wait:-:gather other#0": Base(life, OUTSIDE, 3),
        }
    ).pack()


async def loop(backing: ChildrenBacking, more: bytes, limit: int) -> bytes:
    """Run the turns of a loop, and return the bookkeeping that is saved at its end."""
    draft = Draft(bookkeeping=Bookkeeping.parse(more), iteration=limit - 1)
    run: AsyncRun[Any] = AsyncRun(FACTS, None, draft, backing)
    with contextlib.suppress(Stopped):
        async for _ in run.loop(limit):
            pass
    return draft.cut().bookkeeping if backing.crash == "" else backing.cuts[-1].bookkeeping


async def test_end_of_a_turn_drops_its_steps_after_it_is_saved() -> None:
    backing = ChildrenBacking()
    saved = await loop(backing, turn_with_children(), 1)
    ((first, second, saved_before),) = backing.left
    assert (first, second) == (FIRST, OLD)
    assert "wait:0:" not in saved_before, "the end of the turn is saved first"
    assert Bookkeeping.parse(saved).left == []
    assert list(Bookkeeping.parse(saved).bases) == ["wait:-:gather other#0"]


@pytest.mark.parametrize("limit", [1, 2], ids=["the loop is over", "more turns follow"])
async def test_attempt_that_ends_before_it_drops_a_step_is_followed_by_one_that_does(limit: int) -> None:
    crashing, again = ChildrenBacking(crash="drop"), ChildrenBacking()
    saved = await loop(crashing, turn_with_children(), 1)
    assert Bookkeeping.parse(saved).left
    draft = Draft(bookkeeping=Bookkeeping.parse(saved), iteration=1)
    async for _ in AsyncRun(FACTS, None, draft, again).loop(limit):
        break
    assert [entry[:2] for entry in again.left] == [[FIRST, OLD]]
    assert draft.bookkeeping.left == []


async def test_step_that_the_server_could_not_drop_is_named_again_after_the_next_turn() -> None:
    backing = ChildrenBacking()
    backing.full = True
    draft = Draft(bookkeeping=Bookkeeping.parse(turn_with_children()))
    async for turn in AsyncRun(FACTS, None, draft, backing).loop(2):
        backing.full = turn == 0
    assert [entry[:2] for entry in backing.left] == [[FIRST, OLD]] * 2
    assert draft.bookkeeping.left == []


async def test_loop_without_children_drops_nothing() -> None:
    backing = ChildrenBacking()
    await loop(backing, b"", 3)
    assert backing.left == []
