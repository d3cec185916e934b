"""Budgets of runs: how much money, tokens and requests a run may spend. All amounts are integers; money is in micro-dollars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple, get_args

from coordinator.errors import BadName, BadOption, CoordinatorError
from coordinator.model.limits import FAR_FUTURE
from coordinator.model.names import name

Then = Literal["fail", "wait"]
MICRO = 1_000_000
MOST = 2**52  # larger numbers are not exact in Lua
_NONE = "-"  # stands for no limit, and for no budget
TOPIC = "coordinator.grant"  # the topic of the signals by which grants reach a run

# The numbers in the field `spend` of a run, in their stored order: the total of earlier attempts and of children; the epoch of the
# last attempt that spent something, and its total; and the part of the sum that was added to the parent.
SPEND_NUMBERS = (
    "settled_usd", "settled_tokens", "settled_requests", "epoch", "usd", "tokens", "requests", "rolled_usd", "rolled_tokens",
    "rolled_requests",
)  # fmt: skip


class BudgetExceeded(CoordinatorError):
    """The run has spent its budget. No retry policy retries this error."""


class UnknownPrice(CoordinatorError):
    """The table of prices does not know the model.

    If `run.spend` raises this error, the tokens and requests of the call are counted, and its dollars are not. A durable agent
    raises it before it sends a request, so nothing is paid.

    No retry policy retries this error: a retry would pay for the call again, and would not know its price either.
    """


class Amount(NamedTuple):
    """An amount of money in micro-dollars, of tokens and of requests."""

    usd: int = 0
    tokens: int = 0
    requests: int = 0

    def plus(self, other: Amount) -> Amount:
        """Return the sum of this amount and another."""
        return Amount(*(mine + its for mine, its in zip(self, other, strict=True)))

    @classmethod
    def of(cls, usd: float | Decimal, tokens: int, requests: int) -> Amount:
        """Return an amount from dollars, tokens and requests. A fraction of a micro-dollar counts as a whole one.

        Raises:
            BadOption: If a number is not valid.
        """
        return cls(_micro(usd, "usd"), _count(tokens, "tokens"), _count(requests, "requests"))


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Spending:
    """The amounts that a run has spent, or that are left of its budget.

    Attributes:
        usd: Dollars; None if the budget does not limit them.
        tokens: Tokens; None if the budget does not limit them.
        requests: Requests; None if the budget does not limit them.
    """

    usd: float | None
    tokens: int | None
    requests: int | None

    def __str__(self) -> str:
        """Return the amounts as text, such as `0.5 USD, 1,200 tokens`; `no limit` if the budget limits nothing.

        Amounts without a limit are left out. Amounts of 0 are left out, except for the first one if all are 0.
        """
        parts = [
            (number, f"{text} {unit}")
            for number, text, unit in (
                (self.usd, f"{self.usd or 0:.6f}".rstrip("0").rstrip("."), "USD"),
                (self.tokens, f"{self.tokens or 0:,}", "tokens"),
                (self.requests, f"{self.requests or 0:,}", "requests"),
            )
            if number is not None
        ]
        shown = [text for number, text in parts if number] or [text for _, text in parts[:1]]
        return ", ".join(shown) or "no limit"


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a run, over all its attempts and its children.

    Attributes:
        usd: The dollars that the run may spend. None for no limit.
        tokens: The tokens that the run may spend. None for no limit.
        requests: The requests that the run may make. None for no limit.
        then: What happens when the budget is spent: "fail" raises BudgetExceeded in the handler, which ends the run; "wait"
            suspends the run until more is granted.

    Raises:
        BadOption: If a value is not valid, or nothing is limited.
    """

    usd: float | Decimal | None = None
    tokens: int | None = None
    requests: int | None = None
    then: Then = "fail"

    def __post_init__(self) -> None:
        if self.usd is None and self.tokens is None and self.requests is None:
            raise BadOption("Budget(…) needs a limit: usd, tokens or requests")
        Amount.of(self.usd or 0, self.tokens or 0, self.requests or 0)
        if self.then not in get_args(Then):
            raise BadOption(f"Budget(then={self.then!r}): then must be 'fail' or 'wait'")

    @property
    def limits(self) -> tuple[int | None, int | None, int | None]:
        """The limits as integers: micro-dollars, tokens, requests; None for no limit."""
        return (None if self.usd is None else _micro(self.usd, "usd"), self.tokens, self.requests)

    def exceeded_by(self, spent: Amount, granted: Amount) -> bool:
        """Return True if the run has spent more than a limit plus its grants."""
        return any(
            limit is not None and used > limit + more
            for limit, used, more in zip(self.limits, spent, granted, strict=True)
        )

    def is_spent(self, spent: Amount, granted: Amount) -> bool:
        """Return True if the run has spent all of a limit plus its grants, or more."""
        return any(
            limit is not None and used >= limit + more
            for limit, used, more in zip(self.limits, spent, granted, strict=True)
        )

    def left(self, spent: Amount, granted: Amount) -> Spending:
        """Return how much the run may still spend: the limits plus its grants, minus what it has spent, and at least 0."""
        usd, tokens, requests = (
            None if limit is None else max(0, limit + more - used)
            for limit, used, more in zip(self.limits, spent, granted, strict=True)
        )
        return Spending(None if usd is None else usd / MICRO, tokens, requests)

    def pack(self) -> list[Any]:
        """Return the budget as plain data, in the form in which a spec stores it: the three limits and `then`."""
        return [*self.limits, self.then]

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget from the text that `describe_budgets` makes.

        Raises:
            BadOption: The text is not such a budget.
        """
        parts = text.split(",")
        if len(parts) != 4 or not all(part == _NONE or part.isdigit() for part in parts[:3]):
            raise BadOption(f"{text!r:.80} is not a budget")
        return cls.load([*(None if part == _NONE else int(part) for part in parts[:3]), parts[3]])

    @classmethod
    def load(cls, stored: Any) -> Budget:
        """Return the budget from the plain data that `pack` made."""
        usd, tokens, requests, then = stored
        return cls(None if usd is None else Decimal(usd) / MICRO, tokens, requests, then)


def describe_budgets(budgets: Mapping[str, Budget | None]) -> str:
    """Return the budgets of handlers, given by kind, as the text that join.lua takes."""
    return " ".join(
        f"{kind}={_NONE if budget is None else _describe(budget)}" for kind, budget in sorted(budgets.items())
    )


def _describe(budget: Budget) -> str:
    return ",".join(_NONE if part is None else str(part) for part in budget.pack())


def spending(amount: Amount) -> Spending:
    """Return the spending for an amount: dollars instead of micro-dollars."""
    return Spending(amount.usd / MICRO, amount.tokens, amount.requests)


def sum_spend(text: str) -> Amount:
    """Return the total that a run has spent, from the text of its field `spend`."""
    settled, last = read_spend(text)
    return settled.plus(last)


def read_spend(text: str) -> tuple[Amount, Amount]:
    """Return two amounts from the text of a run's field `spend`. If the text can't be read, both are 0.

    A number that is too large to be exact in Lua counts as the largest exact one, as it does in the scripts.

    Returns:
        The amount that earlier attempts and children have spent, and the amount of the last attempt that spent something.
    """
    numbers = text.split()
    if len(numbers) != len(SPEND_NUMBERS) or not (text.isascii() and all(number.isdigit() for number in numbers)):
        return Amount(), Amount()
    of = dict(zip(SPEND_NUMBERS, map(_bounded, numbers), strict=True))
    return (
        Amount(of["settled_usd"], of["settled_tokens"], of["settled_requests"]),
        Amount(of["usd"], of["tokens"], of["requests"]),
    )


def _bounded(digits: str) -> int:
    return min(int(digits), FAR_FUTURE) if len(digits) <= len(str(FAR_FUTURE)) else FAR_FUTURE


def check_topic(topic: str) -> str:
    """Return the topic of a signal, if handlers may receive it and clients may send it.

    A caller who may send signals to a run must not be able to change its budget.

    Raises:
        BadName: If the topic is not a valid name, or is the topic of grants.
    """
    if topic == TOPIC:
        raise BadName(f"topic {topic!r} is reserved for grants: use handle.grant(…), 'coordinator grant' or the page")
    return name(topic, "topic")


def _micro(usd: float | Decimal, what: str) -> int:
    try:
        micro = math.ceil(Decimal(str(usd)) * MICRO)
    except (InvalidOperation, ValueError, OverflowError):
        micro = -1
    if isinstance(usd, bool) or not 0 <= micro <= MOST:
        raise BadOption(f"{what}={usd!r} is not an amount of dollars from 0 to {MOST // MICRO:,}")
    return micro


def _count(value: int, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise BadOption(f"{what}={value!r} is not a whole number from 0 to {MOST:,}")
    return value
