"""Steps with children, without a server: what a step saves and announces, also when the attempt ends in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from coordinator.model.enqueue import Inputs
from coordinator.model.run_id import child_base
from coordinator.store.plans.attempts import ChildEnding, Collected
from tests.unit.handlers.test_context import Backing
from workers.handlers.checkpoint.bookkeeping import Bookkeeping
from workers.handlers.checkpoint.draft import Draft
from workers.handlers.facts import Stopped
from workers.handlers.operations.children import Child, Children


@dataclass
class Joined:
    """One announcement of a step."""

    base: str
    old: str
    keep: list[str]


class ChildrenBacking(Backing):
    """A server on which every child completes as soon as it is enqueued. It can crash at an announcement or at an enqueue."""

    def __init__(self, life: int = 1, crash: str = "") -> None:
        super().__init__(asyncio.get_running_loop())
        self.life, self.crash = life, crash
        self.joined: list[Joined] = []
        self.spawned: list[int] = []

    def make_child_base(self) -> str:
        return child_base(self.life, 0)

    async def join_children(self, base: str, count: int, old: str, keep: Sequence[str]) -> None:
        if self.crash == "join":
            raise Stopped("lost")
        self.joined.append(Joined(base, old, list(keep)))

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
    return backing.cuts[-1].more if backing.cuts else more


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
    await gather(last, third.cuts[-1].more)
    assert last.joined[0].old == second.joined[0].base


async def test_another_step_keeps_the_old_base_of_a_step_that_is_not_announced() -> None:
    first, crashing, other = ChildrenBacking(crash="spawn"), ChildrenBacking(2, crash="join"), ChildrenBacking(2)
    await gather(other, await crashed(crashing, await crashed(first)), step="other")
    assert first.joined[0].base in other.joined[0].keep
