"""Handlers for the end-to-end tests. Each handler writes to a journal file before it acts, one line per event."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.waiting import block_for, eventually, work_for
from workers import AsyncRun, Registry, Run

runs = Registry()


def journal(run: AsyncRun | Run, what: str, number: int = 0) -> None:
    """Append one event to the journal.

    A single write keeps lines whole when several processes write at the same time.
    """
    line = f"{time.monotonic():.6f} {os.getpid()} {run.id} {run.token} {what} {number}\n"
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@runs.handler(throttle=0)
async def steps(run: AsyncRun, total: int, seconds: float = 0.0, gate: str = "") -> int:
    """Do steps that each append a message and a journal line. Stop early when the test opens the gate of the steps."""
    journal(run, "start", run.iteration)
    async for turn in run.loop(limit=total):
        journal(run, "step", turn)
        run.messages.append({"turn": turn})
        await work_for(seconds)
        if gate and Path(f"{os.environ['JOURNAL']}.{gate}").exists():  # noqa: ASYNC240  # The test signals through a file.
            break
    journal(run, "end", len(run.messages))
    return len(run.messages)


@runs.handler
async def saved(run: AsyncRun, total: int, seconds: float = 0.0) -> list[int]:
    """Do steps, and write to the journal when the server has acknowledged each of them."""
    journal(run, "start", len(run.state.get("done", [])))
    for number in range(len(run.state.get("done", [])), total):
        await work_for(seconds)
        run.state.setdefault("done", []).append(number)
        await run.flush()
        journal(run, "saved", number)
    journal(run, "end", total)
    return list(run.state["done"])


async def opened(run: AsyncRun, *gates: object) -> None:
    """Return when the test has opened one of the gates."""
    paths = [Path(f"{os.environ['JOURNAL']}.{gate}") for gate in gates]

    def is_open() -> bool:
        if run.stopping:
            raise run.stopping
        return any(path.exists() for path in paths)

    await eventually(is_open, "the test to open a gate", timeout=3600, pause=0.02)


@runs.handler
async def owner(run: AsyncRun) -> str:
    """Wait until the test opens the gate of this process, or the gate of all.

    Return the process id. The handler never saves.
    """
    journal(run, "start")
    await opened(run, os.getpid(), "all")
    journal(run, "returns")
    return run.token


@runs.handler(throttle=0)
async def marks(run: AsyncRun) -> str:
    """Offer a mark to be saved when the test opens the gate of this process. Return when it opens the gate of all."""
    journal(run, "start")
    await opened(run, os.getpid())
    run.state["by"] = run.token
    run.checkpoint()
    journal(run, "offered")
    await opened(run, "all")
    return run.token


@runs.handler
async def sleeper(run: AsyncRun, seconds: float = 3600.0) -> str:
    """Sleep without a cut. Only a cancellation ends it."""
    journal(run, "start")
    await work_for(seconds)
    journal(run, "end")
    return "slept"


@runs.handler
async def holder(run: AsyncRun) -> None:
    """Make progress in every attempt, and never end."""
    run.state["attempts"] = run.attempt
    await run.flush()
    journal(run, "start")
    await work_for(3600)


@runs.handler
async def slow_first(run: AsyncRun, seconds: float) -> str:
    """Wait long before the first checkpoint."""
    journal(run, "start")
    await work_for(seconds)
    run.state["there"] = True
    await run.flush()
    journal(run, "end")
    return "there"


@runs.handler
async def poison(run: AsyncRun) -> None:
    """Kill the process that runs this handler."""
    journal(run, "start")
    os.kill(os.getpid(), signal.SIGKILL)


@runs.handler(throttle=0)
def plain_steps(run: Run, total: int, seconds: float = 0.0) -> int:
    journal(run, "start", run.iteration)
    for turn in run.loop(limit=total):
        journal(run, "step", turn)
        run.messages.append({"turn": turn})
        block_for(seconds)
    journal(run, "end", len(run.messages))
    return len(run.messages)


@runs.handler
async def add(run: AsyncRun, left: int, right: int) -> int:
    return left + right
