"""Measure what a step of a long pydantic-ai agent costs near its beginning and near its end, on an embedded server of its own.

A step is a model request and a tool call, so it is two phases outside of `run.loop`. The model and the tool do nothing. The
framework itself copies the history in each step. So the same agent is also measured without the capability: the difference is ours.

    scripts/bench agents [--steps N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from pydantic_ai import Agent
from pydantic_ai import messages as parts
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
WINDOW = 100  # steps over which a figure is taken


class Meter:
    """Takes the CPU time of the process and the bytes that the server has received, at the start of each step."""

    def __init__(self) -> None:
        self.admin: redis.Redis | None = None
        self.steps, self.cpu, self.received = 0, list[float](), list[int]()

    def reset(self, steps: int) -> None:
        self.steps, self.cpu, self.received = steps, [], []

    def take(self) -> None:
        self.cpu.append(time.process_time())
        if self.admin is not None and len(self.cpu) % WINDOW == 1:
            self.received.append(int(self.admin.info("stats")["total_net_input_bytes"]))

    def around(self, step: int) -> dict[str, float]:
        """Return the figures of the window of steps that begins at a step."""
        cpu = (self.cpu[step + WINDOW] - self.cpu[step]) / WINDOW * 1000
        sent = (self.received[step // WINDOW + 1] - self.received[step // WINDOW]) / WINDOW if self.received else 0
        return {"cpu_ms": round(cpu, 3), "bytes": round(sent)}


meter = Meter()


def ask(messages: list[parts.ModelMessage], info: AgentInfo) -> parts.ModelResponse:
    meter.take()
    step = len(meter.cpu) - 1
    if step == meter.steps:
        return parts.ModelResponse(parts=[parts.TextPart("done")])
    return parts.ModelResponse(parts=[parts.ToolCallPart("look", {"number": step}, tool_call_id=f"c{step}")])


async def look(number: int) -> str:
    return f"seen {number}"


def agent_of(*capabilities: Any) -> Agent[None, str]:
    agent = Agent(FunctionModel(ask), name="long", capabilities=list(capabilities))
    agent.tool_plain(look)
    return agent


plain, durable = agent_of(), agent_of(RunDurability())
limits = UsageLimits(request_limit=None)


@runs.handler(throttle=0)
async def long(run: AsyncRun, steps: int) -> str:
    meter.reset(steps)
    return (await durable.run("go", usage_limits=limits)).output


async def measure(url: str, steps: int) -> dict[str, Any]:
    places = (WINDOW, steps - WINDOW)
    meter.reset(steps)
    await plain.run("go", usage_limits=limits)
    without = {step: meter.around(step) for step in places}
    meter.admin = redis.Redis.from_url(url, protocol=2)
    worker = Worker(runs, WorkerOptions(Settings(url, "bench"), concurrency=1, lease=60))
    task = asyncio.create_task(worker.run())
    await worker.ready.wait()
    try:
        async with AsyncClient(url, "bench") as client:
            handle = await client.enqueue("long", {"steps": steps})
            await handle.result(timeout=3600)
    finally:
        worker.stop()
        await task
        meter.admin.close()
    found: dict[str, Any] = {}
    for step in places:
        of = meter.around(step)
        ours = round(of["cpu_ms"] - without[step]["cpu_ms"], 3)
        found[f"step {step}"] = of | {"cpu_ms_without": without[step]["cpu_ms"], "cpu_ms_ours": ours}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    steps = max(3, -(-options.steps // WINDOW)) * WINDOW
    with tempfile.TemporaryDirectory() as directory, attach(Path(directory)) as server:
        found = asyncio.run(measure(server.url, steps))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, row in found.items():
        print(f"{name:10}", "  ".join(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
