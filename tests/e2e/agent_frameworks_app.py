"""Agents of pydantic-ai and of the OpenAI Agents SDK, whose models and tools write to the journal before they act."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent as SdkAgent
from agents import Model, ModelResponse, RunConfig, Usage, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic_ai import Agent
from pydantic_ai import messages as parts
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Registry, current_run
from workers.integrations.openai_agents import DurableRunner
from workers.integrations.pydantic_ai import RunDurability

runs = Registry()
TURNS, TOOLS = 5, 3
WORDS = [f"word{n} " for n in range(30)]
quiet = RunConfig(tracing_disabled=True)


def note(what: str, number: int) -> None:
    run = current_run()
    assert isinstance(run, AsyncRun)
    journal(run, what, number)


async def use_tool(number: int) -> str:
    note("tool", number)
    await work_for(0.02)
    return f"seen {number}"


# -- pydantic-ai


async def ask(messages: list[parts.ModelMessage], info: AgentInfo) -> parts.ModelResponse:
    turn = sum(isinstance(message, parts.ModelResponse) for message in messages)
    note("request", turn)
    await work_for(0.02)
    if turn == TURNS:
        return parts.ModelResponse(parts=[parts.TextPart("done")])
    calls = [parts.ToolCallPart("look", {"number": turn * 10 + n}, tool_call_id=f"c{turn}-{n}") for n in range(TOOLS)]
    return parts.ModelResponse(parts=calls)


researcher = Agent(FunctionModel(ask), name="researcher", capabilities=[RunDurability()])
researcher.tool_plain(name="look")(use_tool)


@runs.handler(throttle=0)
async def pydantic_research(run: AsyncRun) -> str:
    return (await researcher.run("go")).output


# -- the OpenAI Agents SDK


def items_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the input items of a model call."""
    given = kwargs["input"] if "input" in kwargs else args[1]
    return given if isinstance(given, list) else []


class JournalledModel(Model):
    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        turn = sum(item.get("type") == "function_call_output" for item in items_of(args, kwargs)) // TOOLS
        note("request", turn)
        await work_for(0.02)
        output: list[Any] = [assistant_message("done")]
        if turn < TURNS:
            output = [function_call("look", {"number": turn * 10 + n}, call_id=f"c{turn}-{n}") for n in range(TOOLS)]
        return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Stream one answer word by word. In the first attempt, kill the process in the middle."""
        scripted = ScriptedModel([[assistant_message("".join(WORDS))]])
        async for event in scripted.stream_response(*args, **kwargs):
            if event.type != "response.output_text.delta":
                yield event
                continue
            for number, word in enumerate(WORDS):
                yield event.model_copy(update={"delta": word})
                await work_for(0.01)
                if number == len(WORDS) // 2 and current_run().attempt == 1:
                    os.kill(os.getpid(), signal.SIGKILL)


@function_tool
async def look(number: int) -> str:
    return await use_tool(number)


@runs.handler(throttle=0)
async def sdk_research(run: AsyncRun) -> str:
    agent = SdkAgent[Any]("researcher", model=JournalledModel(), tools=[look])
    return str((await DurableRunner.run(agent, "go", run_config=quiet)).final_output)


@runs.handler(throttle=0)
async def sdk_stream(run: AsyncRun) -> str:
    agent = SdkAgent[Any]("speaker", model=JournalledModel())
    return str((await DurableRunner.run(agent, "go", run_config=quiet, emit_events=True)).final_output)


@runs.handler(throttle=0)
async def sdk_read_stream(run: AsyncRun) -> str:
    agent = SdkAgent[Any]("speaker", model=JournalledModel())
    result = DurableRunner.run_streamed(agent, "go", run_config=quiet)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


# -- approvals


def wants_to_buy(messages: list[parts.ModelMessage], info: AgentInfo) -> parts.ModelResponse:
    note("request", len(messages))
    if len(messages) == 1:
        return parts.ModelResponse(parts=[parts.ToolCallPart("buy", {"item": "tea"}, tool_call_id="call-1")])
    return parts.ModelResponse(parts=[parts.TextPart("bought")])


buyer = Agent(FunctionModel(wants_to_buy), name="buyer", capabilities=[RunDurability()])


async def buy(item: str) -> str:
    note("tool", 1)
    return f"bought {item}"


buyer.tool_plain(requires_approval=True)(buy)


@runs.handler(throttle=0, linger=0.1)
async def pydantic_purchase(run: AsyncRun) -> str:
    return (await buyer.run("buy tea")).output


class BuyingModel(Model):
    def answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        asked = any(item.get("type") == "function_call_output" for item in items_of(args, kwargs))
        note("request", 3 if asked else 1)
        return [assistant_message("bought") if asked else function_call("buy", {"item": "tea"}, call_id="call-1")]

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return ModelResponse(output=self.answer(args, kwargs), usage=Usage(requests=1), response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for event in ScriptedModel([self.answer(args, kwargs)]).stream_response(*args, **kwargs):
            yield event


@runs.handler(throttle=0, linger=0.1)
async def sdk_purchase(run: AsyncRun) -> str:
    agent = SdkAgent[Any]("buyer", model=BuyingModel(), tools=[function_tool(needs_approval=True)(buy)])
    return str((await DurableRunner.run(agent, "buy tea", run_config=quiet)).final_output)


@runs.handler(throttle=0, linger=0.1)
async def sdk_read_purchase(run: AsyncRun) -> str:
    agent = SdkAgent[Any]("buyer", model=BuyingModel(), tools=[function_tool(needs_approval=True)(buy)])
    result = DurableRunner.run_streamed(agent, "buy tea", run_config=quiet)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)
