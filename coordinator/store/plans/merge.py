"""Merge many plans into one. Requests that the plans yield at the same step share a trip, so a thousand runs need a few trips.

Each plan receives its own replies and its own errors, as if it ran alone. A plan that fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import islice
from typing import Any, TypeVar

from coordinator.errors import CoordinatorError
from coordinator.store.script import Request

T = TypeVar("T")
Plan = Generator[Request | list[Request], Any, T]


def merge_plans(plans: Iterable[Plan[T]]) -> Generator[list[Request], Any, list[T | CoordinatorError]]:
    """Carry out all plans at the same time. Return, for each plan in order, its result or the error with which it ended."""
    outcomes: dict[int, T | CoordinatorError] = {}
    under_way: list[tuple[int, Plan[T], Request | list[Request]]] = []

    def step(number: int, plan: Plan[T], reply: Any) -> None:
        try:
            asked = plan.throw(reply) if isinstance(reply, Exception) else plan.send(reply)
        except StopIteration as done:
            outcomes[number] = done.value
        except CoordinatorError as error:
            outcomes[number] = error
        else:
            under_way.append((number, plan, asked))

    for number, plan in enumerate(plans):
        step(number, plan, None)
    while under_way:
        before, under_way = under_way, []
        replies = iter((yield [request for _, _, asked in before for request in _as_list(asked)]))
        for number, plan, asked in before:
            step(number, plan, list(islice(replies, len(asked))) if isinstance(asked, list) else next(replies))
    return [outcomes[number] for number in range(len(outcomes))]


def _as_list(asked: Request | list[Request]) -> list[Request]:
    return asked if isinstance(asked, list) else [asked]
