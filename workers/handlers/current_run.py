"""The current run: the run whose handler executes in this task or thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from coordinator.errors import Refused
from workers.handlers.base_run import BaseRun

_current: ContextVar[BaseRun[Any] | None] = ContextVar("workers.handlers.current_run", default=None)


def current_run() -> BaseRun[Any]:
    """Return the run whose handler makes this call.

    Functions that the handler calls get the run in this way without a parameter, for example the tools of an agent.

    Returns:
        An `AsyncRun` in an async handler, a `Run` in a plain one.

    Raises:
        Refused: If no handler is executing, or the call is made in a thread that the handler started itself.
    """
    run = _current.get()
    if run is None:
        raise Refused("there is no current run: current_run works only while a handler executes")
    return run


def find_current_run() -> BaseRun[Any] | None:
    """Return the run whose handler makes this call, or None outside of a handler."""
    return _current.get()


def enter_run(run: BaseRun[Any]) -> None:
    """Make a run the current one in this task or thread, and in the tasks that it starts from now on."""
    _current.set(run)


def leave_run() -> None:
    """Forget the current run in this task or thread.

    Otherwise the context of a finished task would refer to the run, and the run to the task, until the garbage collector runs.
    """
    _current.set(None)


@contextlib.contextmanager
def entered_run(run: BaseRun[Any]) -> Iterator[None]:
    """Make a run the current one while the context is open."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)
