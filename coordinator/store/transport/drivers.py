"""Run a plan: send the requests that the plan yields, and pass the replies to the plan."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from coordinator.errors import BadCall
from coordinator.store.script import Call, Request
from coordinator.store.transport.async_wire import AsyncWire
from coordinator.store.transport.sync_wire import Wire

T = TypeVar("T")
Plan = Generator[Request | list[Request], Any, T]


def drive(wire: Wire, plan: Plan[T], timeout: float | None = None) -> T:
    """Run a plan to its end, from a thread.

    Args:
        wire: The wire that sends the plan's requests.
        plan: The plan to run. A request that fails raises its error inside the plan.
        timeout: Seconds for which each request is repeated while the server cannot be reached; the wire's own by default.

    Returns:
        The return value of the plan.
    """
    try:
        yielded = next(plan)
        while True:
            answers = wire.ask(yielded if isinstance(yielded, list) else [yielded], timeout)
            value, error = _value_or_error(yielded, answers)
            yielded = plan.send(value) if error is None else plan.throw(error)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's return value


def drive_after_token(wire: Wire, registration: Call, key: str, seconds: float, plan: Plan[T]) -> tuple[bool, T]:
    """Run a plan to its end, from a thread. The server carries out its only request when a list has a token.

    The registration, the command that waits for the token, and the request are sent together, in one round trip instead of three.
    None of them is repeated after an error.

    Args:
        wire: The wire that sends the plan's request.
        registration: A call that the server carries out first. It decides when the list gets a token.
        key: The key of the list, in the partition of the request.
        seconds: How long the server waits for a token. After this time it carries out the request without one.
        plan: The plan to run. A request that fails raises its error inside the plan.

    Returns:
        True if the list had a token, and the return value of the plan.

    Raises:
        BadCall: The plan does not make exactly one request.
    """
    request = next(plan)
    assert not isinstance(request, list)
    taken, answer = wire.ask_after_token(registration, key, seconds, request)
    try:
        if isinstance(answer, Exception):
            plan.throw(answer)
        else:
            plan.send(answer)
    except StopIteration as done:
        return taken, done.value
    raise BadCall("a plan that waits for a token must make exactly one request")


async def drive_async(
    wire: AsyncWire, plan: Plan[T], timeout: float | None = None, give_up: Callable[[], bool] | None = None
) -> T:
    """Run a plan to its end, from an event loop.

    Args:
        wire: The wire that sends the plan's requests.
        plan: The plan to run. A request that fails raises its error inside the plan.
        timeout: Seconds for which each request is repeated while the server cannot be reached; the wire's own by default.
        give_up: A function that is called before each repetition, instead of a timeout. If it returns True, requests are not
            repeated any more.

    Returns:
        The return value of the plan.
    """
    try:
        yielded = next(plan)
        while True:
            answers = await wire.ask(yielded if isinstance(yielded, list) else [yielded], timeout, give_up)
            value, error = _value_or_error(yielded, answers)
            yielded = plan.send(value) if error is None else plan.throw(error)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's return value


def _value_or_error(yielded: Request | list[Request], answers: list[Any]) -> tuple[Any, Exception | None]:
    """Return the value to send into the plan, or else the error to raise in the plan.

    If the plan yielded a list of requests, the value is the list of their answers, errors included. If it yielded one request, the
    value is its reply, or the error is the request's error.
    """
    if isinstance(yielded, list):
        return answers, None
    answer = answers[0]
    return (None, answer) if isinstance(answer, Exception) else (answer, None)
