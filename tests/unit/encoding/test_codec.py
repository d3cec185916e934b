from __future__ import annotations

import struct
import threading
import tracemalloc
from array import array
from collections import Counter, OrderedDict, namedtuple
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.encoding.codec import decode, encode
from coordinator.errors import NotPlain, TooLarge, Unreadable

calm = settings(deadline=None)

offsets = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)).map(timezone)
datetimes = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.datetimes(),
    st.none() | offsets | st.just(UTC),
    st.sampled_from([0, 1]),
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | datetimes
)
keys = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
plain = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=20) | st.lists(inner, max_size=5).map(tuple) | st.dictionaries(keys, inner, max_size=5)
    ),
    max_leaves=40,
)


def shape(value: Any) -> Any:
    """Return the value with the types of all its parts, so that == compares types too (1 == True == 1.0)."""
    match value:
        case dict():
            return dict, [(shape(key), shape(item)) for key, item in value.items()]
        case list() | tuple():
            return type(value), [shape(item) for item in value]
        case datetime():
            return datetime, value.replace(tzinfo=None), value.fold, value.utcoffset()
        case float():
            return float, value.hex()
        case _:
            return type(value), value


def nested(levels: int, wrap: Any = lambda inner: [inner]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


# ---- round trips


@calm
@given(plain)
@example({True: 1, 2: False, 0.5: -0.0, b"b": None, None: (), (1, ("a",)): []})
@example([(), [()], ((),), ([(1,)],)])
@example(b"\xd4\x01\x00")
@example(datetime(2000, 1, 1, tzinfo=timezone(timedelta(microseconds=1))))  # fromisoformat reads this as UTC
@example([2**64 - 1, -(2**63), b"", "", 1e308, 5e-324])
def test_plain_data_round_trips_with_its_types(value):
    back = decode(encode(value, "it"), "it")
    assert back == value
    assert shape(back) == shape(value)


def test_time_zone_round_trips_as_its_offset():
    summer = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    back = decode(encode(summer, "it"), "it")
    assert back == summer
    assert back.tzinfo == timezone(timedelta(hours=2))
    assert decode(encode(datetime(2024, 7, 1, tzinfo=UTC), "it"), "it").tzinfo is UTC


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: [{"a": (v,)}]])
def test_everything_that_can_be_encoded_can_be_decoded_even_at_the_depth_limit(wrap):
    levels, refusal = 1, ""
    while not refusal:
        try:
            data = encode(nested(levels, wrap), "it")
        except NotPlain as error:
            refusal = str(error)
            continue
        decode(data, "it")
        levels += 7 if levels < 300 else 1
    assert levels > 300
    assert "nested deeper than" in refusal
    assert len(refusal) < 400


def test_threads_do_not_share_a_packer():
    class Switches(tzinfo):
        def utcoffset(self, moment):
            met.wait(timeout=10)  # both threads are in the middle of packing
            return timedelta(0)

        tzname = dst = utcoffset

    met, results = threading.Barrier(2), {}

    def pack(number):
        results[number] = decode(encode([number, datetime(2024, 1, 1, tzinfo=Switches()), number], "it"), "it")

    threads = [threading.Thread(target=pack, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[number][::2] for number in (1, 2)] == [[1, 1], [2, 2]]


def test_large_value_leaves_no_large_buffer_behind():
    tracemalloc.start()
    try:
        encode("x" * 30_000_000, "it")
        assert tracemalloc.get_traced_memory()[0] < 5_000_000
    finally:
        tracemalloc.stop()


# ---- refused values


class Colour(IntEnum):
    RED = 1


class Word(StrEnum):
    YES = "yes"


class Text(str):
    __slots__ = ()


class Later(datetime):
    pass


Point = namedtuple("Point", "x y")

FOREIGN = [
    (set(), "a set"),
    (frozenset({1}), "a frozenset"),
    (OrderedDict(a=1), "an OrderedDict"),
    (Counter("a"), "a Counter"),
    (Colour.RED, "a Colour"),
    (Word.YES, "a Word"),
    (Text("a"), "a Text"),
    (Point(1, 2), "a Point"),
    (Later(2024, 1, 1), "a Later"),
    (date(2024, 1, 1), "a date"),
    (timedelta(1), "a timedelta"),
    (Decimal(1), "a Decimal"),
    (1j, "a complex"),
    (range(3), "a range"),
    (array("b"), "an array"),
    (object(), "an object"),
    (int, "a type"),
    (bytearray(b"a"), "a bytearray"),
    (bytearray(), "a bytearray"),
    (memoryview(b"a"), "a memoryview"),
    (memoryview(b"a" * 300), "a memoryview"),
    (memoryview(b"a" * 70_000), "a memoryview"),
    *((msgpack.ExtType(1, bytes(size)), "an ExtType") for size in (0, 1, 2, 4, 8, 16, 300, 70_000)),
    *((msgpack.Timestamp(seconds, 1), "a Timestamp") for seconds in (0, 2**33, 2**40)),
    (2**64, "an int of more than 64 bits"),
    (-(2**63) - 1, "an int of more than 64 bits"),
    ("a\ud800", "a str with lone surrogates"),
]


@pytest.mark.parametrize(
    ("value", "named"), FOREIGN, ids=lambda value: "" if not isinstance(value, str) else repr(value)
)
def test_value_that_is_not_plain_is_refused_with_its_path(value, named):
    for held, place in [
        (value, "outline"),
        ([0, {"a": 1}, {"url": value}], "outline[2].url"),
        (("é", (value,)), "outline[1][0]"),
        ({"two words": {7: value}}, "outline['two words'][7]"),
    ]:
        with pytest.raises(NotPlain) as caught:
            encode(held, "outline")
        assert str(caught.value).startswith(f"{place} is {named}, which can't be stored; ")
    assert decode(encode([1], "it"), "it") == [1]  # a refused value leaves nothing in the packer


@pytest.mark.parametrize("key", [frozenset(), Colour.RED, (1, Word.YES), 2**64, "\ud800", memoryview(b"a")])
def test_key_that_is_not_plain_is_refused(key):
    with pytest.raises(NotPlain, match=r"^a key of outline\[0\](\[1\])? is a"):
        encode([{key: 1}], "outline")


def test_first_of_several_wrong_values_is_named():
    with pytest.raises(NotPlain, match=r"^it\.b\[1\] is a set"):
        encode({"a": [1], "b": [(), set(), object()], "c": object()}, "it")


def test_error_for_a_subclass_says_which_type_to_use():
    with pytest.raises(NotPlain, match="convert it to a plain dict"):
        encode(OrderedDict(), "it")
    with pytest.raises(NotPlain, match="plain data is None, bool, int"):
        encode(set(), "it")


def test_cycle_is_refused():
    wheel: list[Any] = []
    wheel.extend([wheel, wheel])
    with pytest.raises(NotPlain, match="nested deeper"):
        encode(wheel, "it")


def test_time_zone_that_raises_is_refused():
    class Fails(tzinfo):
        def utcoffset(self, moment):
            raise ValueError("no offset")

        tzname = dst = utcoffset

    with pytest.raises(NotPlain, match="it can't be stored: no offset"):
        encode(datetime(2024, 1, 1, tzinfo=Fails()), "it")


def test_too_large_error_names_the_path_and_both_sizes():
    assert len(encode("x" * 2000, "it", limit=2003)) == 2003
    with pytest.raises(TooLarge, match=r"^result has 2,003 bytes, and the limit is 2,002$"):
        encode("x" * 2000, "result", limit=2002)


# ---- foreign bytes

hostile = st.lists(
    st.sampled_from(
        [
            *(bytes([code]) for code in range(0x80, 0x100)),
            b"\xd4\x01\x00",
            b"\x93\xd4\x01\x00",
            b"\xc7\x0c\x02" + struct.pack(">H6BI", 2024, 1, 1, 0, 0, 0, 0, 0),
            b"\xc7\x14\x02" + struct.pack(">H6BIq", 2024, 1, 1, 0, 0, 0, 0, 0, 3_600_000_000),
            b"\xd6\xff\x00\x00\x00\x01",
            b"\xc7\x0c\xff" + b"\xff" * 12,
            b"\xdd\xff\xff\xff\xff",
            b"\x00",
            b"\xa1a",
        ]
    )
    | st.binary(max_size=6),
    max_size=60,
).map(b"".join)


def only_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(only_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and all(only_plain(part) for part in value)
    return value is None or type(value) in (bool, int, float, str, bytes, datetime)


@settings(calm, max_examples=1000)
@given(hostile | st.binary(max_size=200))
def test_hostile_bytes_either_decode_or_raise_unreadable(data):
    with suppress(Unreadable):
        assert only_plain(decode(data, "state"))


@pytest.mark.matrix("searches for unknown bugs")
@settings(calm, max_examples=500)
@given(plain, st.data())
def test_damaged_bytes_either_decode_or_raise_unreadable(value, data):
    good = bytearray(encode(value, "it"))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (bytes(good), bytes(good[:cut])):
        with suppress(Unreadable):
            assert only_plain(decode(damaged, "it"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x01",
        b"\x92\x01",
        b"\xa2\xff\xfe",
        b"\x81\x90\x01",
        b"\xd4\x01\x00",
        b"\x92\x01\xd4\x01\x00",
        b"\x92\xd4\x01\x00\xd4\x01\x00",
        b"\x81\xd4\x01\x00\x01",
        b"\x91\xd4\x01\x01",
        b"\xd4\x05\x00",
        b"\xc7\x05\x020soon",
        b"\xc7\x0c\x02" + struct.pack(">H6BI", 2024, 13, 1, 0, 0, 0, 0, 0),
        b"\xc7\x0c\x02" + struct.pack(">H6BI", 2024, 1, 1, 0, 0, 0, 2, 0),
        b"\xc7\x14\x02" + struct.pack(">H6BIq", 2024, 1, 1, 0, 0, 0, 0, 0, 2**62),
        b"\xc7\x14\x02" + struct.pack(">H6BIq", 2024, 1, 1, 0, 0, 0, 0, 0, 24 * 3_600_000_000),
        b"\xc7\x0c\xff\x00\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\x91" * 3000 + b"\x01",
        b"\x81\x01" * 3000 + b"\x01",
        b"\x92\xd4\x01\x00" * 3000 + b"\x01",
    ],
)
def test_bytes_that_no_encoder_wrote_are_unreadable(data):
    with pytest.raises(Unreadable, match=r"^state can't be read: "):
        decode(data, "state")


@pytest.mark.parametrize("header", [b"\xdd" + struct.pack(">I", 400_000), b"\xdc\xff\xff", b"\xdf\x00\x06\x00\x00\x01"])
def test_false_sizes_in_nested_headers_do_not_allocate_memory(header):
    data = header * 1000
    data += b"\0" * (1_000_000 - len(data))
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable):
            decode(data, "state")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_standard_timestamp_becomes_a_datetime():
    assert decode(msgpack.packb(msgpack.Timestamp(1, 0)), "it") == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
