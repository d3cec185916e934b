"""run.limit without a server: what a block may do, and what a test sees of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from coordinator import BadName, BadOption, Refused
from coordinator.model.policies.rates import RateLimit, decode_rate, encode_rate, parse_rate
from workers import AsyncRun, Limit, Registry, Run, Stopped, testing

runs: Registry[Any] = Registry()


@runs.handler
def plain(run: Run, real: int | None = None) -> None:
    with run.limit("api", cost=10) as limit:
        if real is not None:
            limit.cost = real


@runs.handler
async def asynchronous(run: AsyncRun, real: int | None = None) -> None:
    async with run.limit("api", cost=10) as limit:
        if real is not None:
            limit.cost = real


def test_call_in_memory_starts_at_once_and_is_counted() -> None:
    run = testing.Run()
    plain(run)
    plain(run, 3)
    assert run.limited == [
        testing.LimitedCall("api", 10, 10, is_open=False),
        testing.LimitedCall("api", 10, 3, is_open=False),
    ]


async def test_call_of_an_async_handler_in_memory_is_counted_over_attempts() -> None:
    run = testing.AsyncRun()
    await asynchronous(run)
    again = run.after_crash()
    await asynchronous(again, 0)
    assert [call.cost for call in again.limited] == [10, 0]


def test_cost_that_was_set_counts_although_the_block_raises() -> None:
    run = testing.Run()

    def call() -> None:
        with run.limit("api", cost=10) as limit:
            limit.cost = 0
            raise ConnectionError

    with pytest.raises(ConnectionError):
        call()
    assert run.limited == [testing.LimitedCall("api", 10, 0, is_open=False)]


def test_back_off_is_recorded() -> None:
    run = testing.Run()
    with run.limit("api") as limit:
        limit.back_off(timedelta(minutes=1))
        assert (limit.name, limit.cost) == ("api", 1)
    assert run.limited[0].back_off == 60


def test_requested_stop_is_raised_before_the_call() -> None:
    run = testing.Run()
    run.stop("cancel")
    with pytest.raises(Stopped), run.limit("api"):
        raise AssertionError("the call started")
    assert run.limited == []


@pytest.mark.parametrize("cost", [-1, 1.5, True, "1", 10**9])
def test_cost_that_is_not_valid_is_refused(cost: Any) -> None:
    run = testing.Run()
    with pytest.raises(BadOption):
        run.limit("api", cost=cost)
    with run.limit("api") as limit, pytest.raises(BadOption):
        limit.cost = cost


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 86_401, True, "5", None])
def test_back_off_that_is_not_valid_is_refused(seconds: Any) -> None:
    with testing.Run().limit("api") as limit, pytest.raises(BadOption):
        limit.back_off(seconds)


def test_back_off_outside_of_the_block_is_refused() -> None:
    block: Any = testing.Run().limit("api")
    with pytest.raises(Refused):
        block.back_off(1)
    with block as limit:
        pass
    with pytest.raises(Refused):
        limit.back_off(1)


def test_block_can_be_used_once() -> None:
    block: Any = testing.Run().limit("api")
    with block as limit:
        assert isinstance(limit, Limit)
    with pytest.raises(Refused), block:
        raise AssertionError("the call started")


def test_name_that_is_not_valid_is_refused() -> None:
    with pytest.raises(BadName):
        testing.Run().limit("a b")


# -- rates


@pytest.mark.parametrize(
    ("text", "found"),
    [("90000/min", (90_000, 60)), ("10/s", (10, 1)), ("1_000 / hour", (1000, 3600)), ("5,000/DAY", (5000, 86_400))],
)
def test_rate_is_a_number_and_a_unit(text: str, found: tuple[int, int]) -> None:
    assert parse_rate(text) == found


@pytest.mark.parametrize("text", ["", "10", "10/", "/s", "0/s", "-1/s", "1.5/s", "10/week", "9999999999/s", None])
def test_text_that_is_not_a_rate_is_refused(text: Any) -> None:
    with pytest.raises(BadOption):
        parse_rate(text)


@pytest.mark.parametrize(
    ("rate", "burst", "at_once"),
    [(None, None, None), (None, 5, 1), ("10/s", 0, None), ("10/s", -1, None), ("10/s", 1.5, None), ("10/s", 1, -1)],
)
def test_options_that_contradict_each_other_are_refused(rate: Any, burst: Any, at_once: Any) -> None:
    with pytest.raises(BadOption):
        encode_rate(rate, burst, at_once)


def test_burst_is_what_the_rate_allows_in_a_second_by_default() -> None:
    assert decode_rate("api", encode_rate("90000/min", None, None)) == RateLimit("api", "90000/min", 1500, None)
    assert decode_rate("api", encode_rate("10/min", None, 3)) == RateLimit("api", "10/min", 1, 3)
    assert decode_rate("api", encode_rate(None, None, 3)) == RateLimit("api", None, None, 3)


@pytest.mark.parametrize("stored", ["", "1 2 3", "a b c d", "1 1000 1 - -"])
def test_stored_rate_that_can_not_be_read_is_left_out(stored: str) -> None:
    assert decode_rate("api", stored) is None
