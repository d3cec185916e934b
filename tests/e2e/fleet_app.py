"""Handlers and lifespans that are hard for a fleet to supervise."""

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
    """End the process with an exit code, without any signal."""
    journal(run, "start", run.attempt)
    os._exit(code)


@runs.handler
async def forks(run: AsyncRun) -> str:
    """Leave forked processes behind that inherit every open file, and die."""
    journal(run, "start", run.attempt)
    if run.attempt > 1:
        return "went on"
    if not (heir := os.fork()):
        time.sleep(300)  # noqa: ASYNC251  # The forked process only has to stay alive.
        os._exit(0)
    journal(run, "heir", heir)
    journal(run, "heir", subprocess.Popen(["sleep", "300"]).pid)  # noqa: ASYNC220  # The handler does not wait for the process.
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@runs.handler
def reads_stdin(run: Run) -> str:
    """Return what a tool reads from standard input."""
    return subprocess.run(["cat"], stdout=subprocess.PIPE, text=True, check=True, timeout=30).stdout


@blocking.handler
async def blocks(run: AsyncRun) -> None:
    """Block the event loop."""
    journal(run, "start")
    time.sleep(600)  # noqa: ASYNC251  # The handler blocks its event loop on purpose.


@runs.handler(grace=3600.0)
async def patient(run: AsyncRun) -> None:
    """Wait, with a grace period of an hour."""
    journal(run, "start")
    await asyncio.Event().wait()


@runs.handler(grace=3600.0)
async def ticks(run: AsyncRun) -> str:
    """Write a tick to the journal again and again, without a cut. Return when the test opens the gate."""
    gate = Path(f"{os.environ['JOURNAL']}.enough")
    while not gate.exists():  # noqa: ASYNC240  # The test signals through a file.
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
    with open(os.environ["JOURNAL"] + ".endless", "a") as mark:  # noqa: ASYNC230  # The test signals through a file.
        mark.write("opening\n")
    await asyncio.Event().wait()
    yield


@contextlib.asynccontextmanager
async def untidy() -> AsyncIterator[None]:
    yield
    raise OSError("the model does not close")


@contextlib.asynccontextmanager
async def doomed() -> AsyncIterator[None]:
    """Become ready and die soon afterwards, without any run being the cause."""
    threading.Timer(0.3, os._exit, (7,)).start()
    yield


raising, hanging, closing_badly, dying = (Registry(lifespan=way) for way in (refusing, endless, untidy, doomed))


for _registry in (raising, hanging, dying):

    @_registry.handler
    async def never(run: AsyncRun[None]) -> None:
        journal(run, "start")


@closing_badly.handler(grace=0.0)
def deaf(run: Run[None]) -> None:
    """Run as a plain function without a cut."""
    journal(run, "start")
    time.sleep(600)  # The handler ignores every request to stop.
