"""The slots of a process, and the suspect that must be alone in it."""

from __future__ import annotations

import asyncio

from tests.waiting import next_turn
from workers.process.claiming.slots import SlotTable


async def settled() -> None:
    await next_turn(5)


async def test_first_claim_of_an_empty_process_goes_alone_and_other_claims_wait():
    slots = SlotTable(4)
    assert await slots.reserve(10) == (2, True), (
        "half of the slots: the other half is for the next claim, which runs meanwhile"
    )
    other = asyncio.ensure_future(slots.reserve(10))
    await settled()
    assert not other.done()
    slots.give_back(2, alone=True)
    assert await other == (2, True)


async def test_process_that_holds_runs_claims_the_free_slots_and_never_a_suspect():
    slots = SlotTable(4)
    slots.take(suspect=False)
    assert await slots.reserve(2) == (2, False)
    assert await slots.reserve(9) == (1, False)
    assert slots.free == 0


async def test_suspect_is_alone_in_the_process_until_it_progresses():
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


async def test_suspect_that_ends_frees_the_process():
    slots = SlotTable(2)
    slots.take(suspect=True)
    slots.free_one(suspect=True)
    assert slots.free == 2


async def test_slot_is_free_when_its_handler_ends_and_the_run_is_held_until_the_ending_is_recorded():
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


async def test_unrecorded_endings_are_limited_to_the_number_of_slots():
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


async def test_process_with_an_unrecorded_ending_does_not_ask_for_a_suspect():
    slots = SlotTable(2)
    slots.take(suspect=False)
    slots.handler_ended()
    assert await slots.reserve(2) == (1, False)


async def test_ended_suspect_stays_alone_until_its_ending_is_recorded():
    slots = SlotTable(2)
    slots.take(suspect=True)
    slots.handler_ended()
    assert slots.free == 0
    slots.free_one(suspect=True, recorded=True)
    assert slots.free == 2


async def test_every_waiting_claimer_is_served_eventually():
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
