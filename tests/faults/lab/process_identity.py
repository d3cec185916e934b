"""Name processes so that a process whose id is used again is not taken for an earlier one, and find out whether they live."""

from __future__ import annotations

import os
from pathlib import Path


def this_process() -> str:
    """Return the name of this process: its id and its start time in clock ticks since the boot."""
    return f"{os.getpid()}-{_stat(f'/proc/{os.getpid()}/stat')[19]}"


def is_alive(name: str) -> bool:
    """Return False if no thread of a process can run any more: the process is gone, or all its threads are zombies."""
    pid, _, started = name.partition("-")
    try:
        if _stat(f"/proc/{pid}/stat")[19] != started:
            return False  # the id belongs to a later process
        return any(_state(thread) not in "ZX" for thread in Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False


def _state(thread: Path) -> str:
    try:
        return _stat(thread / "stat")[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _stat(file: str | Path) -> list[str]:
    """Return the fields of a stat file of procfs after the name of the program, which may contain spaces."""
    return Path(file).read_text().rpartition(")")[2].split()
