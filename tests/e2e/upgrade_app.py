"""Handlers for the upgrade tests: each uses one feature, and writes to the journal what it does.

Processes of an old version import a copy of this module, so it uses only what both versions have, and nothing else of the tests.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import workers
from workers import AsyncRun, Budget, Deadline, NotDone, Registry, Retry, Run

runs = Registry()
FOLDER = Path(workers.__file__ or "").resolve().parents[1]  # of the packages that this process runs
VERSION = FOLDER.name.replace(" ", "_")
STEP = 0.05  # seconds of work


def journal(run: AsyncRun | Run, what: str, number: int = 0) -> None:
    """Append one event to the journal, in the format of tests/e2e/app.py."""
    append(os.environ["JOURNAL"], f"{time.monotonic():.6f} {os.getpid()} {run.id} {run.token} {what} {number}")


def append(path: str, line: str) -> None:
    """Append a line to a file with one write, so that the lines of several processes stay whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


async def begin(run: AsyncRun) -> None:
    """Write down which version executes the attempt, and save something.

    A run that makes progress in each attempt is never set aside, however often its worker is killed.
    """
    journal(run, f"begins_in_{VERSION}", run.attempt)
    run.state["attempt"] = run.attempt
    await run.flush()


async def work(seconds: float = STEP) -> None:
    await asyncio.sleep(seconds)  # the work of a handler: no test waits for it


# ---- checkpoints, phases, effects --------------------------------------------------------------------------------------


@runs.handler(throttle=0, keep_messages=True)
async def steps(run: AsyncRun, total: int) -> int:
    """Do steps, each when the server has acknowledged the message of the step before."""
    await begin(run)
    async for turn in run.loop(limit=total):
        await run.flush()
        journal(run, "step", turn)
        await work()
        run.messages.append({"turn": turn})
    return len(run.messages)


@runs.handler(throttle=0)
def phases(run: Run, count: int) -> list[int]:
    """Return the outputs of phases, in a thread."""
    journal(run, f"begins_in_{VERSION}", run.attempt)

    def square(number: int) -> int:
        journal(run, "phase", number)
        time.sleep(STEP)  # the work of a handler: no test waits for it
        return number * number

    return [run.phase(f"square {number}", square, number) for number in range(count)]


def ledger() -> str:
    """Return the path of the ledger, which stands for another system: each charge is a line."""
    return f"{os.environ['JOURNAL']}.ledger"


@runs.handler(throttle=0)
async def charger(run: AsyncRun, count: int) -> list[str]:
    """Write lines to the ledger, each once. After a kill, look whether the line is there."""
    await begin(run)

    def charge(line: str) -> str:
        append(ledger(), line)
        return f"receipt of {line}"

    def find(line: str) -> str | type[NotDone]:
        path = Path(ledger())
        there = path.exists() and line in path.read_text().splitlines()
        return f"receipt of {line}" if there else NotDone

    return [await run.once(f"charge {number}", charge, f"{run.id}/{number}", check=find) for number in range(count)]


# ---- waits and children ------------------------------------------------------------------------------------------------


@runs.handler(linger=0.1, throttle=0)
async def listener(run: AsyncRun, count: int) -> list[Any]:
    """Return the payloads of signals of two topics, in the order in which they were sent."""
    await begin(run)
    return [(await run.receive("word", "other")).payload for _ in range(count)]


@runs.handler(linger=0, throttle=0)
def plain_listener(run: Run, count: int) -> list[Any]:
    """Receive one signal in each turn, in a thread."""
    journal(run, f"begins_in_{VERSION}", run.attempt)
    for _ in run.loop(limit=count):
        run.state.setdefault("heard", []).append(run.receive("word", "other").payload)
    return list(run.state["heard"])


@runs.handler(linger=0, throttle=0)
async def sleeper(run: AsyncRun, count: int) -> int:
    """Sleep several times. A coordinator wakes the run."""
    await begin(run)
    async for turn in run.loop(limit=count):
        await run.sleep(0.3)
        journal(run, "slept", turn)
    return count


@runs.handler(throttle=0)
async def child(run: AsyncRun, number: int) -> int:
    journal(run, "child", number)
    await work(STEP / 5)
    return number


@runs.handler(linger=0.1, throttle=0)
async def parent(run: AsyncRun, count: int) -> int:
    """Add up the results of children: half of them gathered, half of them in the order in which they end."""
    await begin(run)
    total: int = sum(await run.gather("half", [child.inputs(number) for number in range(count)], at_once=3))
    async for done in run.as_completed("other half", [child.inputs(number) for number in range(count)]):
        total += done.result
    return total


@runs.handler
async def leaf(run: AsyncRun) -> str:
    journal(run, "leaf")
    return "leaf"


@runs.handler(throttle=0)
async def spawner(run: AsyncRun) -> str:
    """Enqueue an independent run, and return its id."""
    await begin(run)
    handle = await run.enqueue("leaf")
    await work()
    return handle.id


# ---- output, budgets, groups, limits -----------------------------------------------------------------------------------


@runs.handler(throttle=0)
async def teller(run: AsyncRun, count: int) -> list[str]:
    """Emit three words in each turn. Each word names its attempt, so the words of two attempts differ."""
    await begin(run)
    async for turn in run.loop(limit=count):
        said = [f"{run.token}/{turn}.{number}" for number in range(3)]
        for word in said:
            run.emit(word)
            await work(STEP / 3)
        run.state.setdefault("text", []).extend(said)
    return list(run.state["text"])


@runs.handler(linger=0.0, throttle=0, budget=Budget(requests=2, then="wait"))
async def asker(run: AsyncRun, count: int) -> int:
    """Ask one question after the other. Each of them costs one request, and the budget needs a grant."""
    await begin(run)

    def ask(number: int) -> None:
        journal(run, "asked", number)
        run.spend(requests=1)

    for number in range(count):
        await run.phase(f"ask {number}", ask, number)
    return count


@runs.handler(at_once=2, group_by="customer")
async def grouped(run: AsyncRun, customer: str) -> str:
    """Work for a customer, for whom at most two runs work at the same time."""
    await begin(run)
    journal(run, "enter")  # no stop comes between here and the end, because there is no cut
    await work(2 * STEP)
    journal(run, "leave")
    return customer


@runs.handler
async def caller(run: AsyncRun, count: int) -> int:
    """Make external calls under the rate and the places of a limit."""
    await begin(run)
    async for turn in run.loop(limit=count):
        async with run.limit("api", cost=2) as limit:
            journal(run, "dials", turn)
            await work(STEP / 2)
            limit.cost = 1
            journal(run, "hangs_up", turn)
    return count


# ---- endings -----------------------------------------------------------------------------------------------------------


@runs.handler(retry=Retry(limit=5, wait=0.1))
async def flaky(run: AsyncRun) -> str:
    """Fail once, and be retried."""
    await begin(run)
    if not run.state.get("failed"):
        run.state["failed"] = True
        await run.flush()
        raise OSError("the first attempt fails")
    return "well"


@runs.handler
async def failing(run: AsyncRun) -> None:
    await begin(run)
    raise ValueError("as it should")


@runs.handler(deadline=Deadline(hard=0.5))
async def late(run: AsyncRun) -> None:
    """Exceed the deadline."""
    await begin(run)
    while True:
        await work()
        run.checkpoint()


@runs.handler
async def endless(run: AsyncRun) -> None:
    """Work until the run is cancelled."""
    await begin(run)
    while True:
        await work()
        run.checkpoint()


@runs.handler(linger=0)
async def held(run: AsyncRun) -> None:
    """Wait for a signal that is never sent, until the run is cancelled."""
    await begin(run)
    await run.receive("never")


@runs.handler
async def poison(run: AsyncRun) -> None:
    """Kill the process."""
    journal(run, f"begins_in_{VERSION}", run.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@runs.handler
async def tick(run: AsyncRun) -> None:
    """Be enqueued by a schedule."""
    journal(run, "tick")
