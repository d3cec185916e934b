"""Lines of several processes are shown once, complete, and with the name of the process."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os

import pytest

from tests.waiting import eventually, next_turn
from workers.supervisor.merged_log import LONGEST_LINE, MergedLog


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(name: str, message: str) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "", 0, message, (), None)


async def test_line_that_arrives_in_pieces_is_shown_whole() -> None:
    shown = io.StringIO()
    log = MergedLog(shown)
    first, second = log.open_pipe(), log.open_pipe()
    os.write(first, b"one ")
    os.write(second, b"other\n")
    await eventually(lambda: "other" in shown.getvalue(), "the other's line")
    os.write(first, b"line\nand the last")
    await eventually(lambda: "line" in shown.getvalue(), "the first's line")
    os.close(first)
    await eventually(lambda: "last" in shown.getvalue(), "what had no end")
    assert shown.getvalue().splitlines() == [
        "worker 2    | other",
        "worker 1    | one line",
        "worker 1    | and the last",
    ]
    os.close(second)


async def test_unfinished_line_is_shown_at_the_end() -> None:
    shown = io.StringIO()
    log = MergedLog(shown)
    outlet = log.open_pipe()
    os.write(outlet, b"one\ntwo")
    log.read_all()
    assert shown.getvalue().splitlines() == ["worker 1    | one", "worker 1    | two"]
    os.close(outlet)
    await next_turn()


async def test_endless_line_is_shown_in_pieces() -> None:
    shown = io.StringIO()
    log = MergedLog(shown)
    outlet = log.open_pipe()
    for _ in range(3 * LONGEST_LINE // 4096):
        await asyncio.to_thread(os.write, outlet, b"x" * 4096)
    await eventually(lambda: shown.getvalue().count("x") >= LONGEST_LINE, "a piece of it")
    os.close(outlet)


def test_source_of_a_line_is_named_by_its_logger() -> None:
    shown = io.StringIO()
    log = MergedLog(shown)
    log.emit(record("coordinator.services.daemon", "here"))
    log.emit(record("workers.supervisor.supervisor", "there\nand on"))
    assert [line.split(" | ")[0].strip() for line in shown.getvalue().splitlines()] == ["coordinator", "dev", "dev"]


@pytest.mark.parametrize(("stream", "coloured"), [(Terminal(), True), (io.StringIO(), False)])
def test_colours_are_only_for_terminals(stream: io.StringIO, coloured: bool) -> None:
    MergedLog(stream).emit(record("workers.supervisor.supervisor", "hello"))
    assert ("\x1b" in stream.getvalue()) == coloured


def test_json_line_stays_a_json_line() -> None:
    shown = Terminal()
    log = MergedLog(shown, as_json=True)
    log.emit(record("workers.supervisor.supervisor", "hello"))
    assert json.loads(shown.getvalue())["message"] == "hello"
