"""Handlers of a fleet that is rolled to other code.

A test writes the deployed module, and that module calls `registry`.
"""

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


def write_event(run: AsyncRun[None], what: str, number: int) -> None:
    """Write one event in one write, as `app.journal` does, but through one open file because there are many events."""
    os.write(_journal, f"{time.monotonic():.6f} {os.getpid()} {run.id} {run.token} {what} {number}\n".encode())


def is_open(gate: str) -> bool:
    return Path(f"{os.environ['JOURNAL']}.{gate}").exists()


@contextlib.asynccontextmanager
async def gated() -> AsyncIterator[None]:
    """Wait until a test opens the gate."""
    await eventually(lambda: is_open("lifespan"), "the test to open the gate", timeout=3600, pause=0.02)
    yield


def registry(schema: int = 1, *, waits: bool = False, misfit: bool = False) -> Registry[None]:
    """Return one version of the code: its schema, whether its lifespan waits for a gate, and whether its inputs have changed."""
    runs = Registry(lifespan=gated) if waits else Registry()
    if misfit:

        @runs.handler(schema=schema)
        async def walks(run: AsyncRun[None], something_else: int) -> int:
            return something_else

        return runs

    @runs.handler(kind="walks", schema=schema, throttle=0)
    async def steps(run: AsyncRun[None]) -> int:
        """Do a step every 100 ms until the gate is open.

        Write to the journal when a step is done and when the server has saved it.
        """
        write_event(run, "start", schema)
        while not is_open("enough"):
            number = run.state.get("done", 0)
            await work_for(PAUSE)
            write_event(run, "step", number)
            run.state["done"] = number + 1
            await run.flush()
            write_event(run, "saved", number)
        return int(run.state["done"])

    for older in range(1, schema):
        steps.migration(older)(lambda left: None)  # The form of the state is the same in both schemas.
    return runs
