"""Limits of external calls: `run.limit(name)` lets a call start when the rate of the name allows it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from coordinator.errors import BadOption, Refused
from coordinator.model.names import name as check_name
from coordinator.model.policies.rates import LONGEST_BACK_OFF, check_cost


@dataclass(slots=True, eq=False)
class OpenCall:
    """One external call, from the time at which it begins to wait until its block ends.

    Attributes:
        name: The name of the limit.
        reserved: The tokens that the call reserves.
        worker: The id of the worker that has requested the call on the server; empty before the first request.
        number: The number of the request, which is unique in the worker process.
        hint: Set when the call may get a place, so that the worker asks the server immediately.
        sending: The tasks that send the back-offs of the call.
        patience: The time of the event loop at which the wait ends at the latest, because a stop was requested.
    """

    name: str
    reserved: int
    worker: str = ""
    number: int = 0
    hint: asyncio.Event = field(default_factory=asyncio.Event)
    sending: list[asyncio.Task[str]] = field(default_factory=list)
    patience: float = math.inf


class LimitBacking(Protocol):
    """The methods of a worker, or of its stand-in in a test, that the limits of a run call."""

    async def acquire(self, call: OpenCall, may_drain: Callable[[], bool]) -> None:
        """Wait until a call may start. This coroutine runs on the worker's event loop.

        Args:
            call: The call.
            may_drain: As for `raise_stop`. A drain ends a wait of more than two seconds in any case.

        Raises:
            Stopped: If a stop was requested.
            NotConfigured: If the name has no rate.
            BadOption: If the cost is above the burst.
        """
        ...

    def finish(self, call: OpenCall, cost: int | None) -> None:
        """End a call, and return immediately. Any thread may call this.

        Args:
            call: The call.
            cost: The tokens that the call has cost; None for the tokens that it reserved.
        """
        ...

    def back_off(self, call: OpenCall, seconds: float) -> None:
        """Prevent calls of this name from starting for a number of seconds, and return immediately. Any thread may call this."""
        ...


class Limit:
    """An external call under a limit, as `run.limit(name)` gives it to the block."""

    def __init__(self, backing: LimitBacking, name: str, cost: int, may_drain: Callable[[], bool]) -> None:
        self._backing, self._may_drain = backing, may_drain
        self._call: OpenCall | None = OpenCall(check_name(name, "limit"), check_cost(cost))
        self._name, self._cost, self._settled, self._open = name, cost, False, False

    @property
    def name(self) -> str:
        """The name of the limit."""
        return self._name

    @property
    def cost(self) -> int:
        """The tokens of the call: the reserved ones, until the block assigns the real number.

        When the block ends, also if it raises, the difference is returned to the limit or taken from it. Without an assignment the
        call counts with its reserved tokens, because a call that raised may have reached the external service.

        Raises:
            BadOption: If the assigned value is not a whole number from 0 to 999,999,999.
        """
        return self._cost

    @cost.setter
    def cost(self, cost: int) -> None:
        self._cost, self._settled = check_cost(cost), True

    def back_off(self, seconds: float | timedelta) -> None:
        """Prevent calls of this name from starting in any process for a while, for example if a response has a `Retry-After`.

        Calls that are under way continue. A shorter back-off does not end a longer one. The method returns immediately, and the
        worker sends the request.

        Args:
            seconds: How long no call may start, from 0 seconds to 1 day.

        Raises:
            BadOption: If the time is not valid.
            Refused: If the block has ended.
        """
        given = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= LONGEST_BACK_OFF:  # type: ignore[redundant-expr]
            raise BadOption(f"back_off {seconds!r:.80} is not a time from 0 seconds to 1 day")
        if not self._open or self._call is None:
            raise Refused(f"limit {self._name!r} can back off only inside its block")
        self._backing.back_off(self._call, given)

    def _begin(self) -> Coroutine[Any, Any, None]:
        if self._open or self._call is None:
            raise Refused(f"limit {self._name!r} was used before: call run.limit for each block")
        self._open = True
        return self._backing.acquire(self._call, self._may_drain)

    def _end(self) -> None:
        assert self._call is not None
        call, self._call, self._open = self._call, None, False
        self._backing.finish(call, self._cost if self._settled else None)


class AsyncLimit(Limit):
    """An external call under a limit, as an async context manager: `async with run.limit("openai", cost=1200) as limit:`."""

    async def __aenter__(self) -> Limit:
        """Wait until the call may start."""
        await self._begin()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Report the real cost of the call to the server, and let the next call start."""
        self._end()


class PlainLimit(Limit):
    """An external call under a limit, as a context manager: `with run.limit("openai", cost=1200) as limit:`."""

    def __init__(
        self,
        backing: LimitBacking,
        name: str,
        cost: int,
        may_drain: Callable[[], bool],
        wait: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        super().__init__(backing, name, cost, may_drain)
        self._wait = wait

    def __enter__(self) -> Limit:
        """Wait until the call may start."""
        self._wait(self._begin())
        return self

    def __exit__(self, *error: object) -> None:
        """Report the real cost of the call to the server, and let the next call start."""
        self._end()
