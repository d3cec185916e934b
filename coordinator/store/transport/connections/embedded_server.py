"""The server of embedded://./dir: a real Valkey server for one directory. Its first user starts it, its last user stops it.

Two rules hold: there are never two servers on the same data, and a server is never stopped while a process uses it.
Lock files in the directory ensure this. The kernel releases each lock when its holders are gone, even after `kill -9`.

    start.lock      held while a process starts or stops the server
    users.lock      shared by all attachments; an attachment that can lock it exclusively is the last one
    server.lock     held by the server process itself as long as it lives; the file's text is the path of the server's socket
    attached.lock   shared by all attachments; the watcher gets it when none is left
    watcher.lock    held by the watcher as long as it lives

The server daemonises: it is not a child of the process that started it, and survives `kill -9` of that process while other
processes use it. If the last user is ended by a signal, it runs no exit functions. Then the watcher, a small separate process,
stops the server.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import logging
import os
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from coordinator.clock import Clock, SystemClock
from coordinator.errors import Refused, Unreachable
from coordinator.store.transport.connections import valkey_process
from coordinator.store.transport.connections.lock_files import open_lock, start_lock, try_lock, wait_for_lock
from coordinator.store.transport.connections.watcher_process import ensure_watcher

logger = logging.getLogger(__name__)
_system = SystemClock()


def attach(directory: Path, clock: Clock = _system) -> Attachment:
    """Attach to the server of a directory, and return the attachment. Start the server if it is not running.

    Args:
        directory: The directory with the server's data. It is created if needed.
        clock: The clock. Tests pass in their own.

    Raises:
        Refused: The directory cannot be used, or the extra `embedded` is not installed.
        Unreachable: The server does not start or does not answer.
    """
    directory = Path(os.path.realpath(directory))
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Attachment(directory, clock)
    except OSError as error:
        reason = "its disk is full" if error.errno == errno.ENOSPC else str(error)
        raise Refused(f"embedded://{directory} can't be used: {reason}") from error


class Attachment:
    """The attachment of one process to the server of a directory. While it is open, no other process stops the server."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._process = os.getpid()
        self._users: int | None = open_lock(directory / "users.lock")
        self._attached = open_lock(directory / "attached.lock")
        try:
            with start_lock(directory, clock):
                wait_for_lock(self._users, fcntl.LOCK_SH, directory, clock)
                wait_for_lock(self._attached, fcntl.LOCK_SH, directory, clock)
                self._socket = valkey_process.find(directory, clock) or valkey_process.start(directory, clock)
                ensure_watcher(directory)
        except BaseException:
            os.close(self._users)
            os.close(self._attached)
            raise
        atexit.register(self.close)  # a script that never closes its client may be the last user

    @property
    def socket(self) -> Path:
        """The path of the server's socket. Read it again after `ensure()`: a restarted server may have another socket."""
        return self._socket

    @property
    def url(self) -> str:
        """The URL of the socket, for redis-py's `from_url`."""
        return f"unix://{quote(str(self._socket))}?db=0"

    def ensure(self) -> None:
        """Start the server again, on the same data, if it has died. Call this after a failed connection.

        Raises:
            Unreachable: The server does not start.
        """
        try:
            with start_lock(self._directory, self._clock):
                running = valkey_process.find(self._directory, self._clock)
                self._socket = running or valkey_process.start(self._directory, self._clock)
                ensure_watcher(self._directory)
            if running is None:
                logger.warning("embedded server restarted: the server of embedded://%s had died", self._directory)
        except OSError as error:
            raise Unreachable(f"the server of embedded://{self._directory} can't be started: {error}") from error

    def close(self) -> None:
        """Detach from the server, and stop the server if this was its last user. A second call does nothing."""
        users, self._users = self._users, None
        if users is None:
            return
        try:
            if os.getpid() == self._process:  # the copy in a forked child must not stop the server
                atexit.unregister(self.close)
                self._leave(users)
        finally:
            os.close(users)
            os.close(self._attached)

    def forget(self) -> None:
        """Close the files of an attachment in a forked child, which is not a user of the server."""
        users, self._users = self._users, None
        if users is not None:
            atexit.unregister(self.close)
            os.close(users)
            os.close(self._attached)

    def _leave(self, users: int) -> None:
        try:
            with start_lock(self._directory, self._clock):
                if try_lock(users) and not valkey_process.stop(self._directory, self._clock):
                    seconds = valkey_process.ANSWER_SECONDS
                    logger.warning("embedded server did not stop: embedded://%s, after %g s", self._directory, seconds)
                # Closing is not enough if a forked child has the files open, too.
                fcntl.flock(users, fcntl.LOCK_UN)
                fcntl.flock(self._attached, fcntl.LOCK_UN)
        except (OSError, Unreachable) as error:
            logger.warning("embedded server left running: embedded://%s: %s", self._directory, error)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
