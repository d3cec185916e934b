"""Count the spending of a run. When its budget is spent, fail the run or let it wait for a grant.

`run.spend` only counts. The budget is enforced where new work begins: at the beginning of a turn, of a phase and of an effect, so
that no work that was paid for is lost. A grant reaches the run as a signal of a reserved topic. So a run that waits for a grant is
suspended and woken like any other waiting run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
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
        """Store in memory the total that the attempt has spent. The next save, report or ending sends it."""
        ...

    async def report_spend(self, amount: Amount) -> Amount:
        """Send the total that the attempt has spent to the server.

        Returns:
            The amount that the run has spent in earlier attempts and with its children.

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

    async def look(self, condition: Condition, timeout_ms: int | None, may_drain: Callable[[], bool] = ...) -> Received:
        """Ask the server for the next signal. See `WaitBacking`."""
        ...

    async def linger(self, condition: Condition, now: int) -> None:
        """Wait until there is a reason to ask for signals again, or suspend the run. See `WaitBacking`."""
        ...


def _always() -> bool:
    return True


class Budgets:
    """The spending and the budget of one attempt. Any thread may add spending.

    Args:
        draft: The draft of the run's next checkpoint.
        backing: The worker's side of the attempt.
        budget: The budget of the run. None for no limit.
        settled: The amount that the run has spent in earlier attempts and with its children.
    """

    def __init__(self, draft: Draft, backing: BudgetBacking, budget: Budget | None, settled: Amount) -> None:
        self._draft, self._backing, self._budget, self._settled = draft, backing, budget, settled
        self._current = self._reported = self._reserved = Amount()
        self._lock = threading.Lock()
        # True from the first step with children on. Children that were dropped may still spend until they are cancelled.
        self._has_children = False
        # Grants that are not in the draft yet: their sum, and the number of the last one. Any thread may reserve, but only the
        # handler's own work may change the draft. After a crash the next attempt receives them again.
        self._found, self._found_number, self._look_soon = Amount(), 0, False
        self._waiting, self._receiving = asyncio.Lock(), asyncio.Lock()

    @property
    def total(self) -> Amount:
        """Return the total that the run has spent."""
        return self._settled.plus(self._current)

    @property
    def left(self) -> Spending:
        """Return the rest of the budget, without reserved amounts."""
        if self._budget is None:
            return Spending(None, None, None)
        return self._budget.left(self.total.plus(self._reserved), self._granted)

    @property
    def _granted(self) -> Amount:
        return self._draft.bookkeeping.granted.plus(self._found)

    def spend(self, amount: Amount) -> None:
        """Add an amount to the spending of this attempt."""
        with self._lock:
            self._current = self._current.plus(amount)
            self._backing.set_spend(self._current)

    def fits(self, amount: Amount) -> bool:
        """Return True if the budget has room for an amount. Grants that this process has not received yet are not counted."""
        with self._lock:
            return self._fits(amount)

    def _fits(self, amount: Amount) -> bool:
        wanted = self.total.plus(self._reserved).plus(amount)
        return self._budget is None or not self._budget.exceeded_by(wanted, self._granted)

    def reserve(self, amount: Amount) -> None:
        """Reserve an amount of the budget.

        Raises:
            BudgetExceeded: If less than the amount is left.
        """
        with self._lock:
            if not self._fits(amount):
                raise BudgetExceeded(f"{spending(amount)} can't be reserved: {self.left} is left of the budget")
            self._reserved = self._reserved.plus(amount)

    def end_reservation(self, amount: Amount) -> None:
        """End the reservation of an amount."""
        with self._lock:
            self._reserved = Amount(*(mine - its for mine, its in zip(self._reserved, amount, strict=True)))

    async def receive_grants_for(self, amount: Amount) -> None:
        """Receive grants from the server until the budget has room for an amount, or there are no more grants.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
        """
        await self._receive_grants(lambda: not self.fits(amount))

    def look_soon(self) -> None:
        """Make the budget ask the server for grants when new work begins.

        A reservation that was refused on the event loop calls this method, because the event loop must not wait for the server.
        """
        self._look_soon = True

    async def count_children(self) -> None:
        """Report the spending of this attempt, and store the server's answer: the spending of earlier attempts and children."""
        current = self._current
        self._settled = await self._backing.report_spend(current)
        self._reported = current

    def expect_children(self) -> None:
        """Make the budget ask the server for the spending of children whenever new work begins."""
        self._has_children = True

    def enforce(
        self, own: str = "", *, inner: bool = False, others: ParallelPhases | None = None
    ) -> Coroutine[Any, Any, None]:
        """Report the spending, and stop the handler if the budget is spent. The task or thread that begins new work calls this.

        New work does not begin while other work is running. It waits until the other work has ended, so that the output of that
        work is saved.

        Args:
            own: The field of the phase or effect that is about to begin.
            inner: True if the new work is inside another phase. Such work does not wait, because the other phase waits for it.
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
        if self._current != self._reported or (
            self._budget is not None and (self._has_children or self._draft.bookkeeping.bases)
        ):
            await self.count_children()
        if self._look_soon and self._budget is not None:
            self._look_soon = False
            await self._receive_grants(lambda: True)
        if not inner:
            self._save_grants()
        while (budget := self._budget) is not None and self._is_spent() and self._draft.resumes_without_repeating():
            if inner:
                if budget.then == "fail":
                    await self._receive_grants(self._is_spent)
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
        return self._budget is not None and self._budget.is_spent(self.total, self._granted)

    def _fail_if_spent(self) -> None:
        if self._is_spent():
            raise BudgetExceeded(f"the budget of the run is spent: {spending(self.total)}")

    async def _receive_grants(self, needs_more: Callable[[], bool]) -> Received:
        """Receive grants until enough is left of the budget, or there are no more grants. Return the server's last answer."""
        async with self._receiving:
            while True:
                found = await self._backing.look(self._grants(), None, self._draft.resumes_without_repeating)
                if found.word != "signal":
                    return found
                with self._lock:
                    self._found = self._found.plus(read_grant(found.payload))
                    self._found_number = found.number
                if not needs_more():
                    return found

    def _save_grants(self) -> None:
        """Put the received grants into the draft, and offer a cut. The handler calls this where it begins new work."""
        kept = self._draft.bookkeeping
        with self._lock:
            if self._found_number <= kept.received.get(TOPIC, 0):
                return
            kept.received[TOPIC] = self._found_number
            kept.granted, self._found = kept.granted.plus(self._found), Amount()
        self._backing.offer(self._draft.cut())

    def _grants(self) -> Condition:
        return Condition(None, {TOPIC: max(self._draft.bookkeeping.received.get(TOPIC, 0), self._found_number)})

    async def _wait_for_grant(self, budget: Budget) -> None:
        """Receive grants until the budget has room again. If there are none, fail the run or linger, as the budget says.

        Raises:
            BudgetExceeded: If the budget is spent, and its `then` is "fail".
            Stopped: If a stop was requested, or the run is suspended until a grant.
        """
        draft, backing, saved = self._draft, self._backing, False
        while self._is_spent():
            found = await self._receive_grants(self._is_spent)
            self._save_grants()
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
    """Return the amount in the payload of a grant, or an amount of zero if the payload is not a valid grant."""
    value: Any = decode(payload, "a grant")
    fits = isinstance(value, list) and len(value) == 3 and all(type(one) is int and one >= 0 for one in value)
    return Amount(*value) if fits else Amount()
