"""What a worker process prints. Who reads it may die first, as `workers dev` or a log collector does: then it goes nowhere.

A handler must not fail because nobody reads what it says. The rest of the process writes here too: its log, its tracebacks.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Spoken(io.FileIO):
    """A file of this process that loses its reader without an error. From then on nothing is written at all: also what a process
    below this one would write there is not broken."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def speak_on() -> None:
    """Standard output and error of this process, line by line and without an end."""
    sys.stdout, sys.stderr = _spoken(sys.stdout, 1), _spoken(sys.stderr, 2)


def _spoken(before: TextIO, descriptor: int) -> TextIO:
    with contextlib.suppress(OSError, ValueError):  # what was printed until now
        before.flush()
    raw = io.BufferedWriter(Spoken(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding=before.encoding, errors=before.errors, line_buffering=True)
