"""The outputs that a client reads in one partition: the cursor of each stream, and readers that get nothing."""

from __future__ import annotations

import pytest

from coordinator.client.output.subscriptions import Subscription, Subscriptions
from coordinator.store.keys import Keys
from coordinator.store.plans.output import Entry

KEY = "output"


@pytest.fixture
def streams() -> Subscriptions:
    return Subscriptions(Keys("n", 0), "client")


def subscribed(streams: Subscriptions, cursor: str = "0-0", key: str = KEY) -> Subscription:
    subscription = Subscription(lambda: None)
    streams.add(key, cursor, subscription)
    return subscription


def entry(id: str) -> Entry:
    return id.encode(), [b"e0", b"1000 x"]


def cursor_of(streams: Subscriptions, key: str = KEY) -> str:
    keys, cursors = streams.wanted()
    return dict(zip(keys, cursors, strict=True))[key]


@pytest.mark.parametrize("first", ["9999999999999999999-0", "100-0", "20-16"])
def test_stream_is_read_from_the_lowest_cursor_of_its_readers(streams: Subscriptions, first: str) -> None:
    subscribed(streams, first)
    subscribed(streams, "20-9")
    subscribed(streams, "30-0")
    assert cursor_of(streams) == "20-9"


def test_stream_is_not_read_again_for_a_reader_that_comes_later(streams: Subscriptions) -> None:
    subscribed(streams, "20-9")
    streams.deliver({KEY: [entry("50-16")]})
    subscribed(streams)
    assert cursor_of(streams) == "50-16"


def test_cursor_of_readers_that_have_left_is_forgotten(streams: Subscriptions) -> None:
    streams.remove(KEY, subscribed(streams))
    subscribed(streams, "20-9")
    subscribed(streams, "10-9")
    assert cursor_of(streams) == "10-9"


def test_reader_that_gets_nothing_doubts_while_another_one_gets_entries(streams: Subscriptions) -> None:
    silent, busy = subscribed(streams), subscribed(streams, key="other")
    for second in range(40):
        streams.deliver({"other": [entry(f"1-{16 + second}")]})
        streams.doubt_silent(100.0 + second, 30.0)
        assert silent.doubtful == (second >= 30)
    assert not busy.doubtful


def test_reader_doubts_again_after_each_time_without_an_entry(streams: Subscriptions) -> None:
    silent, doubts = subscribed(streams), []
    for second in range(100):
        streams.doubt_silent(100.0 + second, 30.0)
        if silent.doubtful:
            doubts.append(second)
            silent.doubtful = False
    assert len(doubts) == 3
