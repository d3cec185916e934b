"""Identify a process on its machine, and prove that it has ended.

A process mark consists of boot id, pid namespace, pid and start time, so no two processes of a machine ever have the same mark.
After a reboot, or from another container, this process cannot prove anything about a mark; the worker's lease then has to expire.
Virtual machines that were cloned from one memory snapshot have the same boot id and pids. The mark alone is therefore no proof that
a worker is gone: the supervisor also waits for its heartbeats (`workers/supervisor/dead_workers.py`).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Mark:
    """The identity of a process. No other process has it, even after a reboot or with a reused pid, except on a cloned machine."""

    boot: str
    namespace: str
    pid: int
    started: str  # in clock ticks since boot

    def __str__(self) -> str:
        return f"{self.boot} {self.namespace} {self.pid} {self.started}"

    @classmethod
    def read(cls, text: str) -> Mark | None:
        """Return the mark from its text form, or None if the text is not a mark. Workers without /proc have no mark."""
        match text.split():
            case [boot, namespace, pid, started] if pid.isdecimal():
                return cls(boot, namespace, int(pid), started)
            case _:
                return None


def own_mark() -> Mark | None:
    """Return the mark of this process, or None on a machine without a usable /proc."""
    try:
        if os.readlink(PROC / "self") != str(os.getpid()):
            return None  # the mounted /proc belongs to another pid namespace
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(PROC / "self/ns/pid")
        _, started = _stat(os.getpid())
    except (OSError, ValueError):
        return None
    return Mark(boot, namespace, os.getpid(), started)


def provably_gone(mark: Mark, here: Mark | None) -> bool:
    """Return True if the process with this mark has ended. This is certain unless the process runs on a clone of this machine.

    Args:
        mark: The mark of the process in question.
        here: The mark of the process that asks.
    """
    if here is None or (mark.boot, mark.namespace) != (here.boot, here.namespace):
        return False
    try:
        os.kill(mark.pid, 0)  # this uses a signal and not /proc, because /proc may hide processes of other users
    except ProcessLookupError:
        return True
    except OSError:
        pass
    try:
        state, started = _stat(mark.pid)
        # A zombie process has ended, unless only its first thread has ended.
        return started != mark.started or (state == "Z" and len(os.listdir(PROC / f"{mark.pid}/task")) == 1)
    except (OSError, ValueError):
        return False


def _stat(pid: int) -> tuple[str, str]:
    """Return the state and the start time of a process.

    In /proc/<pid>/stat, the name of the process comes before these two values, in parentheses, and may contain any character.
    """
    fields = (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def resident_bytes() -> int:
    """Return the memory that this process uses now, or 0 on a machine without /proc."""
    with contextlib.suppress(OSError, ValueError):
        return int((PROC / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
