"""Readers of the output of runs: what they have after every rewind must be what the handler emitted."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from coordinator.client import AsyncHandle
from coordinator.errors import CoordinatorError, NotFound
from coordinator.model.output import Event, Gap, Rewind
from coordinator.model.run import ENDED, Status
from tests.faults.simulation.environment import Environment
from tests.faults.simulation.feature_app import events_of
from tests.faults.simulation.laws.step import Broken


class Reader:
    """One reader of one run. It interrupts its reading now and then, and continues after the last item."""

    def __init__(self, environment: Environment, handle: AsyncHandle[Any], turns: int, settled: bool) -> None:
        self._environment, self._handle, self._settled = environment, handle, settled
        self._dice: random.Random = environment.dice
        self._expected, self._values = events_of(turns), list[Any]()
        self._after: str | None = None

    async def read(self) -> None:
        """Read until the run has ended, and compare."""
        while True:
            try:
                if await self._read_some():
                    break
            except NotFound:
                return  # Its retention is over.
            except CoordinatorError:
                pass
            await asyncio.sleep(self._dice.random())
        seen = self._environment.watchers.now(self._handle.id)
        if seen is not None and seen.status is Status.COMPLETED and self._values != self._expected:
            self._complain(f"has {self._values} at the end instead of {self._expected}")
        # A revived run may already emit again. In its first life, no event of an attempt before the last one may be left.
        _, most = self._environment.facts.emitted.get(self._handle.id, (0, 0))
        if seen is not None and seen.status in ENDED and seen.counters.life == 1 and len(self._values) > most:
            self._complain(f"has {self._values} at the end, but the last attempt had only {most} events")

    async def _read_some(self) -> bool:
        """Read until the end, and return True; or stop somewhere, and return False."""
        stream = self._handle.stream(after=self._after, settled=self._settled)
        try:
            async for item in stream:
                self._take(item)
                if self._dice.random() < 0.05:
                    return False
        finally:
            await stream.aclose()
        return True

    def _take(self, item: Event | Rewind | Gap) -> None:
        self._after = item.id
        match item:
            case Gap(count=count):
                self._complain(f"misses {count} events")
            case Rewind(to=to):
                if self._settled and not self._environment.memory.was_restarted(self._handle.id):
                    self._complain(f"has {len(self._values)} settled events, but is told to go back to {to}")
                if to > len(self._values):
                    self._complain(f"has {len(self._values)} events, but is told to go back to {to}")
                del self._values[to:]
            case Event(number=number, value=value):
                if number != len(self._values) + 1 or value != self._expected[number - 1 : number][0]:
                    self._complain(f"gets event {number}, {value}, after {self._values}")
                self._values.append(value)

    def _complain(self, why: str) -> None:
        kind = "settled reader" if self._settled else "reader"
        self._environment.complain(Broken(f"a {kind} of run {self._handle.id} {why}"))
