"""Count the spending of a call, and reserve a part of the budget while the call runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Unpack

from coordinator.model.policies.budget import Amount
from workers.handlers.operations.budgets import Budgets
from workers.handlers.operations.prices import ModelUsage, count_tokens, price

Ask = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@dataclass(frozen=True, slots=True)
class Reservation:
    """A part of the budget that is reserved for a call."""

    _spend: Callable[[Amount], None]

    def spend(
        self, *, usd: float | Decimal = 0, tokens: int = 0, requests: int = 0, **usage: Unpack[ModelUsage]
    ) -> None:
        """Add the amount that the call has really spent to the spending of the run. For the parameters see `run.spend`."""
        count(self._spend, usd, tokens, requests, usage)


def count(spend: Callable[[Amount], None], usd: float | Decimal, tokens: int, requests: int, usage: ModelUsage) -> None:
    """Count amounts and the call of a model, by calling `spend` with them.

    Raises:
        BadOption: If a value is not valid. Then nothing is counted.
        UnknownPrice: If the dollars of the call are not known. Then the other amounts are counted.
    """
    of_model = count_tokens(usage)
    spend(Amount.of(usd, tokens, requests).plus(Amount(tokens=of_model)))
    if usage:
        spend(Amount.of(price(**usage), 0, 0))


@dataclass(frozen=True, slots=True)
class Reserving:
    """Reserve an amount while a block runs, with `with` or `async with`.

    Before an amount is refused, the run asks the server for grants that it has not received yet. `with` on the worker's event loop
    must not wait for the server. It counts the known grants only, and makes the budget ask the server when new work begins.
    """

    _budgets: Budgets
    _amount: Amount
    _ask: Ask  # runs a coroutine function; waits for it in a thread that may block

    def __enter__(self) -> Reservation:
        if not self._budgets.fits(self._amount):
            self._ask(lambda: self._budgets.receive_grants_for(self._amount))
        return self._begin()

    def __exit__(self, *_: object) -> None:
        self._budgets.end_reservation(self._amount)

    async def __aenter__(self) -> Reservation:
        if not self._budgets.fits(self._amount):
            await self._budgets.receive_grants_for(self._amount)
        return self._begin()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def _begin(self) -> Reservation:
        self._budgets.reserve(self._amount)
        return Reservation(self._budgets.spend)
