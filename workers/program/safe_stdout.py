"""Output of a worker process that never fails, even if its reader (such as `workers dev` or a log collector) has died.

The same holds after a handler has closed the file descriptor of the output.

A handler must not fail because no process reads its output. The log and the tracebacks of the process use this output too.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from coordinator.store.transport.connections.open_files import identify_file

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class SafeOutput(io.FileIO):
    """A file that discards its output when its reader is gone, or when a handler has closed its file descriptor.

    From then on the file descriptor points to /dev/null, so that processes that a handler starts can write to it without an error.
    If another file has got the number of a closed descriptor, for example a connection to the server, that file is left alone.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._file = identify_file(descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write the data, or discard it if it cannot be written. Return the number of bytes that count as written."""
        found = identify_file(self.fileno())
        if found is not None and found == self._file:
            try:
                return super().write(data)
            except BrokenPipeError:
                self._point_to_nowhere()
        elif found is None:
            self._point_to_nowhere()
        return memoryview(data).nbytes

    def _point_to_nowhere(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere == self.fileno():  # the number was free
            os.set_inheritable(nowhere, True)
        else:
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
        self._file = identify_file(self.fileno())


def install_safe_output() -> None:
    """Replace standard output and standard error of this process by a SafeOutput, which is flushed after each line."""
    sys.stdout, sys.stderr = _safe_stream(sys.stdout, 1), _safe_stream(sys.stderr, 2)


def _safe_stream(before: TextIO, descriptor: int) -> TextIO:
    with contextlib.suppress(OSError, ValueError):  # write the output that was printed until now
        before.flush()
    raw = io.BufferedWriter(SafeOutput(descriptor))
    return io.TextIOWrapper(raw, encoding=before.encoding, errors=before.errors, line_buffering=True)
