"""Errors as stored text. Any error that a handler raises must be storable: otherwise its run would never end."""

from __future__ import annotations

import traceback

from coordinator.encoding.codec import encode
from coordinator.model.policies.retry import RetryLater

MESSAGE_CHARACTERS = 10_000
TRACEBACK_CHARACTERS = 20_000


def failure(error: BaseException) -> bytes:
    """Return an error as bytes: its type, its message and the end of its traceback, each limited in length."""
    trace = "".join(traceback.format_exception(error))
    parts = [type(error).__name__, _message(error)[:MESSAGE_CHARACTERS], _utf8(trace)[-TRACEBACK_CHARACTERS:]]
    return encode(parts, "error")


def retry_later(error: BaseException) -> bytes:
    """Return a RetryLater as bytes, without a traceback: it asks for a delay and is not a failure."""
    return encode([RetryLater.__name__, _message(error)[:MESSAGE_CHARACTERS], ""], "error")


def first_line(error: BaseException) -> str:
    """Return the type and the first line of the message of an error, for log lines."""
    return f"{type(error).__name__}: {_message(error).partition(chr(10))[0][:300]}"


def _message(error: BaseException) -> str:
    try:
        return _utf8(str(error))
    except Exception:  # noqa: BLE001  # the __str__ of the error itself raised
        return "(the message is not available: str() of the error raised)"


def _utf8(text: str) -> str:
    """Return the text with a replacement for characters that UTF-8 cannot encode. File names may contain such characters."""
    return text.encode(errors="backslashreplace").decode()
