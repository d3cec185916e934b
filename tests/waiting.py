"""Waiting in tests. A test waits for a fact and never sleeps for a guessed time.

    wait_until     return as soon as a predicate is true
    eventually     the same in an event loop
    next_turn      let the other tasks of an event loop run
    work_for       take some time, as the work of a real handler does; no test waits for it
    block_for      the same in a thread

tests/unit/project/test_waiting.py checks that every other sleep in the suite has a comment that says why it is needed.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

PAUSE = 0.01


def wait_until(predicate: Callable[[], T], what: str, timeout: float = 30) -> T:
    """Return the first true answer of the predicate. `what` completes the sentence "waited 30 s for ..."."""
    until = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout:g} s for {what}; the last answer was {answer!r}")
        time.sleep(PAUSE)
    return answer


@overload
async def eventually(
    predicate: Callable[[], Awaitable[T]], what: str, timeout: float = 30, pause: float = PAUSE
) -> T: ...
@overload
async def eventually(predicate: Callable[[], T], what: str, timeout: float = 30, pause: float = PAUSE) -> T: ...
async def eventually(predicate: Callable[[], Any], what: str, timeout: float = 30, pause: float = PAUSE) -> Any:
    """Return the first true answer of the predicate, in an event loop. The predicate may be a coroutine function."""
    until = time.monotonic() + timeout
    while not (answer := await _answer(predicate)):
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout:g} s for {what}; the last answer was {answer!r}")
        await asyncio.sleep(pause)
    return answer


async def _answer(predicate: Callable[[], Any]) -> Any:
    answer = predicate()
    return await answer if inspect.isawaitable(answer) else answer


async def next_turn(turns: int = 1) -> None:
    """Let the other tasks of the event loop run. No time passes."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def work_for(seconds: float) -> None:
    """Take some time, as the work of a real handler does."""
    await asyncio.sleep(seconds)


def block_for(seconds: float) -> None:
    """Take some time in a thread, as the work of a real plain handler does."""
    time.sleep(seconds)
