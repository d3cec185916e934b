"""Log lines of the commands: for people and for machines."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from coordinator import logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []  # otherwise basicConfig closes the handlers of pytest
    yield
    root.handlers, root.level = handlers, level


def log_output(*, as_json: bool, level: int = logging.INFO) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(as_json=as_json, level=level, stream=stream)
    return stream


def test_log_line_has_time_level_message_and_known_fields() -> None:
    stream = log_output(as_json=False)
    token = logs.about.set({"run": "r-1", "kind": "research", "attempt": 2})
    logging.getLogger("users.own").warning("slow %s", "tides", extra={"wait": "a b"})
    logs.about.reset(token)
    pattern = r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING slow tides  run=r-1 kind=research attempt=2 wait="a b"\n'
    assert re.fullmatch(pattern, stream.getvalue())


def test_id_in_the_message_is_not_repeated() -> None:
    stream = log_output(as_json=False)
    logging.getLogger("x").info("worker w-12345678 is gone in 1 s", extra={"worker": "w-12345678", "attempt": 1})
    assert stream.getvalue().endswith("worker w-12345678 is gone in 1 s  attempt=1\n")


def test_traceback_follows_its_line() -> None:
    stream = log_output(as_json=False)
    try:
        raise ValueError("no tides")
    except ValueError:
        logging.getLogger("x").exception("it broke")
    first, *_, last = stream.getvalue().splitlines()
    assert first.endswith("ERROR   it broke")
    assert last == "ValueError: no tides"


def test_json_format_prints_one_object_per_line() -> None:
    stream = log_output(as_json=True)
    token = logs.about.set({"run": "r-1", "message": "not this"})
    logging.getLogger("x").info("two\nlines", extra={"worker": object()})
    logs.about.reset(token)
    entry = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert (entry["message"], entry["run"], entry["level"], entry["logger"]) == ("two\nlines", "r-1", "INFO", "x")


def test_messages_below_the_level_are_not_printed() -> None:
    stream = log_output(as_json=False, level=logging.WARNING)
    logging.getLogger("x").info("hush")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("formatter", [logs.Lines(), logs.JsonLines()], ids=["lines", "json"])
def test_control_characters_do_not_reach_the_log(formatter):
    worst = "a\x1b[2Jb\x9bc\u202ed\re"
    record = logging.makeLogRecord({"msg": "said %s", "args": (worst,), "levelname": "INFO", "field": worst})
    try:
        raise ValueError(worst)
    except ValueError:
        record.exc_info = sys.exc_info()
    text = formatter.format(record)
    assert not [c for c in text if not c.isprintable() and c not in "\n\t"]
