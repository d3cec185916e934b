"""Agents of pydantic-ai as handlers: which operations a resumed run repeats, and how deferred tools wait."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, RunContext
from pydantic_ai.exceptions import ModelHTTPError, ModelRetry, UserError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset
from pydantic_ai.usage import RequestUsage

from coordinator.errors import Refused
from workers import AsyncRun, Budget, BudgetExceeded, Registry, Run, Stopped, UnknownPrice, current_run, testing
from workers.handlers.operations.prices import ModelName, price
from workers.integrations.pydantic_ai import RunDurability, read_decision
from workers.integrations.steps import count_request, topic_of
from workers.testing.memory_backing import Crash, MemoryBacking

pytestmark = pytest.mark.unit
runs = Registry()
TOOLS = 3  # parallel calls of one tool in each turn


class World(list[str]):
    """The journal of all model requests and tool calls that were executed, in all attempts."""


def counted(world: World) -> Counter[str]:
    return Counter(world)


def unique(world: World) -> set[str]:
    return set(world)


def journal(entry: str) -> None:
    current_run().resources.append(entry)


def responses(messages: list[ModelMessage]) -> int:
    return sum(isinstance(message, ModelResponse) for message in messages)


def returned(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for part in messages[-1].parts if isinstance(part, (ToolReturnPart, RetryPromptPart))]


def calls(turn: int, tool: str = "look", count: int = TOOLS) -> ModelResponse:
    """Return a response with equal calls of one tool, which differ only in their ids."""
    return ModelResponse(parts=[ToolCallPart(tool, {"x": turn}, tool_call_id=f"c{turn}-{i}") for i in range(count)])


def asks_for_tools(turns: int | None = None) -> FunctionModel:
    """Return a model that asks for tools in each turn. By default the prompt is the number of turns."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = responses(messages)
        journal(f"model {turn}")
        wanted = int(str(messages[0].parts[0].content)) if turns is None else turns  # type: ignore[union-attr]
        return calls(turn) if turn < wanted else ModelResponse(parts=[TextPart(f"done after {returned(messages)}")])

    return FunctionModel(model)


researcher = Agent(asks_for_tools(), name="researcher", capabilities=[RunDurability()])


@researcher.tool
async def look(ctx: RunContext[Any], x: int) -> int:
    journal(f"tool {ctx.tool_call_id}")
    await asyncio.sleep(0)  # other tools get their turn
    current_run().state[str(ctx.tool_call_id)] = x  # a changed state must not make the next phase ambiguous
    return x


@runs.handler
async def research(run: AsyncRun[Any], turns: int) -> str:
    return (await researcher.run(str(turns))).output


def cuts(turns: int) -> int:
    return turns * (TOOLS + 1) + 1


LENGTHS = [3, pytest.param(20, marks=pytest.mark.matrix("the same test with 3 turns is in the quick suite"))]


def test_an_agent_killed_at_any_cut_has_the_same_result():
    done = testing.crash_matrix(research.inputs(3), resources=World, effects=unique)
    assert done.cuts == cuts(3)


async def interrupted(turns: int, number: int) -> tuple[set[str], list[str]]:
    """Kill the agent at a cut. Return the journal's entries that were saved, and the entries of the next attempt."""
    run = testing.AsyncRun(World(), backing=MemoryBacking(crash_at=number))
    with pytest.raises(Crash):
        await research(run, turns)
    fields = run._last_cut.phases
    saved = {f"model {int(field.split('.')[-1].partition('#')[0]) - 1}" for field in fields if "model.request" in field}
    saved |= {f"tool {field.rpartition(' ')[2].partition('#')[0]}" for field in fields if "call_tool" in field}
    before = len(run.resources)
    await research(run.after_crash(), turns)
    return saved, run.resources[before:]


@pytest.mark.parametrize("turns", LENGTHS)
async def test_an_agent_killed_at_any_cut_repeats_nothing_that_was_saved(turns: int):
    for number in range(1, cuts(turns) + 1):
        saved, repeated = await interrupted(turns, number)
        assert len(saved) == number
        assert not saved & set(repeated)
        assert len(repeated) == len(set(repeated)) == cuts(turns) - number


@pytest.mark.parametrize("turns", LENGTHS)
def test_a_deploy_at_any_cut_repeats_no_call_at_all(turns: int):
    testing.drain_matrix(research.inputs(turns), resources=World, effects=counted)


async def test_tool_calls_of_one_response_run_at_the_same_time():
    together = asyncio.Barrier(TOOLS)
    agent = Agent(asks_for_tools(1), name="parallel", capabilities=[RunDurability()])

    @agent.tool_plain(name="look")
    async def meet(x: int) -> int:
        async with asyncio.timeout(10):
            await together.wait()
        return x

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    assert await handler(testing.AsyncRun(World())) == "done after [0, 0, 0]"


async def test_outside_of_a_handler_the_agent_works_as_without_the_capability():
    agent = Agent(FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("hello")])), name="free",
                  capabilities=[RunDurability()])  # fmt: skip
    assert (await agent.run("hi")).output == "hello"


def test_a_plain_handler_is_refused_with_a_hint():
    @Registry().handler
    def plain(run: Run) -> str:
        return asyncio.run(researcher.run("1")).output  # type: ignore[no-any-return, unused-ignore]

    with pytest.raises(Refused, match="async handler"):
        plain(testing.Run(World()))


# -- names


async def phases_of(call: Callable[[AsyncRun[Any]], Awaitable[Any]]) -> list[str]:
    run = testing.AsyncRun(World())
    handler = Registry().handler(kind="named")(call)  # type: ignore[arg-type, var-annotated]
    await handler(run)
    return [field.removeprefix("phase:") for field in run._draft.phases]


async def test_phases_are_named_by_agent_call_step_and_tool_call():
    agent = Agent(asks_for_tools(1), name="short", capabilities=[RunDurability()])
    agent.tool_plain(name="look")(_echo)

    async def handler(run: AsyncRun[Any]) -> None:
        await agent.run("one")

    assert await phases_of(handler) == [
        "-:short__model.request 0.1#0",
        "-:short__function_toolset__<agent>.call_tool:look 0.1 c0-0#0",
        "-:short__function_toolset__<agent>.call_tool:look 0.1 c0-1#0",
        "-:short__function_toolset__<agent>.call_tool:look 0.1 c0-2#0",
        "-:short__model.request 0.2#0",
    ]


async def _echo(x: int) -> int:
    return x


async def test_agents_that_run_at_the_same_time_do_not_share_phases():
    async def handler(run: AsyncRun[Any]) -> None:
        await asyncio.gather(researcher.run("3"), researcher.run("3"))

    names = await phases_of(handler)
    assert len(names) == len(set(names)) == 2 * cuts(3)


def test_an_agent_in_each_turn_of_a_loop_survives_every_crash():
    agent = Agent(asks_for_tools(1), name="chat", capabilities=[RunDurability()])
    agent.tool_plain(name="look")(_echo)

    @Registry().handler
    async def chat(run: AsyncRun[Any]) -> list[str]:
        async for turn in run.loop(3):
            run.messages.append((await agent.run(f"question {turn}")).output)
        return list(run.messages)

    assert testing.crash_matrix(chat.inputs(), resources=World, effects=unique).result == ["done after [0, 0, 0]"] * 3


def test_a_tool_call_id_that_a_model_repeats_does_not_mix_up_results():
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = responses(messages)
        if turn < 3:
            return ModelResponse(parts=[ToolCallPart("look", {"x": turn}, tool_call_id="call_0")])
        return ModelResponse(parts=[TextPart(str([part.content for message in messages for part in message.parts
                                                  if isinstance(part, ToolReturnPart)]))])  # fmt: skip

    agent = Agent(FunctionModel(model), name="repeats", capabilities=[RunDurability()])
    agent.tool_plain(name="look")(_echo)

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    assert testing.crash_matrix(handler.inputs()).result == "[0, 1, 2]"


async def test_a_long_or_unprintable_tool_call_id_becomes_a_valid_phase_name():
    ids = ["x" * 500, "line\nbreak", "ok"]

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not responses(messages):
            return ModelResponse(parts=[ToolCallPart("look", {"x": n}, tool_call_id=id) for n, id in enumerate(ids)])
        return ModelResponse(parts=[TextPart(str(returned(messages)))])

    agent = Agent(FunctionModel(model), name="strange", capabilities=[RunDurability()])
    agent.tool_plain(name="look")(_echo)

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    assert await handler(testing.AsyncRun()) == "[0, 1, 2]"
    assert topic_of("approval", "ok") == "approval.ok"
    assert len({topic_of("approval", id) for id in ids}) == 3


# -- agents inside tools


inner = Agent(asks_for_tools(2), name="inner", capabilities=[RunDurability()])
inner.tool_plain(name="look")(_echo)
outer = Agent(asks_for_tools(1), name="outer", capabilities=[RunDurability()])


@outer.tool(name="look")
async def ask_another_agent(ctx: RunContext[Any], x: int) -> str:
    return (await inner.run(f"for {ctx.tool_call_id}")).output


async def test_an_agent_inside_a_tool_repeats_no_saved_request_after_a_crash():
    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await outer.run("go")).output

    whole = testing.AsyncRun(World())
    expected = await handler(whole)
    for number in range(1, len(whole._memory.cuts) + 1):
        run = testing.AsyncRun(World(), backing=MemoryBacking(crash_at=number))
        with pytest.raises(Crash):
            await handler(run)
        requests = sum("model.request" in field for field in run._last_cut.phases)
        before = len(run.resources)
        assert await handler(run.after_crash()) == expected
        assert len(run.resources) - before == len(whole.resources) - requests


# -- failures


async def test_a_retry_calls_only_the_tool_that_failed():
    agent = Agent(asks_for_tools(1), name="fragile", capabilities=[RunDurability()])

    @agent.tool(name="look")
    async def fail_once(ctx: RunContext[Any], x: int) -> int:
        journal(f"tool {ctx.tool_call_id}")
        if ctx.tool_call_id == "c0-1" and current_run().attempt == 1:
            await asyncio.sleep(0.01)  # the other tools end first
            raise ConnectionError("the tool's server is down")
        return x

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    run = testing.AsyncRun(World())
    with pytest.raises(ConnectionError):
        await handler(run)
    before = len(run.resources)
    await handler(run.after_crash())
    assert run.resources[before:] == ["tool c0-1", "model 1"]


async def test_a_saved_request_that_followed_a_failed_one_is_found_again():
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        journal("model")
        if current_run().resources.count("model") == 1:
            raise ConnectionError("the model's server is down")
        return ModelResponse(parts=[TextPart("second try")])

    agent = Agent(FunctionModel(model), name="again", capabilities=[RunDurability()])

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        try:
            return (await agent.run("go", run_id="fixed")).output
        except ConnectionError:
            return (await agent.run("go", run_id="fixed")).output

    run = testing.AsyncRun(World())
    assert await handler(run) == "second try"
    assert await handler(run.after_crash()) == "second try"
    assert run.resources == ["model", "model"]


async def test_a_request_for_a_retry_is_saved_as_the_output_of_the_tool():
    agent = Agent(asks_for_tools(1), name="picky", capabilities=[RunDurability()])

    @agent.tool(name="look")
    async def reject(ctx: RunContext[Any], x: int) -> int:
        journal(f"tool {ctx.tool_call_id}")
        raise ModelRetry("use another number")

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    run = testing.AsyncRun(World())
    first = await handler(run)
    assert "use another number" in first
    assert await handler(run.after_crash()) == first
    assert len(run.resources) == 5


async def test_a_tool_without_a_phase_is_called_in_every_attempt():
    agent = Agent(asks_for_tools(1), name="inline", capabilities=[RunDurability()])

    @agent.tool_plain(name="look", metadata={"run_coordinator": False})
    async def read_clock(x: int) -> int:
        journal("tool")
        return x

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    run = testing.AsyncRun(World())
    await handler(run)
    await handler(run.after_crash())
    assert run.resources.count("tool") == 2 * TOOLS


async def test_unknown_metadata_of_a_tool_is_refused():
    agent = Agent(asks_for_tools(1), name="wrong", capabilities=[RunDurability()])
    agent.tool_plain(name="look", metadata={"run_coordinator": {"retries": 3}})(_echo)

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    with pytest.raises(UserError, match="only possible value is False"):
        await handler(testing.AsyncRun(World()))


async def test_the_timeout_of_an_agent_counts_from_its_first_attempt():
    agent = Agent(asks_for_tools(0), name="timed", capabilities=[RunDurability()])

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go", timeout=60)).output

    run = testing.AsyncRun(World())
    await handler(run)
    (started,) = [data for field, data in run._draft.phases.items() if "run_start_time" in field]
    after = run.after_crash()
    await handler(after)
    assert [data for field, data in after._draft.phases.items() if "run_start_time" in field] == [started]


# -- deferred tools


def asks_once(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    journal(f"model {responses(messages)}")
    return calls(0, "buy", 2) if not responses(messages) else ModelResponse(parts=[TextPart(str(returned(messages)))])


buyer = Agent(FunctionModel(asks_once), name="buyer", capabilities=[RunDurability()])


@buyer.tool(requires_approval=True)
async def buy(ctx: RunContext[Any], x: int) -> str:
    journal(f"buy {ctx.tool_call_id}")
    return f"bought {x}"


@runs.handler
async def purchase(run: AsyncRun[Any]) -> str:
    return (await buyer.run("buy")).output


def test_approvals_are_received_over_every_crash_and_every_suspension():
    done = testing.crash_matrix(
        purchase.inputs(), resources=World, effects=counted,
        signals=[("approval.c0-0", {"approved": True, "override_args": {"x": 7}}),
                 ("approval.c0-1", {"approved": False, "message": "too dear"})],
    )  # fmt: skip
    assert done.result == "['bought 7', 'too dear']"
    assert done.waits == 2


async def test_the_note_names_the_topics_of_all_open_approvals():
    run = testing.AsyncRun(World())
    with pytest.raises(Stopped):
        await purchase(run)
    assert run.waits_for == ("approval.c0-0",)
    assert "approval.c0-0" in run.notes[-1].text
    assert "approval.c0-1" in run.notes[-1].text


async def test_a_signal_that_is_not_a_decision_is_ignored_with_a_warning(caplog):
    run = testing.AsyncRun(World())
    for payload in ("yes", True):
        run.send("approval.c0-0", payload)
    run.send("approval.c0-1", False)
    assert await purchase(run) == "['bought 0', 'The tool call was denied.']"
    assert "signal not understood" in caplog.text


def test_decisions_are_true_false_or_a_dict_with_approved():
    assert read_decision(None) is None
    assert read_decision("true") is None
    assert read_decision({"message": "no"}) is None
    assert read_decision({"approved": "yes"}) is None


def test_the_result_of_an_external_tool_is_received():
    agent = Agent(FunctionModel(asks_once), name="external", capabilities=[RunDurability()])

    @agent.tool_plain(name="buy")
    async def start_elsewhere(x: int) -> str:
        raise CallDeferred

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    done = testing.crash_matrix(
        handler.inputs(), resources=World, effects=counted, signals=[("result.c0-0", 1), ("result.c0-1", {"n": 2})]
    )
    assert done.result == "[1, {'n': 2}]"


async def test_an_agent_whose_output_may_be_deferred_requests_returns_them():
    agent: Agent[None, Any] = Agent(
        FunctionModel(asks_once),
        name="returns",
        output_type=[str, DeferredToolRequests],
        capabilities=[RunDurability()],
    )
    agent.tool_plain(name="buy", requires_approval=True)(_echo)

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> int:
        output = (await agent.run("go")).output
        return len(output.approvals)

    assert await handler(testing.AsyncRun(World())) == 2


# -- events


async def streamed(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    journal(f"model {responses(messages)}")
    if not responses(messages):
        yield {n: DeltaToolCall("look", f'{{"x": {n}}}', tool_call_id=f"c{n}") for n in range(2)}
    else:
        for word in ("the", " ", "end"):
            yield word


async def test_events_are_emitted_once_and_not_again_by_a_resumed_run():
    agent = Agent(FunctionModel(stream_function=streamed), name="loud", capabilities=[RunDurability(emit_events=True)])
    agent.tool_plain(name="look")(_echo)

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    run = testing.AsyncRun(World())
    assert await handler(run) == "the end"
    kinds = Counter(event["event_kind"] for event in run.emitted)
    assert kinds["function_tool_call"] == kinds["function_tool_result"] == 2
    assert [event["delta"]["content_delta"] for event in run.emitted if event.get("event_kind") == "part_delta"][
        -1
    ] == "end"
    after = run.after_crash()
    assert await handler(after) == "the end"
    assert after.emitted == run.emitted
    assert not any("event_stream_handler" in field for field in after._draft.phases)


async def test_a_reader_has_each_event_of_the_model_once_whatever_cut_the_run_is_killed_at():
    agent = Agent(FunctionModel(stream_function=streamed), name="loud", capabilities=[RunDurability(emit_events=True)])
    agent.tool_plain(name="look")(_echo)

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    def without_begins(run: testing.AsyncRun) -> list[Any]:
        # A parallel tool call that was under way at the cut is repeated, and its begin is emitted again.
        return [event for event in run.emitted if event["event_kind"] != "function_tool_call"]

    whole = testing.AsyncRun(World())
    await handler(whole)
    for number in range(1, len(whole._memory.cuts) + 1):
        run = testing.AsyncRun(World(), backing=MemoryBacking(crash_at=number))
        with pytest.raises(Crash):
            await handler(run)
        after = run.after_crash()
        await handler(after)
        assert without_begins(after) == without_begins(whole)


async def test_an_event_handler_gets_the_events_that_are_emitted():
    seen: list[str] = []

    async def on_events(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        seen.extend([event.event_kind async for event in events])

    agent = Agent(
        FunctionModel(stream_function=streamed), name="heard",
        capabilities=[RunDurability(emit_events=True, event_stream_handler=on_events)],
    )  # fmt: skip
    agent.tool_plain(name="look")(_echo)

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    run = testing.AsyncRun(World())
    await handler(run)
    assert seen.count("function_tool_call") == 2
    assert seen.count("part_start") == sum(event["event_kind"] == "part_start" for event in run.emitted)
    seen.clear()
    await handler(run.after_crash())
    assert seen == []


# -- MCP servers and dynamic toolsets


def asks_once_in_each_turn(tool: str, turns: int = 2) -> FunctionModel:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = responses(messages)
        journal(f"model {turn}")
        return calls(turn, tool, 1) if turn < turns else ModelResponse(parts=[TextPart(f"{returned(messages)}")])

    return FunctionModel(model)


def test_tools_of_an_mcp_server_are_called_once_whatever_cut_the_run_is_killed_at():
    """The server is a real one, in the process of the test."""
    worlds = list[World]()
    server = MCPServer("remote")

    @server.tool()
    def look_there(x: int) -> int:
        worlds[-1].append(f"mcp {x}")  # the tasks of the server know no current run
        return 10 * x

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        worlds.append(run.resources)
        # Each attempt has its own connection, as in processes of their own: the matrix pauses an attempt inside of a call.
        toolset: Any = MCPToolset(server, id="remote")
        model = asks_once_in_each_turn("look_there")
        agent = Agent(model, name="remote", toolsets=[toolset], capabilities=[RunDurability()])
        return (await agent.run("go")).output

    done = testing.crash_matrix(handler.inputs(), resources=World, effects=counted)
    assert done.result == "[10]"
    assert done.effects == Counter(["model 0", "mcp 0", "model 1", "mcp 1", "model 2"])
    assert done.cuts > 5, "listing the tools of the server is a phase too"


def test_a_dynamic_toolset_is_resolved_and_called_once_whatever_cut_the_run_is_killed_at():
    def chosen(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        journal(f"resolved in step {ctx.run_step}")

        def look_there(x: int) -> int:
            journal(f"tool {x}")
            return 10 * x

        return FunctionToolset([look_there])

    model, toolset = asks_once_in_each_turn("look_there"), DynamicToolset[Any](chosen, id="chosen")
    agent = Agent(model, name="dynamic", toolsets=[toolset], capabilities=[RunDurability()])

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return (await agent.run("go")).output

    done = testing.crash_matrix(handler.inputs(), resources=World, effects=counted)
    assert done.result == "[10]"
    assert {entry: count for entry, count in done.effects.items() if "resolved" not in entry} == dict.fromkeys(
        ["model 0", "tool 0", "model 1", "tool 1", "model 2"], 1
    )
    # The framework resolves the toolset once for the list of its tools, and once inside each call of a tool.
    assert [done.effects[f"resolved in step {step}"] for step in (1, 2, 3)] == [2, 2, 1]


# ---- budgets -------------------------------------------------------------------------------------------------------------


class Reporting(FunctionModel):
    """A model of a provider. Its responses may have another name than the model, as those of an alias have."""

    def __init__(
        self, function: Any, model_name: str, reported: str, provider: str = "", url: str | None = None
    ) -> None:
        super().__init__(function, model_name=model_name)
        self.reported, self.provider_name, self.url = reported, provider, url

    @property
    def system(self) -> str:
        return self.provider_name or super().system

    @property
    def base_url(self) -> str | None:
        if self.url == "":
            raise AttributeError("a model of Hugging Face may have no URL")
        return self.url

    async def request(self, *args: Any) -> ModelResponse:
        response = await super().request(*args)
        return replace(
            response, model_name=self.reported, provider_name=self.provider_name or None, provider_url=self.url or None
        )


def priced(model_name: str = "gpt-4o", reported: str | None = None, **provider: str) -> FunctionModel:
    """Return a model that asks for one tool, and then ends. Each response has 100 input and 10 output tokens."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        journal("model")
        usage, turn = RequestUsage(input_tokens=100, output_tokens=10), responses(messages)
        parts = calls(turn, "look_up", 1).parts if turn == 0 else [TextPart("done")]
        return ModelResponse(parts=parts, usage=usage)

    return Reporting(model, model_name, reported or model_name, **provider)


def spender(model: str | Model, budget: Budget | None, reported: str | None = None) -> Any:
    """Return a handler with a budget whose agent makes two requests and calls one tool between them."""
    used = priced(model, reported) if isinstance(model, str) else model
    agent = Agent(used, name="spender", capabilities=[RunDurability()])

    @agent.tool_plain
    async def look_up(x: int) -> int:
        return x

    async def handler(run: AsyncRun[Any]) -> list[Any]:
        await agent.run("go")
        return [run.spent.usd, run.spent.tokens, run.spent.requests]

    return Registry().handler(kind="spender", budget=budget)(handler)


async def test_model_requests_are_counted_for_the_budget_of_the_run():
    assert await spender("gpt-4o", Budget(tokens=10_000))(testing.AsyncRun(World())) == [0, 220, 2]
    usd, tokens, requests = await spender("gpt-4o", Budget(usd=1))(testing.AsyncRun(World()))
    assert (tokens, requests) == (220, 2)
    assert 0 < usd < 0.01
    assert await spender("gpt-4o", None)(testing.AsyncRun(World())) == [0, 0, 0]


def test_saved_requests_are_not_counted_again_after_a_crash():
    testing.crash_matrix(spender("gpt-4o", Budget(tokens=10_000)).inputs(), resources=World, effects=unique)


async def test_budget_stops_an_agent_before_its_next_request():
    world = World()
    with pytest.raises(BudgetExceeded):
        await spender("gpt-4o", Budget(requests=1))(testing.AsyncRun(world))
    assert world == ["model"]


async def test_more_cached_than_input_tokens_are_counted_as_far_as_there_are_input_tokens():
    run = testing.AsyncRun(World())

    @Registry().handler(budget=Budget(usd=1))
    async def count(run: AsyncRun[Any]) -> None:
        count_request(
            run,
            [ModelName("gpt-4o")],
            {"input_tokens": 10, "output_tokens": 1, "cache_read_tokens": 900, "cache_write_tokens": 5},
        )

    await count(run)
    assert (run.spent.tokens, run.spent.requests) == (11, 1)


async def test_model_without_a_known_price_is_refused_before_it_is_called_if_the_budget_limits_dollars():
    world = World()
    with pytest.raises(UnknownPrice, match=r"no request was sent.*nobody-sells-this.*limit tokens or requests"):
        await spender("nobody-sells-this", Budget(usd=1))(testing.AsyncRun(world))
    assert world == []
    assert await spender("nobody-sells-this", Budget(tokens=10_000))(testing.AsyncRun(world)) == [0, 220, 2]


async def test_response_that_reports_a_name_without_a_price_costs_the_price_of_the_requested_name():
    same = await spender("gpt-4o", Budget(usd=1))(testing.AsyncRun(World()))
    assert await spender("gpt-4o", Budget(usd=1), "nobody-sells-this")(testing.AsyncRun(World())) == same


async def test_price_of_the_name_that_a_response_reports_goes_before_that_of_the_requested_name():
    cheap = await spender("gpt-4o-mini", Budget(usd=1))(testing.AsyncRun(World()))
    assert await spender("gpt-4o", Budget(usd=1), "gpt-4o-mini")(testing.AsyncRun(World())) == cheap


@pytest.mark.parametrize("wrap", [lambda model: model, WrapperModel], ids=["bare", "wrapped"])
async def test_fallback_without_a_known_price_is_refused_before_any_model_is_called(wrap: Any):
    def using(*names: str) -> Any:
        return spender(wrap(FallbackModel(*(priced(name) for name in names))), Budget(usd=1))

    world = World()
    with pytest.raises(UnknownPrice, match="nobody-sells-this"):
        await using("gpt-4o", "nobody-sells-this")(testing.AsyncRun(world))
    assert world == []
    same = await spender("gpt-4o", Budget(usd=1))(testing.AsyncRun(World()))
    assert await using("gpt-4o", "gpt-4o-mini")(testing.AsyncRun(world)) == same


async def cost_of(model: Model) -> float:
    return float((await spender(model, Budget(usd=1))(testing.AsyncRun(World())))[0])


async def test_equal_names_of_different_providers_have_the_prices_of_their_providers():
    request: Any = {"model": "gpt-oss-120b", "input_tokens": 100, "output_tokens": 10}
    there, elsewhere = (2 * float(price(provider=provider, **request)) for provider in ("cerebras", "openai"))
    assert there > elsewhere
    by_url = {"provider": "openai", "url": "https://api.cerebras.ai/v1"}
    for provider in ({"provider": "cerebras"}, by_url, {"provider": "cerebras", "url": "http://localhost:8000"}):
        assert await cost_of(priced("gpt-oss-120b", **provider)) == pytest.approx(there, abs=1e-5), provider
        assert await cost_of(priced("gpt-oss-120b", "unknown", **provider)) == pytest.approx(there, abs=1e-5), provider
    assert await cost_of(priced("gpt-oss-120b", provider="openai")) == pytest.approx(elsewhere, abs=1e-5)


@pytest.mark.parametrize("provider", [{}, {"provider": "nobody"}, {"provider": "cerebras"}, {"url": ""}], ids=str)
async def test_price_of_a_model_that_the_table_does_not_know_at_its_provider_is_found_without_the_provider(
    provider: Any,
):
    assert await cost_of(priced("gpt-4o", **provider)) == await cost_of(priced("gpt-4o"))


async def test_url_of_a_model_is_asked_for_only_if_the_budget_limits_dollars_and_may_raise_any_error():
    class Nowhere(Reporting):
        @property
        def base_url(self) -> str | None:
            asked.append(self.model_name)
            raise AssertionError("a model of Azure may have no URL")

    asked: list[str] = []
    # The framework itself asks for the URL of the first model of a fallback.
    model = FallbackModel(priced("gpt-4o"), Nowhere(lambda messages, info: None, "gpt-4o-mini", "gpt-4o-mini"))
    for budget, spent in {None: [0, 0, 0], Budget(tokens=10_000): [0, 220, 2]}.items():
        assert await spender(model, budget)(testing.AsyncRun(World())) == spent
    assert asked == []
    assert await cost_of(model) == await cost_of(priced("gpt-4o"))
    assert asked == ["gpt-4o-mini"] * 2


async def test_response_of_a_fallback_with_an_unknown_name_costs_the_price_of_a_model_of_its_provider():
    class Broken(Reporting):
        async def request(self, *args: Any) -> ModelResponse:
            raise ModelHTTPError(503, self.model_name)

    first = Broken(lambda messages, info: None, "gpt-4o", "gpt-4o", "openai")
    second = priced("claude-sonnet-4-5", "nobody-sells-this", provider="anthropic")
    assert await cost_of(FallbackModel(first, second)) == await cost_of(
        priced("claude-sonnet-4-5", provider="anthropic")
    )
