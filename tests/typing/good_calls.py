# pyright: strict
"""Code as a user writes it, checked by mypy and pyright in their strictest mode. The code is never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TypedDict, assert_type

from coordinator.model.enqueue import Inputs
from workers import AsyncRun, Deadline, Extend, Handler, Kill, Leave, Registry, Retry, RetryLater, Run, Watched


class Model:
    async def ask(self, topic: str) -> str:
        return topic


class Outline(TypedDict):
    title: str
    parts: list[str]


@asynccontextmanager
async def open_model() -> AsyncGenerator[Model, None]:
    yield Model()


runs = Registry(lifespan=open_model)
assert_type(runs, Registry[Model])


async def think(run: Watched) -> Extend | Kill:
    return Extend(60) if run.idle < 30 and run.messages else Kill("it stands still")


def look_away(run: Watched) -> Leave:
    return Leave()


Deadline(soft=60, escalator=think)
Deadline(soft=60, progress=30.0, escalator=look_away)


@runs.handler
async def research(run: AsyncRun[Model], topic: str, *, depth: int = 3) -> str:
    if depth > 5:
        raise RetryLater(after=30)
    return await run.resources.ask(topic)


@runs.handler(retry=Retry(limit=4, wait=2.5, on=(OSError,)), deadline=Deadline(soft=600, hard=900), schema=2)
def report(run: Run, topic: str) -> Outline:  # a bare Run: it does not care for the resources
    assert_type(run.resources, object)
    return {"title": topic, "parts": []}


@report.migration(1)
def from_first(inputs: Mapping[str, object]) -> Mapping[str, object]:
    return inputs


@runs.handler(kind="tidy-up", grace=5, throttle=0, on_lost_lease="stop")
async def tidy(run: AsyncRun[object], /, **rest: str) -> None:
    print(rest)


bare = Registry()
assert_type(bare, Registry[None])


@bare.handler
def count(run: Run[None], numbers: list[int]) -> int:
    return sum(numbers)


assert_type(research.inputs("tides"), Inputs[str])
assert_type(research.inputs(topic="tides", depth=1), Inputs[str])
assert_type(report.inputs("tides"), Inputs[Outline])
assert_type(tidy.inputs(any="thing"), Inputs[None])
assert_type(count.inputs([1, 2]), Inputs[int])


async def called_directly(run: AsyncRun[Model], plain: Run[None]) -> None:
    assert_type(await research(run, "tides", depth=1), str)
    assert_type(await tidy(run, any="thing"), None)
    assert_type(count(plain, [1]), int)


def looked_at(handler: Handler[..., str]) -> tuple[int, ...]:
    return handler.schemas()


looked_at(research)
for kind, one in Registry.merged(runs, bare).handlers.items():
    print(kind, one.is_async, one.fits({"topic": "tides"}))
