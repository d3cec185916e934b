"""Waiting for a fact instead of sleeping for a guess. The only place in the suite that sleeps."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

PAUSE = 0.01


def wait_until(predicate: Callable[[], T], what: str, timeout: float = 30) -> T:
    """The first true answer of the predicate. `what` finishes the sentence "waited 30 s for ..."."""
    until = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout:g} s for {what}; the last answer was {answer!r}")
        time.sleep(PAUSE)
    return answer


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], what: str, timeout: float = 30) -> T: ...
@overload
async def eventually(predicate: Callable[[], T], what: str, timeout: float = 30) -> T: ...
async def eventually(predicate: Callable[[], Any], what: str, timeout: float = 30) -> Any:
    """The same in an event loop, which goes on meanwhile; the predicate may be a coroutine function."""
    until = time.monotonic() + timeout
    while not (answer := await _answer(predicate)):
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout:g} s for {what}; the last answer was {answer!r}")
        await asyncio.sleep(PAUSE)
    return answer


async def _answer(predicate: Callable[[], Any]) -> Any:
    answer = predicate()
    return await answer if inspect.isawaitable(answer) else answer
