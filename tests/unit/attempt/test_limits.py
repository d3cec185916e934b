"""Calls that wait for a limit, without a server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from coordinator.clock import SystemClock
from coordinator.store.keys import Namespace
from tests.waiting import eventually
from workers.attempt.waits.limits import ServerLimits
from workers.handlers.operations.limits import OpenCall


async def test_call_that_waits_for_a_partition_that_the_worker_can_not_reach_is_shown() -> None:
    unused: Any = None
    attempt: Any = SimpleNamespace(limited=None, stopping=None, delivered=False)
    limits = ServerLimits(unused, SystemClock(), Namespace("n", 1, "b", "local"), unused, dict)
    waiting = asyncio.create_task(limits.acquire(attempt, OpenCall("api", 1)))
    await eventually(lambda: attempt.limited, "the wait is shown")
    assert [shown.partition(":")[0] for shown in attempt.limited.values()] == ["api"]
    waiting.cancel()
    await asyncio.wait([waiting])
    assert attempt.limited == {}
