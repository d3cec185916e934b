"""Readers of server replies that several plans share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def text(value: Any) -> str:
    """A word or a name from a reply."""
    return value.decode() if isinstance(value, bytes) else str(value)


def word(reply: Any) -> str:
    """The word that a script answered with."""
    return text(reply[0] if isinstance(reply, list) else reply)


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """A flat list of fields and values."""
    return {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}
