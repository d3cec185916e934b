"""A worker process whose handler has closed a pipe to the supervisor writes nothing to other files, and drains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from workers.program.child import SupervisorPipes
from workers.program.safe_stdout import SafeOutput


class Pipes:
    """The two pipes of a worker process, and a pipe of a handler."""

    def __init__(self) -> None:
        self.lifeline, self.commands = os.pipe()
        self.heard, self.reports = os.pipe()
        self.own, self.other = os.pipe()
        self.supervisor = SupervisorPipes(self.lifeline, self.reports, b"")

    def replace(self, number: int) -> None:
        """Give the number of a pipe to the handler's own pipe, as it happens after the handler has closed it."""
        os.dup2(self.other, number)

    def close(self) -> None:
        for number in (self.lifeline, self.commands, self.heard, self.reports, self.own, self.other):
            os.close(number)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


@contextlib.contextmanager
def closed(number: int) -> Iterator[None]:
    """Close a file for a while. Afterwards the number belongs to the test again, so that no other file gets it."""
    os.close(number)
    try:
        yield
    finally:
        nothing = os.open(os.devnull, os.O_RDWR)
        if nothing != number:
            os.dup2(nothing, number)
            os.close(nothing)


def test_report_is_not_written_to_a_file_that_got_the_number_of_the_pipe(pipes: Pipes) -> None:
    pipes.replace(pipes.reports)
    pipes.supervisor.report("left")
    pipes.supervisor.report_if_read("moves 1.000")
    os.set_blocking(pipes.own, False)
    with pytest.raises(BlockingIOError):
        os.read(pipes.own, 100)


def test_report_does_nothing_if_the_pipe_is_closed(pipes: Pipes) -> None:
    with closed(pipes.reports):
        pipes.supervisor.report("left")
        pipes.supervisor.report_if_read("moves 1.000")


@pytest.mark.parametrize("pipe", ["lifeline", "reports"])
async def test_worker_drains_when_one_of_its_pipes_is_closed(pipes: Pipes, pipe: str) -> None:
    drained: list[bool] = []
    checks = iter([False, False, True])

    async def asleep(seconds: float) -> None:
        if next(checks):
            pipes.replace(getattr(pipes, pipe))

    worker: Any = SimpleNamespace(clock=SimpleNamespace(asleep=asleep), drain=lambda: drained.append(True))
    await pipes.supervisor.drain_when_closed(worker)
    assert drained == [True]
    assert list(checks) == [], "the worker serves while its pipes are open"


def test_output_whose_file_was_closed_is_discarded(pipes: Pipes) -> None:
    output = SafeOutput(pipes.reports)
    os.close(pipes.reports)
    assert output.write(b"line\n") == 5
    assert os.fstat(pipes.reports).st_rdev == os.stat(os.devnull).st_rdev
    assert output.write(b"line\n") == 5


def test_output_is_not_written_to_another_file_that_got_its_number(pipes: Pipes) -> None:
    output = SafeOutput(pipes.reports)
    reader, writer = os.pipe()
    os.dup2(writer, pipes.reports)
    os.set_blocking(reader, False)
    assert output.write(b"line\n") == 5
    with pytest.raises(BlockingIOError):
        os.read(reader, 10)
    os.close(reader)
    os.close(writer)
