"""Clocks. Only this module reads the machine's time. All other code receives a clock as an argument."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """An object that returns the time and sleeps. Tests pass in their own clock."""

    def now(self) -> float:
        """Return the Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backwards, to measure durations with."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for this number of seconds."""
        ...

    async def asleep(self, seconds: float) -> None:
        """Wait for this number of seconds, while other tasks of the event loop run."""
        ...


class SystemClock:
    """The machine's clock."""

    now_ns = staticmethod(time.time_ns)  # the Unix time in nanoseconds, without a call of Python code

    def now(self) -> float:
        """Return the Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never go backwards, to measure durations with."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for this number of seconds."""
        time.sleep(seconds)

    async def asleep(self, seconds: float) -> None:
        """Wait for this number of seconds, while other tasks of the event loop run."""
        await asyncio.sleep(seconds)
