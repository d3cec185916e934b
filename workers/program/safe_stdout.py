"""Output of a worker process that never fails, even if its reader (such as `workers dev` or a log collector) has died.

A handler must not fail because no process reads its output. The log and the tracebacks of the process use this output too.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class SafeOutput(io.FileIO):
    """A file that discards its output when its reader is gone.

    From then on the file descriptor points to /dev/null, so that processes that a handler starts can write to it without an error.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        """Write the data, or discard it if the reader is gone. Return the number of bytes that count as written."""
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def install_safe_output() -> None:
    """Replace standard output and standard error of this process by a SafeOutput, which is flushed after each line."""
    sys.stdout, sys.stderr = _safe_stream(sys.stdout, 1), _safe_stream(sys.stderr, 2)


def _safe_stream(before: TextIO, descriptor: int) -> TextIO:
    with contextlib.suppress(OSError, ValueError):  # write the output that was printed until now
        before.flush()
    raw = io.BufferedWriter(SafeOutput(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding=before.encoding, errors=before.errors, line_buffering=True)
