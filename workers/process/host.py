"""What the machine says of a process: a mark that no other process ever has, and whether the one with a mark is provably gone.

A mark is boot id, pid namespace, pid and start time. Where the machine was started anew, or the pids are those of another
container, nothing can be proved from here, and a lease has to run out.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Mark:
    """Which process, among all that ever were."""

    boot: str
    namespace: str
    pid: int
    started: str  # clock ticks since the boot

    def __str__(self) -> str:
        return f"{self.boot} {self.namespace} {self.pid} {self.started}"

    @classmethod
    def read(cls, text: str) -> Mark | None:
        """None where the text is none: a worker on a machine that tells no such things has none."""
        match text.split():
            case [boot, namespace, pid, started] if pid.isdecimal():
                return cls(boot, namespace, int(pid), started)
            case _:
                return None


def own_mark() -> Mark | None:
    """The mark of this process; None where the machine does not tell, as without /proc."""
    try:
        if os.readlink(PROC / "self") != str(os.getpid()):
            return None  # what is mounted there shows the processes of another pid namespace
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(PROC / "self/ns/pid")
        _, started = _stat(os.getpid())
    except (OSError, ValueError):
        return None
    return Mark(boot, namespace, os.getpid(), started)


def provably_gone(mark: Mark, here: Mark | None) -> bool:
    """Whether the process with a mark runs no more, judged by the process whose own mark is `here`."""
    if here is None or (mark.boot, mark.namespace) != (here.boot, here.namespace):
        return False
    try:
        os.kill(mark.pid, 0)  # not by looking: /proc may hide the processes of others
    except ProcessLookupError:
        return True
    except OSError:
        pass
    try:
        state, started = _stat(mark.pid)
        # a zombie that nobody waits for has ended, unless it is only its first thread that has
        return started != mark.started or (state == "Z" and len(os.listdir(PROC / f"{mark.pid}/task")) == 1)
    except (OSError, ValueError):
        return False


def _stat(pid: int) -> tuple[str, str]:
    """State and start time. The name before them is in parentheses and may hold anything."""
    fields = (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def resident_bytes() -> int:
    """The memory that this process holds now; 0 where the machine does not tell."""
    with contextlib.suppress(OSError, ValueError):
        return int((PROC / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
