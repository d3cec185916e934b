"""Measure what a step of a long pydantic-ai agent costs near its beginning and near its end, on an embedded server of its own.

A step is a model request and a tool call, so it is two phases outside of `run.loop`. The model and the tool do nothing. Three
agents take the same steps in the same worker, one after the other, in each round:

- without a capability for durability,
- with an engine that stores nothing: the cost of the framework's own part of durability,
- with `RunDurability`. What it costs beyond the second agent is ours.

The framework handles the whole history in each step, so a step of every agent gets slower with the length of the history. A
difference of two large figures says little. So by default the agents keep only the last messages, as a real agent of 2,000 steps
does.

On a busy machine, a difference of two CPU times is mostly noise. So a last run with `RunDurability` is profiled in the same windows
of steps: how many calls of our functions a step makes, which is the same on every machine, and which share of the profiled CPU time
our functions, redis-py and asyncio have, with the built-in functions that they call. This share of `cpu_ms` is `cpu_ms_profiled`.
The event loop would take a part of it without us too.

    scripts/bench agents [--steps N] [--rounds N] [--history N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from pydantic_ai import Agent, RunContext
from pydantic_ai import messages as parts
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec import (
    BaseDurabilityCapability,
    DurableOperationBackend,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from coordinator import AsyncClient
from coordinator.config import Settings
from coordinator.store.transport.connections.embedded_server import attach
from workers import AsyncRun, Registry
from workers.integrations.pydantic_ai import RunDurability
from workers.process.options import WorkerOptions
from workers.process.worker import Worker

runs = Registry()
ROOT = Path(__file__).resolve().parents[2]
OURS = (str(ROOT / "workers"), str(ROOT / "coordinator"))
BELOW = ("/redis/", "/asyncio/", "/selectors.py")  # what our functions use to send and to wait
WINDOW = 100  # steps over which a figure is taken
KINDS = ("without", "framework", "ours")


class Meter:
    """Record the CPU time of the process and the bytes that the server has received, at the start of each step."""

    def __init__(self) -> None:
        self.admin: redis.Redis | None = None
        self.steps, self.kept, self.cpu, self.received = 0, 0, list[float](), list[int]()
        self.profiles: dict[int, cProfile.Profile] = {}  # by the first step of their window

    def reset(self, steps: int, kept: int) -> None:
        self.steps, self.kept, self.cpu, self.received = steps, kept, [], []

    def take(self) -> None:
        self.cpu.append(time.process_time())
        if self.admin is not None and len(self.cpu) % WINDOW == 1:
            self.received.append(int(self.admin.info("stats")["total_net_input_bytes"]))
        step = len(self.cpu) - 1
        if step - WINDOW in self.profiles:
            self.profiles[step - WINDOW].disable()
        if step in self.profiles:
            self.profiles[step].enable()

    def around(self, step: int) -> dict[str, float]:
        """Return the CPU time in ms and the bytes of one step: the average of the WINDOW steps that begin at `step`."""
        cpu = (self.cpu[step + WINDOW] - self.cpu[step]) / WINDOW * 1000
        sent = (self.received[step // WINDOW + 1] - self.received[step // WINDOW]) / WINDOW
        return {"cpu_ms": cpu, "bytes": sent}


meter = Meter()


async def ask(messages: list[parts.ModelMessage], info: AgentInfo) -> parts.ModelResponse:
    meter.take()
    step = len(meter.cpu) - 1
    if step == meter.steps:
        return parts.ModelResponse(parts=[parts.TextPart("done")])
    return parts.ModelResponse(parts=[parts.ToolCallPart("look", {"number": step}, tool_call_id=f"c{step}")])


async def look(number: int) -> str:
    return f"seen {number}"


@dataclass
class Newest(AbstractCapability[None]):
    """Keep the prompt and the last messages, beginning with a response, so that each result of a tool has its call."""

    async def before_model_request(
        self, ctx: RunContext[None], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        messages, kept = request_context.messages, meter.kept
        if kept and len(messages) > kept + 1:
            request_context.messages = [*messages[:1], *messages[-kept:]]
            ctx.messages[:] = request_context.messages
        return request_context


class _NoStore(JournalCallableOperationBackend[None]):
    async def execute(self, *, body: Callable[[], Awaitable[object]], **_: Any) -> object:
        return await body()


@dataclass(init=False)
class NoStore(BaseDurabilityCapability[None]):
    """A durability engine that stores nothing: it calls each operation immediately."""

    engine_spec = RunDurability.engine_spec
    in_durable_context = True

    def get_durable_operation_backend(self) -> DurableOperationBackend[None]:
        config = RoleBasedOperationConfig[None](model=None, event=None, capability=None, tool=None)
        return _NoStore(agent_name=self.name, default_model_id=self.default_model_id, config=config)


def agent_of(*capabilities: Any) -> Agent[None, str]:
    agent = Agent(FunctionModel(ask), name="long", capabilities=[Newest(), *capabilities])
    agent.tool_plain(look)
    return agent


agents = dict(zip(KINDS, (agent_of(), agent_of(NoStore()), agent_of(RunDurability())), strict=True))
limits = UsageLimits(request_limit=None)


@runs.handler(throttle=0)
async def long(run: AsyncRun, kind: str, steps: int, kept: int) -> str:
    meter.reset(steps, kept)
    return (await agents[kind].run("go", usage_limits=limits)).output


async def measure(url: str, steps: int, rounds: int, kept: int) -> dict[str, Any]:
    places = (WINDOW, steps - WINDOW)
    taken: dict[tuple[str, int], list[dict[str, float]]] = {(kind, step): [] for kind in KINDS for step in places}
    meter.admin = redis.Redis.from_url(url, protocol=2)
    worker = Worker(runs, WorkerOptions(Settings(url, "bench"), concurrency=1, lease=60))
    task = asyncio.create_task(worker.run())
    await worker.ready.wait()
    try:
        async with AsyncClient(url, "bench") as client:
            for kind in KINDS * rounds:
                handle = await client.enqueue("long", {"kind": kind, "steps": steps, "kept": kept})
                await handle.result(timeout=3600)
                for step in places:
                    taken[kind, step].append(meter.around(step))
            meter.profiles = {step: cProfile.Profile(time.thread_time) for step in places}
            handle = await client.enqueue("long", {"kind": "ours", "steps": steps, "kept": kept})
            await handle.result(timeout=3600)
    finally:
        worker.stop()
        await task
        meter.admin.close()
    return {
        f"step {step}": _figures({kind: taken[kind, step] for kind in KINDS}, meter.profiles[step]) for step in places
    }


def _figures(taken: dict[str, list[dict[str, float]]], profile: cProfile.Profile) -> dict[str, float]:
    calls, share = _profiled(profile)
    cpu = {kind: statistics.median(one["cpu_ms"] for one in some) for kind, some in taken.items()}
    return {
        "cpu_ms": round(cpu["ours"], 3),
        "cpu_ms_without": round(cpu["without"], 3),
        "cpu_ms_framework": round(cpu["framework"] - cpu["without"], 3),
        "cpu_ms_ours": round(cpu["ours"] - cpu["framework"], 3),
        "cpu_ms_profiled": round(share * cpu["ours"], 3),
        "calls_of_ours": round(calls, 1),
        "bytes": round(statistics.median(one["bytes"] for one in taken["ours"])),
    }


def _profiled(profile: cProfile.Profile) -> tuple[float, float]:
    """Return how many calls of our functions a step makes, and the share of the CPU time that they and the transport have."""
    found: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    ours = {place for place in found if place[0].startswith(OURS)}
    calls = sum(found[place][1] for place in ours)
    ours |= {place for place in found if any(part in place[0] for part in BELOW)}
    own = sum(found[place][2] for place in ours)
    for place, (_, _, _, _, callers) in found.items():
        if place[0] == "~":  # a built-in function
            own += sum(spent[2] for caller, spent in callers.items() if caller in ours)
    return calls / WINDOW, own / sum(one[2] for one in found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--history", type=int, default=20, help="the messages that an agent keeps, or 0 for all of them"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    steps = max(3, -(-options.steps // WINDOW)) * WINDOW
    with tempfile.TemporaryDirectory() as directory, attach(Path(directory)) as server:
        found = asyncio.run(measure(server.url, steps, options.rounds, options.history // 2 * 2))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, row in found.items():
        print(f"{name:10}", "  ".join(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
