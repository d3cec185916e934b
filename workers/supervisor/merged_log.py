"""One log of several processes in one terminal: each line with the name of who wrote it, whole, once.

The processes write into pipes, so that what handlers print is named too and no line is torn by another. As JSON no name is put
before a line: it would be none any more.
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
LONGEST_LINE = 1 << 16  # what comes without an end is shown in pieces


class MergedLog(logging.Handler):
    """The root's handler: shows what this process logs, and what others write into the pipes that it gives out."""

    def __init__(self, stream: TextIO, *, as_json: bool = False) -> None:
        super().__init__()
        self._stream, self._named, self._colour = stream, not as_json, stream.isatty() and not as_json
        self._pipes: dict[int, _Pipe] = {}
        self._count = 0
        self.setFormatter(JsonLines() if as_json else Lines(colour=self._colour))

    def emit(self, record: logging.LogRecord) -> None:
        coordinator = record.name.startswith("coordinator.services")
        self.show("coordinator" if coordinator else "dev", self.format(record))

    def show(self, name: str, text: str) -> None:
        """All lines of a text, together."""
        prefix = self._prefix(name) if self._named else ""
        # where the terminal is gone the work goes on: that it is gone comes as a signal
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError):
            self._stream.write("".join(f"{prefix}{line}\n" for line in text.split("\n")))
            self._stream.flush()

    def _prefix(self, name: str) -> str:
        if not self._colour:
            return f"{name:<{_WIDTH}} | "
        number = name.rpartition(" ")[2]
        colour = _COLOURS[int(number) % len(_COLOURS)] if number.isdigit() else _BOLD
        return f"{colour}{name:<{_WIDTH}} |{_PLAIN} "

    def outlet(self) -> int:
        """The end of a new pipe for the next worker's output. Whoever gets it closes it when the worker has it."""
        self._count += 1
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        pipe = self._pipes[reading] = _Pipe(f"worker {self._count}", reading, self)
        asyncio.get_running_loop().add_reader(reading, self._readable, pipe)
        return writing

    def _readable(self, pipe: _Pipe) -> None:
        if not pipe.read():
            asyncio.get_running_loop().remove_reader(pipe.reading)
            del self._pipes[pipe.reading]
            os.close(pipe.reading)

    def read_all(self) -> None:
        """What was written until now, at the end. A pipe may be kept open by processes that a handler left behind."""
        for pipe in list(self._pipes.values()):
            pipe.read()
            pipe.end()


class _Pipe:
    """What one worker writes, cut into lines."""

    def __init__(self, name: str, reading: int, log: MergedLog) -> None:
        self.name, self.reading, self._log = name, reading, log
        self._rest = b""

    def read(self) -> bool:
        """Shows the whole lines that are there. Whether more may come."""
        try:
            while part := os.read(self.reading, LONGEST_LINE):
                *lines, self._rest = (self._rest + part).split(b"\n")
                if len(self._rest) > LONGEST_LINE:
                    lines, self._rest = [*lines, self._rest], b""
                if lines:
                    self._show(b"\n".join(lines))
        except BlockingIOError:
            return True
        self.end()
        return False

    def end(self) -> None:
        if self._rest:
            self._show(self._rest)
            self._rest = b""

    def _show(self, text: bytes) -> None:
        self._log.show(self.name, text.decode(errors="replace"))


def outlet() -> int | None:
    """Where the next worker writes to: into the merged log, if this process has one; else where this process does."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, MergedLog):
            return handler.outlet()
    return None
