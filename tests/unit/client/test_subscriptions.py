"""The outputs that a client reads in one partition: the cursor of each stream, and readers that get nothing."""

from __future__ import annotations

import pytest

from coordinator.client.output.subscriptions import LARGE_REPLY, MOST_READ, Subscription, Subscriptions
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


def entry(id: str, size: int = 6) -> Entry:
    return id.encode(), [b"e0", b"1000 ".ljust(size, b"x")]


def cursor_of(streams: Subscriptions, key: str = KEY) -> str:
    keys, cursors, _ = streams.wanted()
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


def read_sizes(streams: Subscriptions, runs: int, size: int, replies: int) -> list[int]:
    """Let the server answer as often as given, with as many entries of each run as wanted. Return the bytes of each reply."""
    sizes = []
    for reply in range(replies):
        most = streams.wanted()[2]
        ids = [f"{reply + 1}-{number}" for number in range(most)]
        entries = {f"{KEY}{run}": [entry(id, size) for id in ids] for run in range(runs)}
        streams.deliver(entries)
        sizes.append(sum(len(fields[1]) for found in entries.values() for _, fields in found))
    return sizes


@pytest.mark.parametrize(("runs", "size"), [(1, 64 * 1024), (40, 16 * 1024), (200, 1024)])
def test_replies_with_large_events_have_fewer_entries(streams: Subscriptions, runs: int, size: int) -> None:
    sizes = read_sizes(streams, runs, size, 10)
    assert max(sizes[1:]) <= LARGE_REPLY, (
        "the number of entries follows the size of the replies, for all streams together"
    )
    assert sizes[-1] >= LARGE_REPLY // 8


def test_reply_has_at_least_one_entry_of_each_stream(streams: Subscriptions) -> None:
    read_sizes(streams, 100, 64 * 1024, 5)
    assert streams.wanted()[2] == 1


def test_number_of_entries_grows_again_after_large_events(streams: Subscriptions) -> None:
    read_sizes(streams, 1, 512 * 1024, 3)
    assert streams.wanted()[2] == 2
    read_sizes(streams, 1, 60, 20)
    assert streams.wanted()[2] == MOST_READ
