"""Handlers and lifespans that make it hard for a fleet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Registry, Run

runs, blocking = Registry(), Registry()


@runs.handler
async def exits(run: AsyncRun, code: int) -> None:
    """Ends its process as no signal would."""
    journal(run, "start", run.attempt)
    os._exit(code)


@runs.handler
async def forks(run: AsyncRun) -> str:
    """Leaves processes behind that have everything open that it had, and dies."""
    journal(run, "start", run.attempt)
    if run.attempt > 1:
        return "went on"
    if not (heir := os.fork()):
        time.sleep(300)  # noqa: ASYNC251  # The forked process only has to stay alive.
        os._exit(0)
    journal(run, "heir", heir)
    journal(run, "heir", subprocess.Popen(["sleep", "300"]).pid)  # noqa: ASYNC220  # it does not wait
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@runs.handler
def reads_stdin(run: Run) -> str:
    """What a tool that asks for input gets."""
    return subprocess.run(["cat"], stdout=subprocess.PIPE, text=True, check=True, timeout=30).stdout


@blocking.handler
async def blocks(run: AsyncRun) -> None:
    """Holds up its event loop."""
    journal(run, "start")
    time.sleep(600)  # noqa: ASYNC251  # The handler blocks its event loop on purpose.


@runs.handler(grace=3600.0)
async def patient(run: AsyncRun) -> None:
    """Would be waited for for an hour."""
    journal(run, "start")
    await asyncio.Event().wait()


@runs.handler(grace=3600.0)
async def ticks(run: AsyncRun) -> str:
    """Comes to no cut, says again and again that it goes on, and returns when the test lets it."""
    gate = Path(f"{os.environ['JOURNAL']}.enough")
    while not gate.exists():  # noqa: ASYNC240  # a test's mark
        journal(run, "tick")
        await work_for(0.02)
    return "in peace"


@contextlib.asynccontextmanager
async def refusing() -> AsyncIterator[None]:
    if os.environ["JOURNAL"]:
        raise OSError("no model here")
    yield


@contextlib.asynccontextmanager
async def endless() -> AsyncIterator[None]:
    with open(os.environ["JOURNAL"] + ".endless", "a") as mark:  # noqa: ASYNC230  # a test's mark
        mark.write("opening\n")
    await asyncio.Event().wait()
    yield


@contextlib.asynccontextmanager
async def untidy() -> AsyncIterator[None]:
    yield
    raise OSError("the model does not close")


@contextlib.asynccontextmanager
async def doomed() -> AsyncIterator[None]:
    """Ready, and soon after gone, without any run's doing."""
    threading.Timer(0.3, os._exit, (7,)).start()
    yield


raising, hanging, closing_badly, dying = (Registry(lifespan=way) for way in (refusing, endless, untidy, doomed))


for _registry in (raising, hanging, dying):

    @_registry.handler
    async def never(run: AsyncRun[None]) -> None:
        journal(run, "start")


@closing_badly.handler(grace=0.0)
def deaf(run: Run[None]) -> None:
    """A plain function that comes to no cut."""
    journal(run, "start")
    time.sleep(600)  # The handler ignores every request to stop.
