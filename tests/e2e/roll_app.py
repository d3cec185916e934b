"""Handlers of a fleet that is rolled to other code: what is deployed is a module that a test writes, and calls `registry`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry

PAUSE = 0.1
_journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "JOURNAL" in os.environ else -1


def said(run: AsyncRun[None], what: str, number: int) -> None:
    """One event in one write, as `app.journal`; with one open file, since these are many."""
    os.write(_journal, f"{time.monotonic():.6f} {os.getpid()} {run.id} {run.token} {what} {number}\n".encode())


def is_open(gate: str) -> bool:
    return Path(f"{os.environ['JOURNAL']}.{gate}").exists()


@contextlib.asynccontextmanager
async def gated() -> AsyncIterator[None]:
    """Opens when a test lets it."""
    await eventually(lambda: is_open("lifespan"), "the test to open the gate", timeout=3600, pause=0.02)
    yield


def registry(schema: int = 1, *, waits: bool = False, misfit: bool = False) -> Registry[None]:
    """A version of the code: the schema of its state, whether its lifespan waits for a gate, whether its inputs have changed."""
    runs = Registry(lifespan=gated) if waits else Registry()
    if misfit:

        @runs.handler(schema=schema)
        async def walks(run: AsyncRun[None], something_else: int) -> int:
            return something_else

        return runs

    @runs.handler(kind="walks", schema=schema, throttle=0)
    async def steps(run: AsyncRun[None]) -> int:
        """A step each 100 ms until the test has seen enough. Says when it was done, and when the server had it."""
        said(run, "start", schema)
        while not is_open("enough"):
            number = run.state.get("done", 0)
            await work_for(PAUSE)
            said(run, "step", number)
            run.state["done"] = number + 1
            await run.flush()
            said(run, "saved", number)
        return int(run.state["done"])

    for older in range(1, schema):
        steps.migration(older)(lambda left: None)  # the state has kept its form
    return runs
