"""Ids of runs. An id sorts by the time at which it was made, and ends with the partition of its run."""

from __future__ import annotations

import os
import re
import threading
import zlib

from coordinator.errors import BadName

ID_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_TWO = [a + b for a in ID_DIGITS for b in ID_DIGITS]
_RUN_ID = re.compile(r"[0-9a-hjkmnp-tv-z]{20}-(\d{2,4})")


def _base32(number: int) -> str:
    """Return a number of up to 50 bits as ten base-32 digits."""
    two = _TWO
    return f"{two[number >> 40]}{two[number >> 30 & 1023]}{two[number >> 20 & 1023]}{two[number >> 10 & 1023]}{two[number & 1023]}"


def ids_from(moment: float) -> str:
    """Return the prefix of the ids that are made in the millisecond of a Unix time. Ids that are made later sort after it."""
    return _base32(max(0, int(moment * 1000)))


class RunIds:
    """A maker of run ids that sort by time and, within one process, in the order in which they were made."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ms = 0
        self._tail = 0

    def make(self, now: float, partition: int) -> str:
        """Return a new run id.

        Args:
            now: Unix time in seconds.
            partition: The partition of the run, with which its id ends.
        """
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]  # a forked child must not make the same ids as its parent
        with self._lock:
            ms = max(self._ms, int(now * 1000))
            if ms > self._ms:
                # The top bits are left free, so that counting up cannot overflow within the millisecond.
                self._ms, self._tail = ms, int.from_bytes(os.urandom(6)) & (2**47 - 1)
            else:
                self._tail += 1
            tail = self._tail
        return id_from(ms, tail, partition)


def id_from(ms: int, tail: int, partition: int) -> str:
    """Return the run id that consists of these parts.

    Args:
        ms: Unix time in milliseconds.
        tail: Up to 50 bits that distinguish the run from other runs of the same millisecond.
        partition: The partition of the run.
    """
    return f"{_base32(ms)}{_base32(tail)}-{partition:02d}"


def child_base(now: float, partition: int) -> str:
    """Return the id of the first child of a step. The ids of its other children count up from it (see `child_id`).

    Each base is made by a new RunIds and has a random tail. One RunIds for all bases would count up within a millisecond, and the
    children of two steps could get the same ids.

    Args:
        now: Unix time in seconds.
        partition: The partition of the parent and of its children.
    """
    return RunIds().make(now, partition)


def child_id(base: str, index: int) -> str:
    """Return the id of a joined child.

    Args:
        base: The id of the first child of the step.
        index: The number of the child in the step, from 0.
    """
    tail = 0
    for digit in base[10:20]:
        tail = tail * 32 + ID_DIGITS.index(digit)
    return f"{base[:10]}{_base32(tail + index)}{base[20:]}"


def made_at(run_id: str) -> int:
    """Return the Unix time in ms at which an id was made, by the clock of its process; 0 if the text is not a run id."""
    if not is_run_id(run_id):
        return 0
    ms = 0
    for digit in run_id[:10]:
        ms = ms * 32 + ID_DIGITS.index(digit)
    return ms


def is_run_id(text: str) -> bool:
    """Return True if the text has the form of a run id."""
    return _RUN_ID.fullmatch(text) is not None


def partition_of(run_id: str, partitions: int) -> int:
    """Return the number of the partition with which a run id ends.

    Raises:
        BadName: If the text is not a run id, or names a partition that the namespace does not have.
    """
    found = _RUN_ID.fullmatch(run_id)
    if found is None:
        raise BadName(f"{run_id!r} is not a run id")
    number = int(found[1])
    if number >= partitions:
        raise BadName(f"run id {run_id!r} names partition {number}, and the namespace has {partitions}")
    return number


def partition_for(text: str, partitions: int) -> int:
    """Return the partition that belongs to a text: to a group, an idempotency key, or the name of a schedule or a rate."""
    return zlib.crc32(text.encode()) % partitions
