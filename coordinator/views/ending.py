"""The ending of a run: its result, or the error that the client raises. This module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.encoding.codec import decode
from coordinator.errors import NotFound, RunCancelled, RunDead, RunFailed, Unreadable
from coordinator.model.run import Failure, Status
from coordinator.store.replies import text

NOT_STARTED = "its handler could not be started"  # the end of the reason that reject.lua stores


@dataclass(frozen=True, slots=True)
class Ending:
    """The ending of a run.

    Attributes:
        run: The id of the run.
        status: The status in which it ended.
        data: The encoded result; empty if there is none.
        error: The encoded error; empty if there is none.
        reason: The reason that the scripts stored, for example of a cancel.
        at: When the run ended, in Unix ms.
        bare: True if only the status is stored: the result of the run was not kept.
    """

    run: str
    status: Status
    data: bytes
    error: bytes
    reason: str
    at: int
    bare: bool

    @classmethod
    def of(cls, run: str, reply: Sequence[Any]) -> Ending:
        """Return the ending from the reply of wait.lua, without the reply's first word.

        Raises:
            Unreadable: A field of the reply has an unexpected value.
        """
        try:
            status, data, error, reason, at, bare = reply
            return cls(run, Status(text(status)), data, error, text(reason), int(at or 0), bool(bare))
        except ValueError as wrong:
            raise unreadable_run(run, wrong) from wrong

    def result(self) -> Any:
        """Return the result of the handler.

        Raises:
            NotFound: The run completed, but its result is no longer stored.
            RunCancelled: The run was cancelled.
            RunDead: The run was set aside after too many strikes.
            RunFailed: The handler failed.
        """
        if self.status is Status.COMPLETED:
            if self.bare:
                raise NotFound(
                    f"run {self.run} has completed, but its result is not stored any more: it was enqueued with "
                    "retention=0, it was discarded, or more runs had ended than the coordinator keeps (--keep)"
                )
            return decode(self.data, "result") if self.data else None
        if self.status is Status.CANCELLED:
            raise RunCancelled(f"run {self.run} was cancelled: {cancel_reason(self.reason)}")
        failure = read_failure(self.error) or Failure("", self.reason)
        if self.status is Status.DEAD:
            why = death_reason(self.reason, failure) or failure.message
            raise RunDead(why, run=self.run, type=failure.type, traceback=failure.traceback)
        raise RunFailed(failure.message or self.reason, run=self.run, type=failure.type, traceback=failure.traceback)


def death_reason(reason: str, failure: Failure | None) -> str:
    """Return why a run is dead, from the stored reason. If its handler could not be started, add the error of the last attempt."""
    if failure is None or not failure.type or not reason.endswith(NOT_STARTED):
        return reason
    return f"{reason}: {failure.type}: {failure.message}"


def cancel_reason(reason: str) -> str:
    """Return the reason of a cancel as a phrase. If the stored reason is empty or "cancelled", it is "a cancel was requested"."""
    return "a cancel was requested" if reason in ("", "cancelled") else reason


def read_failure(data: bytes | None) -> Failure | None:
    """Return the failure from an encoded error; None if there is no error. A damaged error gives a failure of type Unreadable."""
    if not data:
        return None
    try:
        return Failure(*decode(data, "error"))
    except Unreadable as error:
        return Failure("Unreadable", str(error))
    except TypeError:
        return Failure("Unreadable", repr(data[:200]))


def unreadable_run(id: str, error: Exception) -> Unreadable:
    """Return the error for a run whose stored fields can't be read."""
    return Unreadable(
        f"run {id} can't be read ({type(error).__name__}: {error}): 'coordinator doctor' shows what is damaged"
    )
