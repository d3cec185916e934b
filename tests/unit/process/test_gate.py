"""The gate at which the runs of a large claim wait until the next claim has been sent."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.waiting import next_turn
from workers.process.runner import TURNS_FOR_A_CLAIM, open_later


def gate() -> asyncio.Future[None]:
    return open_later(asyncio.get_running_loop())


async def turns(count: int) -> None:
    await next_turn(count)


async def test_gate_opens_by_itself_after_some_loop_turns():
    opens = gate()
    await turns(TURNS_FOR_A_CLAIM - 2)
    assert not opens.done()
    await turns(2)
    assert opens.done()


async def test_cancelled_waiters_cause_no_error_when_the_gate_opens():
    """Cancelling a task also cancels the future that it waits for."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    opens = gate()

    async def attempt() -> None:
        await opens

    waiting = asyncio.ensure_future(attempt())
    await turns(1)
    waiting.cancel()
    await turns(TURNS_FOR_A_CLAIM + 1)
    assert waiting.cancelled()
    assert complaints == []
