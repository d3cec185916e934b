"""The places of a process, and the one that must be alone."""

from __future__ import annotations

import asyncio

from tests.waiting import next_turn
from workers.process.slots import SlotTable


async def settled() -> None:
    await next_turn(5)


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


async def test_a_place_is_free_when_its_handler_has_ended_and_the_run_is_held_until_that_is_recorded():
    slots = SlotTable(2)
    slots.take(suspect=False)
    slots.take(suspect=False)
    assert slots.free == 0
    slots.handler_ended()
    assert (slots.free, slots.held, slots.empty.is_set()) == (1, 2, False)
    slots.free_one(suspect=False, recorded=True)
    assert (slots.free, slots.held) == (1, 1), "and is not free twice"
    slots.free_one(suspect=False)
    assert (slots.free, slots.held, slots.empty.is_set()) == (2, 0, True)


async def test_endings_that_can_not_be_recorded_pile_up_to_as_many_as_there_are_places():
    slots = SlotTable(3)
    for _ in range(3):
        slots.take(suspect=False)
        slots.handler_ended()
    for free in (2, 1, 0):
        assert slots.free == free + 1
        slots.take(suspect=False)
        slots.handler_ended()
    assert (slots.free, slots.held) == (0, 6)
    slots.free_one(suspect=False, recorded=True)
    assert slots.free == 1


async def test_who_holds_an_ending_that_is_not_recorded_asks_for_no_suspect():
    slots = SlotTable(2)
    slots.take(suspect=False)
    slots.handler_ended()
    assert await slots.reserve(2) == (1, False)


async def test_a_suspect_whose_handler_has_ended_is_alone_until_that_is_recorded():
    slots = SlotTable(2)
    slots.take(suspect=True)
    slots.handler_ended()
    assert slots.free == 0
    slots.free_one(suspect=True, recorded=True)
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
