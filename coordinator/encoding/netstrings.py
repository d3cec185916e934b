"""Netstrings, which store several texts as one: for each text its length, a colon, and its bytes."""

from __future__ import annotations

from coordinator.errors import Unreadable


def split_netstrings(data: bytes) -> list[bytes]:
    """Return the texts of consecutive netstrings.

    Raises:
        Unreadable: The bytes are not netstrings.
    """
    parts, start = list[bytes](), 0
    while start < len(data):
        colon = data.find(b":", start)
        digits = data[start:colon] if colon > start else b""
        if not digits.isdigit() or colon + 1 + int(digits) > len(data):
            raise Unreadable("the part of the checkpoint about waits can't be read")
        parts.append(data[colon + 1 : colon + 1 + int(digits)])
        start = colon + 1 + int(digits)
    return parts
