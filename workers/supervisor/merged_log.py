"""One log of several processes in one terminal, for `workers dev`: each line is whole and starts with the name of its process.

The processes write into pipes, so that lines from `print` in handlers get a name too, and lines of different processes do not mix.
JSON lines get no name in front, because they would not be JSON any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import TextIO

from coordinator.logs import JsonLines, Lines

_WIDTH = len("coordinator")
_COLOURS = ("\x1b[36m", "\x1b[35m", "\x1b[34m", "\x1b[33m", "\x1b[32m")
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
LONGEST_LINE = 1 << 16  # a longer line is shown in pieces


class MergedLog(logging.Handler):
    """The root logger's handler. It shows the log of this process and the output of the worker processes.

    Args:
        stream: The file to which the lines are written.
        as_json: True if the log lines are JSON.
    """

    def __init__(self, stream: TextIO, *, as_json: bool = False) -> None:
        super().__init__()
        self._stream, self._named, self._colour = stream, not as_json, stream.isatty() and not as_json
        self._pipes: dict[int, _OutputPipe] = {}
        self._count = 0
        self.setFormatter(JsonLines() if as_json else Lines(colour=self._colour))

    def emit(self, record: logging.LogRecord) -> None:
        """Show a log record of this process, under the name of the coordinator or of the dev tool."""
        coordinator = record.name.startswith("coordinator.services")
        self.show("coordinator" if coordinator else "dev", self.format(record))

    def show(self, name: str, text: str) -> None:
        """Write all lines of a text together, each with a name in front."""
        prefix = self._prefix(name) if self._named else ""
        # An error of a closed terminal is ignored here, because the program receives a signal for it.
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError):
            self._stream.write("".join(f"{prefix}{line}\n" for line in text.split("\n")))
            self._stream.flush()

    def _prefix(self, name: str) -> str:
        if not self._colour:
            return f"{name:<{_WIDTH}} | "
        number = name.rpartition(" ")[2]
        colour = _COLOURS[int(number) % len(_COLOURS)] if number.isdigit() else _BOLD
        return f"{colour}{name:<{_WIDTH}} |{_PLAIN} "

    def open_pipe(self) -> int:
        """Open a pipe for the output of the next worker process and return its writing end.

        The caller closes the writing end as soon as the process has inherited it.
        """
        self._count += 1
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        pipe = self._pipes[reading] = _OutputPipe(f"worker {self._count}", reading, self)
        asyncio.get_running_loop().add_reader(reading, self._read_pipe, pipe)
        return writing

    def _read_pipe(self, pipe: _OutputPipe) -> None:
        if not pipe.read():
            asyncio.get_running_loop().remove_reader(pipe.reading)
            del self._pipes[pipe.reading]
            os.close(pipe.reading)

    def read_all(self) -> None:
        """Show the output that is left in the pipes. Do not wait for their ends: processes of handlers may keep them open."""
        for pipe in list(self._pipes.values()):
            pipe.read()
            pipe.show_rest()


class _OutputPipe:
    """The output of one worker process, cut into lines."""

    def __init__(self, name: str, reading: int, log: MergedLog) -> None:
        self.name, self.reading, self._log = name, reading, log
        self._rest = b""

    def read(self) -> bool:
        """Show the complete lines that have arrived. Return False at the end of the pipe."""
        try:
            while part := os.read(self.reading, LONGEST_LINE):
                *lines, self._rest = (self._rest + part).split(b"\n")
                if len(self._rest) > LONGEST_LINE:
                    lines, self._rest = [*lines, self._rest], b""
                if lines:
                    self._show(b"\n".join(lines))
        except BlockingIOError:
            return True
        self.show_rest()
        return False

    def show_rest(self) -> None:
        """Show the last line, which may have no line end."""
        if self._rest:
            self._show(self._rest)
            self._rest = b""

    def _show(self, text: bytes) -> None:
        self._log.show(self.name, text.decode(errors="replace"))


def open_output_pipe() -> int | None:
    """Open a pipe to the merged log of this process for the next worker process, and return its writing end.

    Return None if there is no merged log. The worker process then writes to the same output as this process.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, MergedLog):
            return handler.open_pipe()
    return None
