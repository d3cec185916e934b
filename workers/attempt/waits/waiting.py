"""The part of an attempt that waits for the server: signals, sleeps, children, enqueues, limited calls and budgets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

from coordinator.errors import ServerFull, Unconfirmed, Unreachable, Unreadable
from coordinator.model.enqueue import Inputs
from coordinator.model.policies.budget import NOTHING, Amount
from coordinator.store.keys import Keys
from coordinator.store.plans.attempts import Collected, Condition, Received
from coordinator.store.plans.clients import NewRun
from coordinator.store.transport.drivers import Plan
from workers.attempt.base import BaseAttempt
from workers.attempt.waits.requests import Limits, Waiter
from workers.handlers.checkpoint.draft import Cut
from workers.handlers.operations.children import Child
from workers.handlers.operations.enqueues import Enqueued
from workers.handlers.operations.limits import OpenCall

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # seconds after which a lingering wait asks for signals again, because a hint may be lost


async def _word(word: str) -> str:
    return word


class WaitingAttempt(BaseAttempt):
    """An attempt whose handler may wait, run children, enqueue runs, make limited calls and spend a budget.

    For the parameters see `BaseAttempt`.

    Attributes:
        waiter: Sends the requests of waits. It is set when the attempt is loaded.
        limits: Sends the requests of limited calls. It is set when the attempt is loaded.
        limited: The calls that wait for a rate, each with the name of the rate and the time in ms at which the wait began.
        condition: The condition that the run waits for, once the run is to be suspended.
        spend: The total that the attempt has spent.
        spend_stored: The part of `spend` that the server has confirmed.
    """

    # Defaults of the class, as in `BaseAttempt`.
    waiter: Waiter | None = None
    limits: Limits | None = None
    limited: dict[OpenCall, str] | None = None
    condition: Condition | None = None
    spend = spend_stored = NOTHING
    _lingering_since = 0.0

    @cached_property
    def _hint(self) -> asyncio.Event:
        return asyncio.Event()

    def may_linger(self) -> bool:
        """Return False if the waiting handler must end, because another run could use its slot. `Attempt` defines it."""
        raise NotImplementedError

    # -- waits

    def check_wait(self, cut: Callable[[], Cut]) -> None:
        """Check that a wait may begin here.

        Args:
            cut: Makes a cut. Before a stop is raised, this cut is offered to be saved.

        Raises:
            Refused: If another task or thread than the handler's own calls this method. The run would be suspended, and the other
                task would continue at the same time as the next attempt.
            Stopped: If a stop was requested.
        """
        self.check_task()
        self.start_lingering(cut)

    def start_lingering(self, cut: Callable[[], Cut]) -> None:
        """Begin to count the time for which a wait lingers.

        Args:
            cut: Makes a cut. Before a stop is raised, this cut is offered to be saved.

        Raises:
            Stopped: If a stop was requested.
        """
        self._lingering_since = self.clock()
        if self.stopping is not None and not self.delivered:
            # Every wait begins with a cut, so the next attempt repeats nothing that the turn has done before the wait.
            self.offer(cut())
        self.raise_any_stop()

    async def _ask(self, asking: Coroutine[Any, Any, T], may_drain: Callable[[], bool] = lambda: True) -> T:
        """Await a request to the server. The request is repeated during an outage, and abandoned when a stop is requested.

        Raises:
            Stopped: If a stop was requested.
        """
        try:
            return await self.unless_stopped(asking, may_drain)
        except (Unconfirmed, Unreachable):
            self.raise_any_stop()
            raise

    async def carry_out(self, make_plan: Callable[[Keys], Plan[T]]) -> T:
        """Run a plan on the server of the run, for code that stores data beside the run. Wait while the server cannot be reached.

        Args:
            make_plan: Returns the plan for the keys of the run's partition. It is called again if the plan must be repeated.

        Raises:
            Unreachable: If a stop was requested while the server could not be reached.
        """
        assert self.waiter is not None
        return await self.waiter.carry_out(self, lambda: make_plan(self.lease.keys))

    async def look(
        self, condition: Condition, timeout_ms: int | None, may_drain: Callable[[], bool] = lambda: True
    ) -> Received:
        """Ask the server for the next signal. See `WaitBacking` and `BudgetBacking`.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
            Unreadable: If the signals of the run are damaged.
        """
        assert self.waiter is not None
        self._hint.clear()
        found = await self._ask(self.waiter.look(self, condition, timeout_ms), may_drain)
        if found.word == "fenced":
            self.request_stop("lost")
            self.raise_any_stop()
        if found.word not in ("signal", "timeout", "none"):
            raise Unreadable(f"the signals of run {self.id} can't be read: {found.word}")
        return found

    async def linger(self, condition: Condition, now: int) -> None:
        """Wait until there is a reason to ask for signals again, or suspend the run. See `WaitBacking`.

        Raises:
            Stopped: If a stop was requested, or the attempt has lingered long enough and its run is to be suspended.
        """
        assert self.waiter is not None
        self.raise_any_stop()  # another task of the handler may have got the stop, and other methods raise it only once
        left = self.handler.linger - (self.clock() - self._lingering_since)
        to_deadline = math.inf if condition.deadline is None else max(0.0, (condition.deadline - now) / 1000)
        # In a sleep only the deadline can end the wait, so the attempt lingers only if the deadline is near.
        stays = left > 0 and (condition.received or condition.children or to_deadline <= left) and self.may_linger()
        if not stays and await self.unless_stopped(self.waiter.may_suspend(self), lambda: True):
            self.condition = condition
            self.request_stop("wait")
            self.raise_any_stop()
        seconds = min(LOOK_SECONDS, to_deadline, left if left > 0 else LOOK_SECONDS)
        await self.unless_stopped(self._wait_for_hint(seconds), lambda: True)

    async def _wait_for_hint(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hint.wait()

    def hint(self) -> None:
        """Make a lingering wait ask the server again immediately, because a signal was sent or a child has ended."""
        self._hint.set()

    # -- children

    def make_child_base(self) -> str:
        """Return a new id for the first child of a step, in the partition of the run."""
        assert self.waiter is not None
        return self.waiter.make_child_base(self)

    async def join_children(self, base: str, count: int, old: str) -> None:
        """Announce the children of a step to the server.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
            Unreadable: If the stored data about the children is damaged.
        """
        assert self.waiter is not None
        await self._require_owner(self.waiter.join_children(self, base, count, old))

    async def drop_steps(self, bases: Sequence[str]) -> bool:
        """Drop steps. See `ChildBacking`.

        A server that can't do it now does not stop the handler, which does not need these steps any more.
        """
        assert self.waiter is not None
        try:
            await self._require_owner(self.waiter.drop_steps(self, bases))
        except (ServerFull, Unreadable) as error:
            logger.warning(
                "run %s could not drop the children of its last turn: %s; it tries again after its next turn",
                self.id,
                error,
            )
            return False
        return True

    async def spawn(self, children: Sequence[Child]) -> None:
        """Enqueue children.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
            TreeCancelled: If the run was cancelled together with its tree.
        """
        assert self.waiter is not None
        await self._require_owner(self.waiter.spawn(self, [child.run for child in children]))

    async def collect(self, base: str, by: str, start: int) -> Collected:
        """Return a page of the endings of a step's children.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
        """
        assert self.waiter is not None
        self._hint.clear()
        found = await self._ask(self.waiter.collect(self, base, by, start))
        await self._require_owner(_word(found.word))
        return found

    # -- runs that the handler enqueues

    def make_run_id(self, key: str) -> str:
        """Return a new run id: in the partition of the group or idempotency key, or of this run if `key` is empty."""
        assert self.waiter is not None
        return self.waiter.make_id(self, key)

    async def enqueue(
        self, run: NewRun, inputs: Inputs[Any], options: Mapping[str, Any], may_drain: Callable[[], bool]
    ) -> Enqueued | None:
        """Enqueue a run. See `EnqueueBacking`."""
        assert self.waiter is not None
        return await self.unless_stopped(self.waiter.enqueue(self, run), may_drain)

    # -- external calls

    async def acquire(self, call: OpenCall, may_drain: Callable[[], bool]) -> None:
        """Wait until an external call may start. See `LimitBacking`."""
        assert self.limits is not None
        try:
            await self.unless_stopped(self.limits.acquire(self, call), may_drain)
        except (Unconfirmed, Unreachable):
            self.limits.give_back(call)
            self.raise_any_stop()
            raise
        except BaseException:
            self.limits.give_back(call)
            raise

    def finish(self, call: OpenCall, cost: int | None) -> None:
        """End an external call. See `LimitBacking`."""
        assert self.limits is not None
        self.on_loop(partial(self.limits.finish, call, cost))

    def back_off(self, call: OpenCall, seconds: float) -> None:
        """Block new external calls under the limit of this call for a number of seconds. See `LimitBacking`."""
        assert self.limits is not None
        self.on_loop(partial(self.limits.back_off, call, seconds))

    # -- the budget

    def set_spend(self, amount: Amount) -> None:
        """Store in memory the total that the attempt has spent. The next save, report, heartbeat or ending sends it."""
        self.spend = amount

    async def report_spend(self, amount: Amount) -> Amount:
        """Send the total that the attempt has spent to the server. See `BudgetBacking`."""
        assert self.waiter is not None
        word, settled = await self._ask(self.waiter.spend(self, amount))
        await self._require_owner(_word(word))
        self.spend_stored = amount
        return settled

    async def _require_owner(self, asking: Coroutine[Any, Any, str]) -> None:
        word = await self._ask(asking)
        if word in ("fenced", "stale"):
            self.request_stop("lost")
            self.raise_any_stop()
        if word != "ok":
            raise Unreadable(f"the children of run {self.id} can't be read: {word}")
