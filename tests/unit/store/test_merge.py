"""Many plans run side by side and share their round trips; each gets the replies that it would get alone."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from coordinator.errors import NotFound, Unconfirmed
from coordinator.store.plans.merge import merge_plans
from coordinator.store.script import Request, read


def asks(name: str, steps: int) -> Generator[Request | list[Request], Any, str]:
    """Send one request, then a pair of requests for each further step, and return the replies."""
    heard = [(yield read("{n:0}", "GET", name))]
    for _ in range(steps - 1):
        heard += yield [read("{n:0}", "GET", f"{name}{side}") for side in ("l", "r")]
    if heard == ["nothing"]:
        raise NotFound(name)
    return " ".join(heard)


def keys(requests: list[Request]) -> list[str]:
    return [str(request.arguments[1]) for request in requests]  # type: ignore[union-attr]  # no scripts here


def test_requests_of_the_same_step_travel_together() -> None:
    plan = merge_plans([asks("a", 2), asks("b", 1), asks("c", 3)])
    assert keys(next(plan)) == ["a", "b", "c"]
    assert keys(plan.send(["1", "2", "3"])) == ["al", "ar", "cl", "cr"]
    assert keys(plan.send(["4", "5", "6", "7"])) == ["cl", "cr"]
    with pytest.raises(StopIteration) as done:
        plan.send(["8", "9"])
    assert done.value.value == ["1 4 5", "2", "3 6 7 8 9"]


def test_failing_plan_does_not_stop_the_others() -> None:
    plan = merge_plans([asks("a", 1), asks("b", 1), asks("c", 1)])
    next(plan)
    doubt = Unconfirmed("no answer", [])
    with pytest.raises(StopIteration) as done:
        plan.send(["nothing", doubt, "3"])
    refused, unconfirmed, came = done.value.value
    assert (type(refused), unconfirmed, came) == (NotFound, doubt, "3")


def test_programming_error_is_not_taken_for_a_reply() -> None:
    def broken() -> Generator[Request | list[Request], Any, str]:
        yield read("{n:0}", "GET", "a")
        raise ZeroDivisionError

    plan = merge_plans([broken()])
    next(plan)
    with pytest.raises(ZeroDivisionError):
        plan.send(["1"])


def test_no_plans_send_nothing() -> None:
    with pytest.raises(StopIteration) as done:
        next(merge_plans([]))
    assert done.value.value == []
