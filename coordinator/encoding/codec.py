"""Encode plain data as msgpack, and decode it to equal values of the same types.

Encoding and decoding are one call into msgpack each. The slower checks in Python only run for values that msgpack refused, or that
it may have accepted although they would be decoded as another type. seal.py compresses or encrypts the bytes before they are
stored. `encode` returns unsealed bytes, because callers compare and join them. `decode` accepts sealed and unsealed bytes.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import msgpack

from coordinator.encoding.seal import LIMIT, MARK, opened
from coordinator.errors import NotPlain, TooLarge, Unreadable

PLAIN = (type(None), bool, int, float, str, bytes, datetime, list, tuple, dict)
_PLAIN = frozenset(PLAIN)
_WAY_OUT = (
    "values of other types are converted if the handler declares their types: inputs and results by its annotations, with "
    "handler.inputs(…), and signals by topics="
)
_NAMES = "None, bool, int (64 bit), float, str, bytes, datetime, list, tuple, dict"

# Extension types. A tuple is an array whose first element is the mark. The mark is inside the array, because a nested extension
# would be packed and copied once per level, and would escape msgpack's limit of depth.
_TUPLE, _DATETIME = 1, 2
_MARK = msgpack.ExtType(_TUPLE, b"\0")
_MARK_BYTES = b"\xd4\x01\x00"

_MOMENT = struct.Struct(">H6BI")  # year to second, fold, microsecond
_OFFSET = struct.Struct(">q")  # from UTC in microseconds, where there is one
_MICROSECOND = timedelta(microseconds=1)

_DEPTH = 1024  # msgpack's own, the same in both directions
_KEEP_BUFFER = 1 << 20


class _Packers(threading.local):
    """A msgpack packer for each thread.

    A packer that is kept is three times as fast as `packb` on small values. Threads must not share one.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.pack = msgpack.Packer(default=_default, strict_types=True).pack


def _default(value: object) -> object:
    if type(value) is tuple:
        return [_MARK, *value]
    if type(value) is datetime:
        return msgpack.ExtType(_DATETIME, _pack_datetime(value))
    raise TypeError(type(value))


def _pack_datetime(value: datetime) -> bytes:
    # ISO text cannot express `fold`, and fromisoformat ignores an offset of less than a second.
    date, offset = (value.year, value.month, value.day), value.utcoffset()
    moment = _MOMENT.pack(*date, value.hour, value.minute, value.second, value.fold, value.microsecond)
    return moment if offset is None else moment + _OFFSET.pack(offset // _MICROSECOND)


_packers = _Packers()


def encode(value: object, place: str, limit: int | None = None) -> bytes:
    """Return plain data as msgpack bytes.

    Args:
        value: The value.
        place: The name of the value in error messages.
        limit: The largest number of bytes.

    Raises:
        NotPlain: The value, or a part of it, is not plain data.
        TooLarge: The bytes are more than the limit.
    """
    try:
        data: bytes = _packers.pack(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise NotPlain(_complaint(value, place) or f"{place} can't be stored: {error}") from None
    if len(data) > _KEEP_BUFFER:
        _packers.renew()  # a packer's buffer never shrinks
    if _may_hold_foreign(data) and not _is_plain(value):
        raise NotPlain(_complaint(value, place) or f"{place} changed while it was encoded")
    if limit is not None and len(data) > limit:
        raise TooLarge(f"{place} has {len(data):,} bytes, and the limit is {limit:,}")
    return data


def decode(data: bytes | bytearray, place: str, limit: int = LIMIT) -> Any:
    """Return the value from the bytes that `encode` wrote, sealed or unsealed.

    Args:
        data: The bytes.
        place: The name of the value in error messages.
        limit: The largest number of bytes that sealed data may expand to.

    Raises:
        Unreadable: The bytes were not written by this library, or they expand to more than the limit.
    """
    try:
        if len(data) > _DEPTH and (0xDC in data or 0xDD in data):
            _check_headers(data)
        if 0xD4 in data and _MARK_BYTES in data:
            return _decode_tuples(data)
        return msgpack.unpackb(data, strict_map_key=False, timestamp=3, ext_hook=_extension)
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError, RuntimeError) as error:
        # The check for sealed bytes comes after the failure, so that unsealed bytes, which are most frequent, need no check.
        if data[:1] != MARK:
            raise Unreadable(f"{place} can't be read: {type(error).__name__}: {error}") from error
    return decode(opened(bytes(data), place, limit), place, limit)


# ---- decoding --------------------------------------------------------------------------------------------------------


def _check_headers(data: bytes | bytearray) -> None:
    # msgpack allocates a list when it reads the list's header. Nested headers with a false length could make the process grow
    # by depth times length. Skipping allocates nothing, and fails if elements are missing.
    walk = msgpack.Unpacker(max_buffer_size=len(data))
    walk.feed(data)
    walk.skip()


def _extension(code: int, payload: bytes) -> object:
    if code != _DATETIME or len(payload) not in (_MOMENT.size, _MOMENT.size + _OFFSET.size):
        raise ValueError(f"unknown extension {code} of {len(payload)} bytes")
    zone = None
    if len(payload) > _MOMENT.size:
        zone = timezone(timedelta(microseconds=_OFFSET.unpack_from(payload, _MOMENT.size)[0]))
    year, month, day, hour, minute, second, fold, microsecond = _MOMENT.unpack_from(payload)
    return datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def _decode_tuples(data: bytes | bytearray) -> Any:
    mark, marks = object(), 0

    def extension(code: int, payload: bytes) -> object:
        nonlocal marks
        if code != _TUPLE or payload != b"\0":
            return _extension(code, payload)
        marks += 1
        return mark

    def array(items: list[object]) -> object:
        nonlocal marks
        if not items or items[0] is not mark:
            return items
        marks -= 1
        del items[0]
        return tuple(items)

    value = msgpack.unpackb(data, strict_map_key=False, timestamp=3, ext_hook=extension, list_hook=array)
    if marks:
        raise ValueError("a tuple mark is not the first element of an array")
    return value


# ---- values that are refused -----------------------------------------------------------------------------------------


def _may_hold_foreign(data: bytes) -> bool:
    # msgpack packs bytearray and memoryview as bytes, and its own ExtType and Timestamp, without calling the hook. So this looks
    # for their header bytes. Text in some languages has these bytes too; then the walk finds nothing wrong.
    return (
        0xC4 in data or 0xC5 in data or 0xC6 in data or 0xC7 in data or 0xC8 in data or 0xC9 in data
        or 0xD4 in data or 0xD5 in data or 0xD6 in data or 0xD7 in data or 0xD8 in data
    )  # fmt: skip


def _is_plain(value: object) -> bool:
    rest: list[object] = [value]
    while rest:
        item = rest.pop()
        if type(item) not in _PLAIN:
            return False
        if isinstance(item, (list, tuple, dict)):
            rest.extend(item)
            if isinstance(item, dict):
                rest.extend(item.values())
    return True


def _complaint(value: object, place: str) -> str | None:
    """Return the error message for the first part of the value that can't be stored; None if every part can be stored."""
    levels: list[Iterator[tuple[str, object]]] = [iter([(place, value)])]
    while levels:
        for where, item in levels[-1]:
            why = _fault(item)
            if why is None and len(levels) > _DEPTH and isinstance(item, (list, tuple, dict)):
                why = f"is nested deeper than {_DEPTH} levels"
            if why is not None:
                return f"{_short(where)} {why}"
            if isinstance(item, (list, tuple, dict)):
                levels.append(_parts(item, where))
                break
        else:
            levels.pop()
    return None


def _parts(value: list[object] | tuple[object, ...] | dict[object, object], place: str) -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict):
        yield from ((f"{place}[{index}]", item) for index, item in enumerate(value))
        return
    for key, item in value.items():
        yield f"a key of {place}", key
        yield f"{place}.{key}" if isinstance(key, str) and key.isidentifier() else f"{place}[{key!r}]", item


def _fault(value: object) -> str | None:
    kind = type(value)
    if kind in _PLAIN:
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            return "is an int of more than 64 bits, which can't be stored; store it as a str"
        if isinstance(value, str) and not _is_unicode(value):
            return "is a str with lone surrogates, which can't be stored; store it as bytes"
        return None
    article = "an" if kind.__name__[:1] in "aeiouAEIOU" else "a"
    plain = next((base.__name__ for base in kind.__mro__ if base in _PLAIN), None)
    advice = f"convert it to a plain {plain}" if plain else f"plain data is {_NAMES}; {_WAY_OUT}"
    return f"is {article} {kind.__name__}, which can't be stored; {advice}"


def _is_unicode(text: str) -> bool:
    try:
        return text.encode() is not None
    except UnicodeEncodeError:
        return False


def _short(place: str) -> str:
    return place if len(place) <= 200 else f"{place[:120]}…{place[-60:]}"
