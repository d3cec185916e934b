"""A long agent of pydantic-ai on a real server: what a step sends does not grow with the number of steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai import messages as parts
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from coordinator.store import scripts
from tests.integration.worker_harness import bench
from workers import AsyncRun, Registry
from workers.integrations.pydantic_ai import RunDurability

pytestmark = pytest.mark.integration
STEPS, WINDOW = 200, 50


@pytest.mark.matrix("large numbers")
async def test_bytes_of_a_step_do_not_grow_with_the_agent(start_server: Any, namespace: str) -> None:
    """A step is a model request and a tool call: two phases outside of `loop`, both of which stay in the checkpoint."""
    server, received, over, runs = start_server(), list[int](), asyncio.Event(), Registry()
    for script in scripts.SCRIPTS:
        server.admin.script_load(script.text)

    def ask(messages: list[parts.ModelMessage], info: AgentInfo) -> parts.ModelResponse:
        received.append(int(server.admin.info("stats")["total_net_input_bytes"]))
        step = len(received) - 1
        if step == STEPS:
            return parts.ModelResponse(parts=[parts.TextPart("done")])
        return parts.ModelResponse(parts=[parts.ToolCallPart("look", {"number": step}, tool_call_id=f"c{step:04}")])

    agent = Agent(FunctionModel(ask), name="long", capabilities=[RunDurability()])

    @agent.tool_plain
    async def look(number: int) -> str:
        return f"seen {number:04}"

    @runs.handler(throttle=0)
    async def long(run: AsyncRun) -> int:
        await agent.run("go", usage_limits=UsageLimits(request_limit=None))
        over.set()
        return len(run._draft.phases)

    async with bench(server.url, namespace) as here:
        here.worker(runs)
        id = await here.enqueue("long")
        await over.wait()  # polling for the status sends bytes too
        assert await here.outcome(id) == "completed"
    first, last = (received[start + WINDOW] - received[start] for start in (WINDOW, STEPS - WINDOW))
    print(f"a step sends {first / WINDOW:.0f} bytes at the beginning, {last / WINDOW:.0f} at the end")
    assert last < 1.2 * first
