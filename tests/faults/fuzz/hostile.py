"""Bytes that our code never wrote: damaged valid data, wrong headers, deep nesting, keys that equal nothing, noise."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime
from typing import Any

import msgpack

from coordinator.encoding.codec import encode

NASTY = (
    b"",
    b"\xc1",
    b"\xc1\x01",
    b"\xc1\xff\xff",
    b"\x80",
    b"\x90",
    b"\xc0",
    b"\xc3",
    b"\xff",
    b"\xa3abc",
    b"\xa2\xff\xfe",
    b"\xd9\xff",
    b"\xda\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x02",
    b"\xd4\x01\x00",
    b"\xd4\x02\x00",
    b"\xc7\x0c\x02" + b"\xff" * 12,
    b"\xd7\xff" + b"\xff" * 8,
    b"\x81\xcb\x7f\xf8\0\0\0\0\0\0\x01",
    b"\x81\x80\x01",
    b"\x81\x90\x01",
    b"\x93\xd4\x01\x00\x01\x02",
    b"\x92\x01\xd4\x01\x00",
    b"\x91" * 1023 + b"\x01",
    b"\x91" * 1100 + b"\x01",
    b"\x81\x01" * 600 + b"\x01",
    b"\xdc\xff\xff" * 400,
    b"\xde\xff\xff" * 400,
    b"\xdd\x00\x0f\xff\xff" * 300,
    b"inf",
    b"nan",
    b"1e999",
    b"-1",
    b"9" * 400,
    b"1 2 3",
    b"1 2 3 4 5 6 7 8 9 10",
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\0" * 7,
    b"\xca\x7f\x80\0\0",
    "\ud800".encode(errors="surrogatepass"),
)


def plain(dice: random.Random, depth: int = 0) -> Any:
    """Return any plain value."""
    kind = dice.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return dice.choice([None, True, False, 0, -1, 2**63, -(2**63), 2**64 - 1])
    if kind == 1:
        return dice.choice([0.0, -0.0, float("nan"), float("inf"), 1e308, dice.random()])
    if kind == 2:
        return dice.choice(["", "a", "ü" * 40, "\0", "head", "phase:-:x#0", "x" * 300])
    if kind == 3:
        return dice.randbytes(dice.choice([0, 1, 40]))
    if kind == 4:
        return datetime.fromtimestamp(dice.randrange(2**31), UTC)
    if kind == 5:
        return dice.getrandbits(40)
    items = [plain(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind == 6:
        return items
    if kind == 7:
        return tuple(items)
    return {dice.choice(["a", "b", "topic", 1, b"k"]): item for item in items}


def damaged(dice: random.Random, data: bytes) -> bytes:
    """Change, remove, double or insert some bytes."""
    found = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5])):
        at = dice.randrange(len(found) + 1)
        match dice.randrange(5):
            case 0:
                found[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                del found[at : at + dice.randrange(1, 9)]
            case 2:
                found[at:at] = found[: dice.randrange(9)]
            case 3:
                found[at:at] = dice.choice(NASTY)
            case _:
                found[at:at] = struct.pack(">BI", dice.choice([0xDB, 0xDD, 0xDF, 0xC6, 0xC9]), dice.getrandbits(32))
    return bytes(found)


def hostile(dice: random.Random, valid: bytes | None = None) -> bytes:
    """Return bytes for one decoder, derived from data that would be valid there."""
    match dice.randrange(8):
        case 0:
            return dice.choice(NASTY)
        case 1:
            return dice.randbytes(dice.choice([1, 4, 30, 300]))
        case 2:
            return encode(plain(dice), "fuzz")
        case 3:
            return msgpack.packb({float("nan"): 1, "a": [1] * dice.randrange(40)})  # type: ignore[no-any-return]
        case _:
            return damaged(dice, valid if valid is not None else encode(plain(dice), "fuzz"))
