"""The places of a process, and the one that must be alone."""

from __future__ import annotations

import asyncio

from workers.slots import SlotTable


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_claim_of_an_empty_process_is_alone_and_others_wait_for_it():
    slots = SlotTable(4)
    assert await slots.reserve(10) == (2, True), (
        "half of the places: the other half is for the claim that comes meanwhile"
    )
    other = asyncio.ensure_future(slots.reserve(10))
    await settled()
    assert not other.done()
    slots.give_back(2, alone=True)
    assert await other == (2, True)


async def test_a_process_that_holds_something_asks_for_the_rest_and_never_for_a_suspect():
    slots = SlotTable(4)
    slots.take(suspect=False)
    assert await slots.reserve(2) == (2, False)
    assert await slots.reserve(9) == (1, False)
    assert slots.free == 0


async def test_a_suspect_has_the_process_to_itself_until_it_progresses():
    slots = SlotTable(4)
    count, alone = await slots.reserve(4)
    slots.take(suspect=True)
    slots.give_back(count, alone=alone)
    assert slots.free == 0
    waiting = asyncio.ensure_future(slots.reserve(4))
    await settled()
    assert not waiting.done()
    slots.cleared()
    assert await waiting == (2, False)
    assert slots.free == 1


async def test_a_suspect_that_ends_frees_the_process():
    slots = SlotTable(2)
    slots.take(suspect=True)
    slots.free_one(suspect=True)
    assert slots.free == 2


async def test_all_who_wait_are_served_in_the_end():
    slots = SlotTable(1)
    slots.take(suspect=False)
    waiting = [asyncio.ensure_future(slots.reserve(1)) for _ in range(3)]
    await settled()
    slots.free_one(suspect=False)
    for _ in range(3):
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        task = done.pop()
        waiting.remove(task)
        count, alone = task.result()
        slots.give_back(count, alone=alone)
    assert slots.free == 1
