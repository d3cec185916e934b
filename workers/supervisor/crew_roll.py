"""A roll of one crew: for each place a new process with the code that is on disk now, ready before the old one drains.

It stops at the first new process that can't begin, dies, or can't start any run of a kind; who was not replaced goes on working.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coordinator.errors import CoordinatorError
from workers.supervisor.child_process import Child
from workers.supervisor.crew import Crew

BEGIN_SECONDS = 120.0  # how long a new process may take until its first claim is answered
WATCH_SECONDS = 0.5  # how long it is watched when it has taken over: runs that it can't start are seen by then


@dataclass(frozen=True, slots=True)
class Rolled:
    """How many processes were replaced, and why not all of them."""

    replaced: int
    total: int
    trouble: str = ""


async def roll(
    crew: Crew,
    *,
    at_once: int,
    allowed: Callable[[], Awaitable[None]],
    tell: Callable[[Rolled], Awaitable[None]],
    begin_seconds: float = BEGIN_SECONDS,
) -> Rolled:
    """Replaces all, `at_once` of them at a time. `allowed` returns when the next may be replaced."""
    begun, places = crew.clock.monotonic(), range(crew.options.processes)
    crew.say_outdated(True, begun)
    so_far = Rolled(0, len(places))
    for first in places[:: max(1, at_once)]:
        batch = places[first : first + max(1, at_once)]
        outcomes = await _replace_all(crew, batch, begun, allowed, begin_seconds)
        replaced = so_far.replaced + sum(replaced for replaced, _ in outcomes)
        so_far = Rolled(replaced, len(places), next((trouble for _, trouble in outcomes if trouble), ""))
        await tell(so_far)
        if so_far.trouble:
            crew.say_outdated(False, begun)
            return so_far
    crew.drain_extras(begun)
    return so_far


async def _replace_all(
    crew: Crew, batch: range, begun: float, allowed: Callable[[], Awaitable[None]], begin_seconds: float
) -> list[tuple[bool, str]]:
    try:
        await allowed()
    except CoordinatorError as error:
        return [(False, str(error))]
    return await asyncio.gather(*(_replace(crew, place, begun, begin_seconds) for place in batch))


async def _replace(crew: Crew, place: int, begun: float, begin_seconds: float) -> tuple[bool, str]:
    """Whether the process at a place was replaced, and what is wrong."""
    working = crew.at.get(place)
    if working is not None and working.started >= begun:
        successor = working  # its predecessor died meanwhile, and it has the code of now
    elif (new := await crew.succeed(place)) is None:
        return False, "no new process could be started"
    else:
        successor = new
    if trouble := await _begins(crew, successor, begin_seconds):
        await crew.dismiss(place, successor)
        return False, trouble
    await crew.hand_over(place, successor)
    return True, await _works(crew, successor, begun)


async def _begins(crew: Crew, child: Child, begin_seconds: float) -> str:
    """Waits until it is ready."""
    assert child.life is not None
    ready = asyncio.create_task(child.is_ready.wait())
    try:
        await asyncio.wait({ready, child.life}, timeout=begin_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
    if crew.stopping.is_set():
        return "the fleet was stopped"
    if not child.alive:
        return f"a new process can't begin: {child.reason or f'it ended {child.end}'}"
    return "" if child.ready else f"a new process was not ready after {begin_seconds:.0f} s"


async def _works(crew: Crew, child: Child, begun: float) -> str:
    """Watches it for a moment after it has taken over; and all that came before it in this roll, for what was handed over now may
    have gone to one of them."""
    assert child.life is not None
    new = [child, *(other for other in crew.at.values() if other.started >= begun and other is not child)]
    refusing = [asyncio.create_task(one.refused.wait()) for one in new]
    try:
        await asyncio.wait({*refusing, child.life}, timeout=WATCH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watch in refusing:
            watch.cancel()
    if crew.stopping.is_set():
        return "the fleet was stopped"
    if refused := {kind for one in new for kind in one.refuses}:
        return f"no run of kind {min(refused)!r} could be started in a new process, which takes no more of them"
    return "" if child.alive else f"a new process ended {child.end} as soon as it had taken over"
