"""Turn errors into bytes that the server stores.

This must succeed for every error that a handler raises: otherwise its run would never end.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from coordinator.encoding.codec import encode
from coordinator.model.policies.retry import RetryLater

MESSAGE_CHARACTERS = 10_000
TRACEBACK_CHARACTERS = 20_000
_OWN_FOLDER = str(Path(__file__).parents[1]) + "/"


def hide_own_frames(error: BaseException) -> None:
    """Remove the first frames of a traceback, up to the first frame outside of this package.

    The traceback then begins with the user's own code. If all frames are of this package, they stay.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        trace = trace.tb_next
    if trace is not None:
        error.__traceback__ = trace


def failure(error: BaseException) -> bytes:
    """Return an error as bytes: its type, its message and the end of its traceback, each limited in length.

    The stored traceback is empty if the error has neither frames nor a cause: it would only repeat the message.
    """
    explained = error.__traceback__ or error.__cause__ or error.__context__
    trace = "".join(traceback.format_exception(error)) if explained else ""
    parts = [type(error).__name__, _message(error)[:MESSAGE_CHARACTERS], _utf8(trace)[-TRACEBACK_CHARACTERS:]]
    return encode(parts, "error")


def retry_later(error: BaseException) -> bytes:
    """Return a RetryLater as bytes, without a traceback, because it is a request for a delay and not a failure."""
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
