"""What can go wrong, named by what it means for the caller. One root, few leaves.

Refused and Unreachable wrote nothing; Unconfirmed may have written, and the same call may be made again.
"""

from __future__ import annotations

from collections.abc import Sequence


class CoordinatorError(Exception):
    """The root of everything that the library raises."""


class Refused(CoordinatorError):
    """The call was refused; nothing was written."""


class BadName(Refused):
    """A namespace, queue, kind or fleet is not a name: 1 to 100 of A-Z a-z 0-9 _ . -"""


class BadOption(Refused):
    """An option has a value that makes no sense."""


class NotPlain(Refused):
    """A value is not plain data (None, bool, int, float, str, bytes, datetime, list, tuple, dict)."""


class TooLarge(Refused):
    """A value is larger than its limit."""


class KeyConflict(Refused):
    """The idempotency key belongs to a run with other inputs."""


class TreeCancelled(Refused):
    """The parent was cancelled with all that is below it: nothing more is enqueued there."""

    def __init__(self, message: str, *, parent: str = "") -> None:
        super().__init__(message)
        self.parent = parent


class Changed(Refused):
    """The run has changed since it was looked at (another life, or no longer ended)."""


class NotConfigured(Refused):
    """The server or the namespace can't be used like this; the message says which command mends it."""


class ServerFull(Refused):
    """The server's memory is full; what drains, ends or keeps alive goes on."""


class NotFound(CoordinatorError):
    """There is no such run, or its retention is over."""


class Unreachable(CoordinatorError):
    """The server could not be reached; nothing was written."""


class Unconfirmed(CoordinatorError):
    """The call was sent and no answer came: it may have been carried out. Call again with the same ids or key."""

    def __init__(self, message: str, ids: Sequence[str] = (), acknowledged: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ids = tuple(ids)
        self.acknowledged = tuple(acknowledged)


class RunFailed(CoordinatorError):
    """The run ended as failed."""

    def __init__(self, message: str, *, run: str = "", type: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.run, self.type, self.message, self.traceback = run, type, message, traceback


class RunDead(RunFailed):
    """The run was set aside after too many strikes."""


class RunCancelled(CoordinatorError):
    """The run ended as cancelled."""


class ResultTimeout(CoordinatorError, TimeoutError):
    """The result was not there in time. The run goes on."""


class BadCall(CoordinatorError):
    """The server answered something that this version does not understand: a mistake of ours."""


class Unreadable(CoordinatorError):
    """Bytes that are not what was written: corrupt, too deep, or of an unknown type."""
