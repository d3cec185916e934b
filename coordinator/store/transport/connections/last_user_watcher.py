"""A small process that stops an embedded server when its last user is gone, even after `kill -9`.

This file is a program, not a module: `watcher_process` runs it with the standard library alone, so that it starts fast and stays
small. The program waits for attached.lock, which every attachment shares. The kernel grants the lock when no attachment is left.
Then the program takes the same locks as an attachment that leaves, and stops the server.

    python -I -S last_user_watcher.py DIRECTORY FD    FD is watcher.lock, which is held as long as this process lives
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time

STOP_SECONDS = 10  # after which a server that does not stop is left alone
OTHER_USER_SECONDS = 0.5  # the pause before the next check, while a process of an older release uses the server


def main() -> None:
    """Detach from the process that started this one, wait until no user is left, and stop the server."""
    directory = sys.argv[1]
    if os.fork():
        os._exit(0)  # this process is not the child of a user of the server: no zombie process is left to the user
    files = {name: _open(directory, name) for name in ("attached.lock", "users.lock", "start.lock", "server.lock")}
    while not _stop_if_unused(directory, files):
        time.sleep(OTHER_USER_SECONDS)  # noqa: TID251  # this program has no clock to be given


def _open(directory: str, name: str) -> int:
    return os.open(os.path.join(directory, name), os.O_RDWR | os.O_CREAT, 0o600)


def _stop_if_unused(directory: str, files: dict[str, int]) -> bool:
    """Wait until no process is attached to the server, then stop the server.

    Returns:
        False if another process uses the server: a new process, or a process of an older release, which does not use attached.lock.
    """
    fcntl.flock(files["attached.lock"], fcntl.LOCK_EX)
    fcntl.flock(files["attached.lock"], fcntl.LOCK_UN)
    fcntl.flock(files["start.lock"], fcntl.LOCK_EX)
    try:
        fcntl.flock(files["users.lock"], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(files["start.lock"], fcntl.LOCK_UN)
        return False
    if _is_same_file(os.path.join(directory, "server.lock"), files["server.lock"]):
        _stop(files["server.lock"])
    return True  # the end of this process releases all locks together


def _is_same_file(path: str, file: int) -> bool:
    """Return True if the path still names the open file. Otherwise the directory was removed or replaced."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except OSError:
        return False


def _stop(server: int) -> None:
    """Send SHUTDOWN to the server, and wait until it has released its lock. Do nothing if it has stopped already."""
    signal.alarm(STOP_SECONDS)  # ends this process
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(os.pread(server, 4096, 0))
        except OSError:
            return
        with contextlib.suppress(OSError):
            line.sendall(b"SHUTDOWN\r\n")
            line.recv(4096)
    fcntl.flock(server, fcntl.LOCK_SH)


if __name__ == "__main__":
    main()
