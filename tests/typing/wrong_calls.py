# pyright: strict
"""Wrong calls. mypy and pyright must report an error on each line marked `# error`, and on no other. The code is never run."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from coordinator import Client
from coordinator.model.enqueue import Inputs
from workers import AsyncRun, Deadline, Registry, Retry, RetryLater, Run


class Model: ...


class Other: ...


@asynccontextmanager
async def open_model() -> AsyncGenerator[Model, None]:
    yield Model()


runs = Registry(lifespan=open_model)
bare = Registry()


@runs.handler
async def research(run: AsyncRun[Model], topic: str, depth: int = 3) -> str:
    return topic


@runs.handler(schema=2)
def report(run: Run, topic: str) -> int:
    return len(topic)


# inputs
research.inputs()  # error
research.inputs(3)  # error
research.inputs("tides", "deep")  # error
research.inputs("tides", 3, 4)  # error
research.inputs("tides", colour="blue")  # error
result: Inputs[int] = research.inputs("tides")  # error
report.inputs(topic=b"tides")  # error


# a call is the function's
async def called_directly(run: AsyncRun[Model], plain: Run[Model]) -> None:
    await research(run)  # error
    await research(plain, "tides")  # error
    text: int = await research(run, "tides")  # error
    await report(plain, "tides")  # error
    report(run, "tides")  # error
    print(text)


# handlers
async def of_other(run: AsyncRun[Other]) -> None: ...
def plain_of_other(run: Run[Other]) -> None: ...
async def async_with_run(run: Run[Model]) -> None: ...
def plain_with_async_run(run: AsyncRun[Model]) -> None: ...
async def of_model(run: AsyncRun[Model]) -> None: ...
def no_run() -> None: ...
def gives_a_lock(run: Run) -> threading.Lock:
    return threading.Lock()


runs.handler(of_other)  # error
runs.handler(schema=2)(of_other)  # error
runs.handler(plain_of_other)  # error
runs.handler(async_with_run)  # error
runs.handler(plain_with_async_run)  # error
runs.handler(kind="x")(plain_with_async_run)  # error
bare.handler(of_model)  # error
runs.handler(gives_a_lock)  # error
runs.handler(no_run)  # error

# options
runs.handler(colour="blue")  # error
runs.handler(schema="2")  # error
runs.handler(retry=4)  # error
runs.handler(on_lost_lease="panic")  # error
Registry(lifespan=Model)  # error
Deadline(soft="600")  # error
Retry(limit="4")  # error
Retry(on=ValueError)  # error
RetryLater()  # error

# schedules
Client().schedule("nightly", "0 2 * * *")  # error
Client().schedule("nightly", "0 2 * * *", research.inputs("tides"), colour="blue")  # error
Client().schedule("nightly", None, research.inputs("tides"))  # error
