"""How the two commands write their logs. The library itself never sets up logging.

One line per record: time, level, message, then what is known about it as key=value; or one JSON object per line.
`about` is what a worker knows of the run in whose context something is logged; every record gets it, whoever logs.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TextIO

about: ContextVar[Mapping[str, object]] = ContextVar("about", default=MappingProxyType({}))

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "about", "taskName"}
TRACEBACK_CHARACTERS = 20_000  # from its end: the message of an error may have any length
_COLOURS = {"DEBUG": "\x1b[2m", "INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def configure(
    *, as_json: bool = False, level: int = logging.INFO, stream: TextIO | None = None, colour: bool | None = None
) -> None:
    """Sets up the root logger: lines on stderr, with colours on a terminal unless it is said."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json else Lines(colour=stream.isatty() if colour is None else colour))
    install(handler, level)


def install(handler: logging.Handler, level: int) -> None:
    """Makes a handler the only one, for all that is logged from this level on."""
    handler.addFilter(_remember)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _remember(record: logging.LogRecord) -> bool:
    """Keeps what the context knows while the record is still in it."""
    record.about = about.get()
    return True


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """What is known about a record: its context first, then its own extra fields, which win."""
    own = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    yield from {**getattr(record, "about", {}), **own}.items()


class Lines(logging.Formatter):
    """For people."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(" ", "milliseconds")[:23]
        message = record.getMessage()
        extra = " ".join(f"{name}={_shown(value)}" for name, value in _fields(record) if not _said(value, message))
        level = f"{record.levelname:<7}"
        if self.colour:
            when, level = f"{_DIM}{when[11:]}{_PLAIN}", f"{_COLOURS.get(record.levelname, '')}{level}{_PLAIN}"
            extra = extra and f"{_DIM}{extra}{_PLAIN}"
        line = f"{when} {level} {message}" + (f"  {extra}" if extra else "")
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)[-TRACEBACK_CHARACTERS:]
        return line


def _said(value: object, message: str) -> bool:
    """An id that the message names need not stand beside it again."""
    return len(str(value)) >= 8 and str(value) in message


def _shown(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=\n') else text


class JsonLines(logging.Formatter):
    """For machines: one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in _fields(record) if name not in entry}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)[-TRACEBACK_CHARACTERS:]
        return json.dumps(entry, default=str, ensure_ascii=False)
