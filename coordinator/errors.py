"""The errors that the library raises, named by what they mean for the caller.

After `Refused` and `Unreachable` nothing was written. After `Unconfirmed` the call may have been carried out, and it is safe to
make the same call again.
"""

from __future__ import annotations

from collections.abc import Sequence


class CoordinatorError(Exception):
    """The base class of all errors of the library."""


class Refused(CoordinatorError):
    """The call was refused, and nothing was written. Its subclasses say why."""


class BadName(Refused):
    """A namespace, queue, kind or fleet has a name that is not valid.

    A name has 1 to 100 characters of `A-Z a-z 0-9 _ . -`.
    """


class BadOption(Refused):
    """An option has a value that is not valid, or contradicts another option. The message says which values are valid."""


class NotPlain(Refused):
    """A value is not plain data, so it can't be stored.

    Plain data is None, bool, int (64 bit), float, str, bytes, datetime, and list, tuple and dict of plain data. The message
    names the first part of the value that is not plain. Convert it before the call.
    """


class TooLarge(Refused):
    """A value is larger than its limit. Store it elsewhere, and put a reference to it into the run."""


class KeyConflict(Refused):
    """The idempotency key belongs to a run with another kind or other inputs.

    Use the same inputs to get the existing run, or another key for a new run.
    """


class IdExpired(Refused):
    """The run id is too old for a repeated call, so nothing was enqueued.

    The server does not know a run with this id. The run was never enqueued, or it has ended and was removed: the server can't
    tell. Find out whether the run took effect. If it did not, enqueue it without `id`.

    An id can be used for 60 % of the run's retention: for 14 hours by default, and for 36 seconds with `retention=0`. A longer
    retention, or an idempotency key with a `key_ttl`, allows later repetitions.

    Attributes:
        run: The id.
    """

    def __init__(self, message: str, *, run: str = "") -> None:
        super().__init__(message)
        self.run = run


class TreeCancelled(Refused):
    """The parent run was cancelled together with its tree, so no child can be enqueued below it.

    Attributes:
        parent: The id of the cancelled run.
    """

    def __init__(self, message: str, *, parent: str = "") -> None:
        super().__init__(message)
        self.parent = parent


class Changed(Refused):
    """The run has changed since the call began: for example, another client has revived it. Read the run again, then decide."""


class Ended(Refused):
    """The run has ended, so it can't receive a signal. The signal was not stored.

    A failed, dead or cancelled run can be revived; then it receives signals again.

    Attributes:
        status: The status in which the run ended.
    """

    def __init__(self, message: str, *, status: str = "") -> None:
        super().__init__(message)
        self.status = status


class Full(Refused):
    """The run has too many signals that it has not received yet, so this one was not stored.

    A run may have 1,000 unreceived signals, and 16 MiB of their payloads. Send again when the run has received some of them,
    or waits for the topic.
    """


class NotConfigured(Refused):
    """The server, the namespace or a live process is not set up for the call. The message says how to fix this."""


class ServerFull(Refused):
    """The server's memory is full, so it accepts no new runs and checkpoints.

    Heartbeats, endings and other calls that free memory or keep runs alive still work. Give the server more memory, or delete
    ended runs with `coordinator discard`.
    """


class NotFound(CoordinatorError):
    """The run, schedule, fleet or worker does not exist, or the run's retention is over."""


class Unreachable(CoordinatorError):
    """The server could not be reached within the timeout, and nothing was written. Try again later."""


class Unconfirmed(CoordinatorError):
    """The call was sent, but no answer came: it may or may not have been carried out.

    Make the same call again. A call of the library is carried out once, however often it is repeated, if it has the same run id
    or idempotency key. An enqueue that is repeated too late raises `IdExpired`.

    Attributes:
        ids: The ids of the runs that the call would create.
        acknowledged: The part of `ids` that the server has confirmed.
    """

    def __init__(self, message: str, ids: Sequence[str] = (), acknowledged: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ids = tuple(ids)
        self.acknowledged = tuple(acknowledged)


class RunFailed(CoordinatorError):
    """The run failed: its handler raised and was not retried again, or it was killed at a deadline.

    `revive` requeues the run, from its checkpoint or from the start.

    Attributes:
        run: The id of the run.
        type: The name of the exception's class.
        message: The exception's message.
        traceback: The handler's traceback as text.
    """

    def __init__(self, message: str, *, run: str = "", type: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.run, self.type, self.message, self.traceback = run, type, message, traceback

    def __str__(self) -> str:
        """Return the run, the type of the error and its message in one sentence."""
        what = f"{self.type}: {self.message}" if self.type else self.message
        return f"run {self.run} failed: {what}" if self.run else what


class RunDead(RunFailed):
    """The run is dead: it was set aside after three strikes, because each of its attempts ended with the loss of its worker.

    Find out what kills the worker (memory, a crash in native code), then requeue the run with `revive`.
    """

    def __str__(self) -> str:
        """Return one sentence with the id of the run and the reason why it is dead."""
        return f"run {self.run} is dead: {self.message}" if self.run else self.message


class RunCancelled(CoordinatorError):
    """The run was cancelled."""


class ResultTimeout(CoordinatorError, TimeoutError):
    """The run did not end within the timeout. The run continues; wait again with the same handle."""


class BadCall(CoordinatorError):
    """The server gave a reply that this version does not understand. This is a bug, or another program uses the same keys."""


class Unreadable(CoordinatorError):
    """Stored bytes can't be decoded: they are damaged, nested too deeply, or written by an unknown codec or a newer version.

    The message names the run or key. `coordinator doctor` shows all damaged runs of a namespace.
    """
