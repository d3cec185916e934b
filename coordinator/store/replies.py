"""Readers of server replies that plans share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def text(value: Any) -> str:
    """Decode a word or a name from a reply."""
    return value.decode() if isinstance(value, bytes) else str(value)


def word(reply: Any) -> str:
    """Return the word that a script answered with."""
    return text(reply[0] if isinstance(reply, list) else reply)


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """Return a dict from a flat list of fields and values."""
    return {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}


def require_all(replies: Sequence[Any]) -> Sequence[Any]:
    """Return the replies, or raise the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
