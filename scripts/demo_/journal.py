"""The file that everything is counted from: who does something appends a line, in one write. Redis has no part in it.

joins   a worker process is about to take runs (its parent's pid)
asked   the enqueue of a run was acknowledged
start   a handler was called (how many steps it finds done)
step    a step begins
saved   the server has acknowledged what the step left
left    a handler was told to stop, and hands over
end     a handler has returned
result  the producer has the run's result, and it is the right one (1) or not (0)
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
    """One thing that happened; `at` is a monotonic time that all processes of this machine share."""

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
    """Appends a line: whole, whoever writes beside."""
    line = f"{time.monotonic():.6f} {os.getpid()} {run} {token} {what} {number}\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


class Tail:
    """Reads a journal as it grows."""

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
