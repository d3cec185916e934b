"""Count what a run spends, and stop it or let it wait when its budget is spent.

`run.spend` only counts. The budget is enforced where new work begins: at the beginning of a turn, of a phase and of an effect, so
that no work that was paid for is lost. A grant reaches the run as a signal of a reserved topic. So a run that waits for a grant is
suspended and woken like any other waiting run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from coordinator.encoding.codec import decode
from coordinator.errors import Refused
from coordinator.model.policies.budget import TOPIC, Amount, Budget, BudgetExceeded, Spending, spending
from coordinator.store.plans.attempts import Condition, Received
from workers.handlers.checkpoint.draft import Cut, Draft
from workers.handlers.operations.parallel import ParallelPhases


class BudgetBacking(Protocol):
    """The methods of a worker, or of its stand-in in a test, that the budget of a run calls.

    All coroutines run on the worker's event loop.
    """

    def check_task(self) -> None:
        """Check that the handler's own task or thread makes the call. See `EnqueueBacking`."""
        ...

    def set_spend(self, amount: Amount) -> None:
        """Store in memory what the attempt has spent in all. The next report or the ending sends it."""
        ...

    async def report_spend(self, amount: Amount) -> Amount:
        """Store what the attempt has spent in all. Return what the run has spent in earlier attempts and with its children.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
        """
        ...

    def start_lingering(self, cut: Callable[[], Cut]) -> None:
        """Begin to count the time for which a waiting handler stays in its process. See `WaitBacking`."""
        ...

    def offer(self, cut: Cut) -> None:
        """Offer a cut to be saved, and return immediately."""
        ...

    async def flush(self, cut: Cut, may_drain: Callable[[], bool]) -> None:
        """Save a cut, and return when it is saved. See `Backing`."""
        ...

    async def look(self, condition: Condition, timeout_ms: int | None) -> Received:
        """Ask the server for the next signal. See `WaitBacking`."""
        ...

    async def linger(self, condition: Condition, now: int) -> None:
        """Wait until there is a reason to look again, or suspend the run. See `WaitBacking`."""
        ...


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Reservation:
    """A part of the budget that is reserved for a call."""

    _spend: Callable[[Amount], None]

    def spend(self, *, usd: float | Decimal = 0, tokens: int = 0, requests: int = 0) -> None:
        """Count what the call has really spent."""
        self._spend(Amount.of(usd, tokens, requests))


class Budgets:
    """The spending and the budget of one attempt. Any thread may count.

    Args:
        draft: The draft of the run's next checkpoint.
        backing: The worker's side of the attempt.
        budget: The budget of the run. None for no limit.
        settled: What the run has spent in earlier attempts and with its children.
    """

    def __init__(self, draft: Draft, backing: BudgetBacking, budget: Budget | None, settled: Amount) -> None:
        self._draft, self._backing, self._budget, self._settled = draft, backing, budget, settled
        self._current = self._reported = self._reserved = Amount()
        self._lock = threading.Lock()
        self._stale = False
        self._waiting, self._receiving = asyncio.Lock(), asyncio.Lock()

    @property
    def total(self) -> Amount:
        """Return what the run has spent in all."""
        return self._settled.plus(self._current)

    @property
    def left(self) -> Spending:
        """Return the rest of the budget, without reserved amounts."""
        if self._budget is None:
            return Spending(None, None, None)
        return self._budget.left(self.total.plus(self._reserved), self._draft.more.granted)

    def spend(self, amount: Amount) -> None:
        """Count an amount."""
        with self._lock:
            self._current = self._current.plus(amount)
            self._backing.set_spend(self._current)

    @contextmanager
    def reserve(self, amount: Amount) -> Iterator[Reservation]:
        """Reserve an amount while a block runs.

        Raises:
            BudgetExceeded: If the amount is not left.
        """
        with self._lock:
            wanted = self.total.plus(self._reserved).plus(amount)
            if self._budget is not None and self._budget.exceeded_by(wanted, self._draft.more.granted):
                raise BudgetExceeded(f"{spending(amount)} can't be reserved: {self.left} is left of the budget")
            self._reserved = self._reserved.plus(amount)
        try:
            yield Reservation(self.spend)
        finally:
            with self._lock:
                self._reserved = Amount(*(mine - its for mine, its in zip(self._reserved, amount, strict=True)))

    async def count_children(self) -> None:
        """Ask the server what the run has spent in all, because children of a step have ended."""
        current = self._current
        self._settled = await self._backing.report_spend(current)
        self._reported, self._stale = current, False

    def expect_children(self) -> None:
        """Remember that children may spend from now on."""
        self._stale = True

    def enforce(
        self, own: str = "", *, inner: bool = False, others: ParallelPhases | None = None
    ) -> Coroutine[Any, Any, None]:
        """Report what was spent, and stop the handler if the budget is spent. Called in the task or thread that begins new work.

        New work does not begin beside work that is running: it waits until that has ended, so that its output is saved.

        Args:
            own: The phase or effect that is about to begin.
            inner: True if it is inside another phase. Such work does not wait, because the other phase waits for it.
            others: The phases and effects of an async handler that are running. None for a plain handler.

        Returns:
            The coroutine that reports and enforces.

        Raises:
            BudgetExceeded: If the budget is spent, and its `then` is "fail".
            Stopped: If the budget is spent, and the run is suspended until a grant.
        """
        try:
            self._backing.check_task()
        except Refused:
            if others is None:  # another thread of a plain handler
                inner = True
        if others is None and self._draft.runs_beside(own):
            inner = True
        return self._enforce(inner, others)

    async def _enforce(self, inner: bool, others: ParallelPhases | None) -> None:
        if self._current != self._reported or (self._budget is not None and (self._stale or self._draft.more.bases)):
            await self.count_children()
        while (budget := self._budget) is not None and self._is_spent() and self._draft.resumes_without_repeating():
            if inner:
                if budget.then == "fail":
                    await self._receive_grants()
                    self._fail_if_spent()
                return
            if others:
                await others.wait_until_ended()
                continue
            async with self._waiting:
                if others or not self._is_spent():
                    continue  # meanwhile another task has begun its work, or has received a grant
                await self._wait_for_grant(budget)

    def _is_spent(self) -> bool:
        return self._budget is not None and self._budget.is_spent(self.total, self._draft.more.granted)

    def _fail_if_spent(self) -> None:
        if self._is_spent():
            raise BudgetExceeded(f"the budget of the run is spent: {spending(self.total)}")

    async def _receive_grants(self) -> Received:
        """Receive grants until something is left of the budget or there is none. Return the server's last answer."""
        draft = self._draft
        async with self._receiving:
            while True:
                found = await self._backing.look(self._grants(), None)
                if found.word != "signal":
                    return found
                draft.more.received[TOPIC] = found.number
                draft.more.granted = draft.more.granted.plus(read_grant(found.payload))
                self._backing.offer(draft.cut())
                if not self._is_spent():
                    return found

    def _grants(self) -> Condition:
        return Condition(None, {TOPIC: self._draft.more.received.get(TOPIC, 0)})

    async def _wait_for_grant(self, budget: Budget) -> None:
        """Look for grants until something is left of the budget."""
        draft, backing, saved = self._draft, self._backing, False
        while self._is_spent():
            found = await self._receive_grants()
            if not self._is_spent():
                return
            if budget.then == "fail":
                self._fail_if_spent()
            if not saved:
                backing.start_lingering(draft.cut)
                await backing.flush(draft.cut(), _always)
                saved = True
            await backing.linger(self._grants(), found.now)


def read_grant(payload: bytes) -> Amount:
    """Return the amount of a grant. A signal of this topic with another payload grants nothing."""
    value: Any = decode(payload, "a grant")
    fits = isinstance(value, list) and len(value) == 3 and all(type(one) is int and one >= 0 for one in value)
    return Amount(*value) if fits else Amount()
