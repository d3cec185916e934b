"""Log lines of errors have a traceback of limited length, as text and as JSON."""

from __future__ import annotations

import json
import logging

import pytest

from coordinator.logs import TRACEBACK_CHARACTERS, JsonLines, Lines


def record_of(error: Exception) -> logging.LogRecord:
    try:
        raise error
    except ValueError as raised:
        info = (type(raised), raised, raised.__traceback__)
        return logging.LogRecord("workers", logging.ERROR, __file__, 1, "run 7 failed", (), info)


@pytest.mark.parametrize("formatter", [Lines(), JsonLines()], ids=["text", "json"])
def test_error_is_logged_with_its_traceback(formatter: logging.Formatter) -> None:
    line = formatter.format(record_of(ValueError("broken")))
    assert "in record_of" in line
    assert "ValueError: broken" in line


def test_json_line_has_the_traceback_in_a_field_of_its_own() -> None:
    entry = json.loads(JsonLines().format(record_of(ValueError("broken"))))
    assert entry["message"] == "run 7 failed"
    assert entry["traceback"].endswith("ValueError: broken")


@pytest.mark.parametrize("formatter", [Lines(), JsonLines()], ids=["text", "json"])
def test_traceback_of_an_error_with_a_long_message_is_cut(formatter: logging.Formatter) -> None:
    line = formatter.format(record_of(ValueError("x" * 1_000_000)))
    assert len(line) < TRACEBACK_CHARACTERS + 1000
