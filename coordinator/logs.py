"""The log format of the commands `coordinator` and `workers`. The library itself never configures logging.

A line has the time, the level, the message, and the record's fields as key=value. With --log-json, each line is a JSON object.
A worker sets `about` to the fields of the current run. They are added to every record that is logged in the run's context,
including records of other libraries.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TextIO

from coordinator.printable import clean, json_text

about: ContextVar[Mapping[str, object]] = ContextVar("about", default=MappingProxyType({}))

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "about", "taskName"}
# Only the end of a traceback is written, because the message of an error may have any length.
TRACEBACK_CHARACTERS = 20_000
_COLOURS = {"DEBUG": "\x1b[2m", "INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def configure(
    *, as_json: bool = False, level: int = logging.INFO, stream: TextIO | None = None, colour: bool | None = None
) -> None:
    """Make the root logger write lines in the format of the commands.

    Args:
        as_json: Write JSON objects instead of text lines.
        level: The lowest level that is written.
        stream: Where the lines go; by default stderr.
        colour: Whether lines have colours; by default only on a terminal.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json else Lines(colour=stream.isatty() if colour is None else colour))
    install(handler, level)


def install(handler: logging.Handler, level: int) -> None:
    """Make a handler the only handler of the root logger."""
    handler.addFilter(_attach_context)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _attach_context(record: logging.LogRecord) -> bool:
    """Store the fields of the context in the record, because another thread could not read them later. Return True."""
    record.about = about.get()
    return True


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Yield the fields of a record: the fields of its context, and its own extra fields, which override them."""
    own = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    yield from {**getattr(record, "about", {}), **own}.items()


class Lines(logging.Formatter):
    """A formatter that writes records as text lines for people."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with a traceback below it if the record has one."""
        when = datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(" ", "milliseconds")[:23]
        message = clean(record.getMessage())
        extra = " ".join(
            f"{name}={_format_field(value)}" for name, value in _fields(record) if not _is_in_message(value, message)
        )
        level = f"{record.levelname:<7}"
        if self.colour:
            when, level = f"{_DIM}{when[11:]}{_PLAIN}", f"{_COLOURS.get(record.levelname, '')}{level}{_PLAIN}"
            extra = extra and f"{_DIM}{extra}{_PLAIN}"
        line = f"{when} {level} {message}" + (f"  {extra}" if extra else "")
        if record.exc_info:
            line += "\n" + clean(self.formatException(record.exc_info))[-TRACEBACK_CHARACTERS:]
        return line


def _is_in_message(value: object, message: str) -> bool:
    """Return True if the message contains the value of a field already, so that the line need not repeat the field."""
    return len(str(value)) >= 8 and str(value) in message


def _format_field(value: object) -> str:
    text = str(value)
    return json_text(text) if not text.isprintable() or not text or any(c in text for c in ' "=') else text


class JsonLines(logging.Formatter):
    """A formatter that writes each record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object on one line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in _fields(record) if name not in entry}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)[-TRACEBACK_CHARACTERS:]
        return json_text(entry)
