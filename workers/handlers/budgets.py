"""Count what a run spends, and stop it or let it wait when its budget is spent.

`run.spend` only counts. The budget is enforced where new work begins: at the beginning of a turn, of a phase and of an effect, so
that no work that was paid for is lost. A grant reaches the run as a signal of a reserved topic. So a run that waits for a grant is
suspended and woken like any other waiting run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from coordinator.encoding.codec import decode
from coordinator.errors import Refused
from coordinator.model.budget import TOPIC, Amount, Budget, BudgetExceeded, Spending, spending
from coordinator.store.plans.attempts import Condition, Received
from workers.handlers.draft import Cut, Draft


class BudgetBacking(Protocol):
    """The methods of a worker, or of its stand-in in a test, that the budget of a run calls.

    All coroutines run on the worker's event loop.
    """

    def check_task(self) -> None:
        """Check that the handler's own task or thread makes the call. See `EnqueueBacking`."""
        ...

    def set_spend(self, amount: Amount) -> None:
        """Keep what the attempt has spent in all for the next report or the ending."""
        ...

    async def report_spend(self, amount: Amount) -> Amount:
        """Store what the attempt has spent in all. Return what the run has spent in earlier attempts and with its children.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
        """
        ...

    def start_lingering(self, cut: Callable[[], Cut]) -> None:
        """Begin to count the time for which a wait lingers. See `WaitBacking`."""
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
    """The spending and the budget of one attempt. Any thread may count; the handler's own task or thread enforces.

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

    @property
    def total(self) -> Amount:
        """Return what the run has spent in all."""
        return self._settled.plus(self._current)

    @property
    def left(self) -> Spending:
        """Return what is left of the budget, without what is reserved."""
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

    def enforce(self, own: str = "") -> Coroutine[Any, Any, None]:
        """Report what was spent, and stop the handler if the budget is spent. Called in the task or thread that begins new work.

        Args:
            own: The phase or effect that is about to begin.

        Returns:
            The coroutine that does it. A run waits only in its handler's own task or thread.

        Raises:
            BudgetExceeded: If the budget is spent, and the run shall fail then.
            Stopped: If the budget is spent, and the run waits for a grant.
        """
        try:
            self._backing.check_task()
        except Refused:
            return self._enforce(own, may_wait=False)
        return self._enforce(own, may_wait=True)

    async def _enforce(self, own: str, may_wait: bool) -> None:
        if self._current != self._reported or (self._budget is not None and self._draft.more.bases):
            current = self._current
            self._settled = await self._backing.report_spend(current)
            self._reported = current
        if self._budget is None or not self._is_spent() or not self._draft.resumes_without_repeating() or not may_wait:
            return
        try:
            self._draft.begin_grant(own)
        except Refused:  # other tasks of the handler are at work: the budget is enforced when they have ended
            return
        try:
            await self._wait_for_grant(self._budget)
        finally:
            self._draft.end_wait()

    def _is_spent(self) -> bool:
        return self._budget is not None and self._budget.is_spent(self.total, self._draft.more.granted)

    async def _wait_for_grant(self, budget: Budget) -> None:
        """Look for grants until something is left of the budget."""
        draft, backing, saved = self._draft, self._backing, False
        while self._is_spent():
            condition = Condition(None, {TOPIC: draft.more.received.get(TOPIC, 0)})
            found = await backing.look(condition, None)
            if found.word == "signal":
                draft.more.received[TOPIC] = found.number
                draft.more.granted = draft.more.granted.plus(read_grant(found.payload))
                backing.offer(draft.cut())
            elif budget.then == "fail":
                raise BudgetExceeded(f"the budget of the run is spent: {spending(self.total)}")
            else:
                if not saved:
                    backing.start_lingering(draft.cut)
                    await backing.flush(draft.cut(), _always)
                    saved = True
                await backing.linger(condition, found.now)


def read_grant(payload: bytes) -> Amount:
    """Return the amount of a grant. A signal of this topic with another payload grants nothing."""
    value: Any = decode(payload, "a grant")
    fits = isinstance(value, list) and len(value) == 3 and all(type(one) is int and one >= 0 for one in value)
    return Amount(*value) if fits else Amount()
