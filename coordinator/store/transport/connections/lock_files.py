"""Lock files of the processes that share an embedded server. The kernel releases a lock when its holders are gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from coordinator.clock import Clock
from coordinator.errors import Unreachable

LOCK_SECONDS = 30.0  # how long to wait for another process that starts or stops the server
POLL_SECONDS = 0.01


def open_lock(path: Path) -> int:
    """Open a lock file, create it if needed, and return its descriptor, which is closed by exec.

    The descriptor is never 0, 1 or 2, even in a process without standard files. A server that inherits such a descriptor would
    replace it with its own standard file, and lose the lock.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if file > 2:
        return file
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


def try_lock(file: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take a lock without waiting. Return False if another process has the lock.

    Args:
        file: The descriptor of the lock file.
        how: `fcntl.LOCK_EX` or `fcntl.LOCK_SH`.
    """
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: int, how: int, directory: Path, clock: Clock) -> None:
    """Take a lock, and wait for it if another process has it.

    Args:
        file: The descriptor of the lock file.
        how: `fcntl.LOCK_EX` or `fcntl.LOCK_SH`.
        directory: The directory of the embedded server, for the error message.
        clock: The clock.

    Raises:
        Unreachable: The other process has kept the lock for LOCK_SECONDS.
    """
    until = clock.monotonic() + LOCK_SECONDS
    while not try_lock(file, how):
        if clock.monotonic() > until:
            raise Unreachable(f"another process has kept embedded://{directory} locked for {LOCK_SECONDS:g} s")
        clock.sleep(POLL_SECONDS)


@contextlib.contextmanager
def start_lock(directory: Path, clock: Clock) -> Iterator[None]:
    """Hold start.lock while the context is open, so that only one process at a time starts or stops the server.

    Raises:
        Unreachable: Another process has kept the lock for LOCK_SECONDS.
    """
    file = open_lock(directory / "start.lock")
    try:
        wait_for_lock(file, fcntl.LOCK_EX, directory, clock)
        yield
    finally:
        os.close(file)
