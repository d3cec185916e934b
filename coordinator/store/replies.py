"""Functions with which plans read the replies of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def text(value: Any) -> str:
    """Return a part of a reply as text. Bytes are decoded as UTF-8; bytes of a damaged key that are not text are replaced."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def word(reply: Any) -> str:
    """Return the answer word of a script: the first element of its reply."""
    return text(reply[0] if isinstance(reply, list) else reply)


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """Return a dict from a flat list of fields and values."""
    return {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}


def require_all(replies: Sequence[Any]) -> Sequence[Any]:
    """Return the replies if none of them is an error.

    Raises:
        Exception: The first error among the replies.
    """
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
