"""A roll of one child pool: for each child slot, a new process with the code on disk is ready before the old one drains.

The roll stops at the first new process that can't start, dies, or rejects a kind. The processes that were not replaced continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coordinator.errors import CoordinatorError
from workers.supervisor.child_pool import ChildPool
from workers.supervisor.child_process import ChildProcess

START_TIMEOUT = 120.0  # seconds until the first claim of a new process must be answered
# A new process is observed for this long after it took over. If it rejects a kind, it has usually reported this by then.
OBSERVED_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RollResult:
    """The result of a roll.

    Attributes:
        replaced: The number of processes that were replaced.
        total: The number of processes of the pool.
        problem: The problem that stopped the roll; empty if there was none.
    """

    replaced: int
    total: int
    problem: str = ""


async def roll_pool(
    pool: ChildPool,
    *,
    at_once: int,
    wait_for_turn: Callable[[], Awaitable[None]],
    report: Callable[[RollResult], Awaitable[None]],
    start_timeout: float = START_TIMEOUT,
) -> RollResult:
    """Replace all processes of a pool, and return the result.

    Args:
        pool: The pool.
        at_once: How many processes to replace at the same time.
        wait_for_turn: A function that is awaited before each batch; it returns when the batch may be replaced.
        report: A function that is awaited with the result so far after each batch.
        start_timeout: Seconds after which a new process must be ready.
    """
    began, slots = pool.clock.monotonic(), range(pool.options.processes)
    pool.set_outdated(True, started_before=began)
    so_far = RollResult(0, len(slots))
    for first in slots[:: max(1, at_once)]:
        batch = slots[first : first + max(1, at_once)]
        outcomes = await _replace_batch(pool, batch, began, wait_for_turn, start_timeout)
        replaced = so_far.replaced + sum(replaced for replaced, _ in outcomes)
        so_far = RollResult(replaced, len(slots), next((problem for _, problem in outcomes if problem), ""))
        await report(so_far)
        if so_far.problem:
            pool.set_outdated(False, started_before=began)
            return so_far
    pool.drain_extras(started_before=began)
    return so_far


async def _replace_batch(
    pool: ChildPool, batch: range, began: float, wait_for_turn: Callable[[], Awaitable[None]], start_timeout: float
) -> list[tuple[bool, str]]:
    try:
        await wait_for_turn()
    except CoordinatorError as error:
        return [(False, str(error))]
    return await asyncio.gather(*(_replace(pool, slot, began, start_timeout) for slot in batch))


async def _replace(pool: ChildPool, slot: int, began: float, start_timeout: float) -> tuple[bool, str]:
    """Replace the process of a slot.

    Returns:
        True if the process was replaced, and the problem; empty if there was none.
    """
    current = pool.current.get(slot)
    if current is not None and current.started >= began:
        successor = current  # the previous process died during the roll, so the current one has the new code already
    elif (new := await pool.start_successor(slot)) is None:
        return False, "no new process could be started"
    else:
        successor = new
    if problem := await _wait_until_ready(pool, successor, start_timeout):
        await pool.dismiss_successor(slot, successor)
        return False, problem
    await pool.hand_over_slot(slot, successor)
    return True, await _observe(pool, successor, began)


async def _wait_until_ready(pool: ChildPool, child: ChildProcess, start_timeout: float) -> str:
    """Wait until a new process is ready. Return the problem, or an empty text if the process is ready."""
    assert child.supervision is not None
    ready = asyncio.create_task(child.lifecycle.became_ready.wait())
    try:
        await asyncio.wait({ready, child.supervision}, timeout=start_timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
    if pool.stopping.is_set():
        return "the fleet was stopped"
    if not child.alive:
        return f"a new process can't start: {child.failure or f'it {child.ending}'}"
    return "" if child.ready else f"a new process was not ready after {start_timeout:.0f} s"


async def _observe(pool: ChildPool, child: ChildProcess, began: float) -> str:
    """Observe a process for half a second after it has taken over a slot. Return the problem, or an empty text if there is none.

    The other new processes of this roll are observed too, because the runs that the old process released may have gone to them.
    """
    assert child.supervision is not None
    new = [child, *(other for other in pool.current.values() if other.started >= began and other is not child)]
    waiting = [asyncio.create_task(one.rejects_a_kind.wait()) for one in new]
    try:
        await asyncio.wait({*waiting, child.supervision}, timeout=OBSERVED_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    if pool.stopping.is_set():
        return "the fleet was stopped"
    if rejected := {kind for one in new for kind in one.rejected_kinds}:
        return f"a new process could not start any run of kind {min(rejected)!r}"
    return "" if child.alive else f"a new process {child.ending} as soon as it had taken over"
