"""The file from which the demo counts. Handlers and producer append to it, one line in one write. Redis is not involved.

joins   a worker process is about to claim runs (number: the pid of its supervisor)
asked   the enqueue of a run was acknowledged
start   a handler was called (number: the steps that were saved before)
step    a step begins
saved   the server has acknowledged the checkpoint after the step
left    a handler was asked to stop, and its run is released
end     a handler has returned
result  the producer has received the result of the run; it is right (1) or wrong (0)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NOBODY = "-"


@dataclass(frozen=True, slots=True)
class Line:
    """One event. `at` is a monotonic time, which all processes of this machine share."""

    at: float
    pid: int
    run: str
    token: str
    what: str
    number: int

    @classmethod
    def parse(cls, text: str) -> Line:
        at, pid, run, token, what, number = text.split()
        return cls(float(at), int(pid), run, token, what, int(number))


def write(path: str | Path, what: str, number: int = 0, run: str = NOBODY, token: str = NOBODY) -> None:
    """Append a line in one write, so that lines of several processes do not mix."""
    line = f"{time.monotonic():.6f} {os.getpid()} {run} {token} {what} {number}\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


class Tail:
    """Reads a journal while it grows."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""

    def new(self) -> Iterator[Line]:
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        for text in whole:
            yield Line.parse(text.decode())

    def close(self) -> None:
        self._file.close()
