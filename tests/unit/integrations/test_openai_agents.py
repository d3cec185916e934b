"""Agents of the OpenAI Agents SDK as handlers: which calls a resumed run repeats, handoffs, approvals, events and sessions."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, SQLiteSession, Usage, function_tool, handoff
from agents.mcp import MCPServer
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as McpTool
from openai import AsyncOpenAI
from openai.types.responses import ResponseCompletedEvent

from coordinator.errors import Refused
from coordinator.model.run import Note
from workers import AsyncRun, Budget, BudgetExceeded, Registry, Run, UnknownPrice, current_run, testing
from workers.handlers.operations.prices import price
from workers.integrations.openai_agents import DurableRunner, RunSession
from workers.testing.memory_backing import Crash, MemoryBacking

pytestmark = pytest.mark.unit
TURNS, TOOLS = 4, 3
QUIET = RunConfig(tracing_disabled=True)


class World:
    """The outside world of one run: a scripted model, and the journal of the tools."""

    def __init__(self, steps: list[Any]) -> None:
        self.model, self.journal = ScriptedModel(steps), list[str]()


def journal(entry: str) -> None:
    current_run().resources.journal.append(entry)


@function_tool
async def look(context: ToolContext[Any], x: int) -> str:
    journal(f"tool {context.tool_call_id}")
    await asyncio.sleep(0)  # other tools get their turn
    return f"seen {x}"


def asks(turn: int, tool: str = "look", count: int = TOOLS) -> list[Any]:
    return [function_call(tool, {"x": turn}, call_id=f"c{turn}-{n}") for n in range(count)]


def long_script() -> World:
    return World([asks(turn) for turn in range(TURNS)] + [[assistant_message("done")]])


def counted(world: World) -> tuple[int, Counter[str]]:
    return len(world.model.calls), Counter(world.journal)


def unique(world: World) -> tuple[int, set[str]]:
    return len(world.model.calls), set(world.journal)


def durable(make: Callable[[World], Agent[Any]], **options: Any) -> Any:
    """Return a handler that runs an agent of the world's model."""

    async def handler(run: AsyncRun[Any]) -> str:
        agent = make(run.resources)
        return str((await DurableRunner.run(agent, "go", run_config=QUIET, **options)).final_output)

    return Registry().handler(kind="agent")(handler)


def looker(world: World) -> Agent[Any]:
    return Agent("looker", model=world.model, tools=[look])


research = durable(looker)


def test_an_agent_killed_at_any_cut_calls_the_model_once_for_each_response():
    done = testing.crash_matrix(research.inputs(), resources=long_script, effects=unique)
    assert (done.cuts, done.result) == (TURNS * (TOOLS + 1) + 1, "done")


def test_a_deploy_at_any_cut_repeats_no_call_at_all():
    testing.drain_matrix(research.inputs(), resources=long_script, effects=counted)


async def test_an_agent_killed_at_any_cut_repeats_no_tool_that_was_saved():
    for number in range(1, TURNS * (TOOLS + 1) + 2):
        run = testing.AsyncRun(long_script(), backing=MemoryBacking(crash_at=number))
        with pytest.raises(Crash):
            await research(run)
        saved = {field.rpartition(" ")[2].partition("#")[0] for field in run._last_cut.phases if ":tool " in field}
        before = len(run.resources.journal)
        await research(run.after_crash())
        assert not {f"tool {id}" for id in saved} & set(run.resources.journal[before:])


def test_a_model_of_a_provider_is_durable_too():
    class Provider:
        def __init__(self, model: ScriptedModel) -> None:
            self.model = model

        def get_model(self, name: str | None) -> ScriptedModel:
            assert name == "scripted"
            return self.model

        async def aclose(self) -> None:
            return None

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        config = RunConfig(tracing_disabled=True, model_provider=Provider(run.resources.model))  # type: ignore[arg-type]
        agent = Agent[Any]("named", model="scripted", tools=[look])
        return str((await DurableRunner.run(agent, "go", run_config=config)).final_output)

    testing.crash_matrix(handler.inputs(), resources=long_script, effects=unique)


def test_agents_that_hand_off_to_each_other_are_durable():
    def make(world: World) -> Agent[Any]:
        second = Agent[Any]("second", model=world.model, tools=[look])
        first = Agent[Any]("first", model=world.model, tools=[look], handoffs=[handoff(second)])
        second.handoffs = [first]
        return first

    def script() -> World:
        there, back = (
            function_call("transfer_to_second", {}, call_id="h1"),
            function_call("transfer_to_first", {}, call_id="h2"),
        )
        return World([asks(0), [there], asks(1), [back], [assistant_message("back home")]])

    done = testing.crash_matrix(durable(make).inputs(), resources=script, effects=unique)
    assert done.result == "back home"


async def test_the_given_agents_stay_as_they_are():
    world = World([[assistant_message("one")]])
    agent = looker(world)

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        return str((await DurableRunner.run(agent, "go", run_config=QUIET)).final_output)

    await handler(testing.AsyncRun(world))
    assert (type(agent), agent.model, agent.tools) == (Agent, world.model, [look])


async def test_outside_of_a_handler_the_runner_of_the_sdk_runs():
    world = World([[assistant_message("plain")]])
    assert (await DurableRunner.run(looker(world), "go", run_config=QUIET)).final_output == "plain"


def test_a_plain_handler_is_refused_with_a_hint():
    @Registry().handler
    def plain(run: Run[Any]) -> str:
        return str(asyncio.run(DurableRunner.run(looker(run.resources), "go")).final_output)

    with pytest.raises(Refused, match="async handler"):
        plain(testing.Run(long_script()))


async def test_an_agent_inside_a_tool_repeats_no_saved_response():
    def make(world: World) -> Agent[Any]:
        @function_tool
        async def ask(x: int) -> str:
            inner = Agent[Any]("inner", model=world.model, tools=[look])
            return str((await DurableRunner.run(inner, str(x), run_config=QUIET)).final_output)

        return Agent("outer", model=world.model, tools=[ask])

    def script() -> World:
        return World([asks(0, "ask", 1), asks(1), [assistant_message("inside")], [assistant_message("outside")]])

    done = testing.crash_matrix(durable(make).inputs(), resources=script, effects=unique)
    assert done.result == "outside"


async def test_the_output_of_a_tool_that_is_not_plain_data_becomes_text():
    class Weather:
        def __str__(self) -> str:
            return "sunny"

    @function_tool
    def weather() -> Weather:
        return Weather()

    world = World([[function_call("weather", {}, call_id="w")], [assistant_message("thanks")]])
    run = testing.AsyncRun(world)
    await durable(lambda world: Agent("a", model=world.model, tools=[weather]))(run)
    assert world.model.calls[-1].input[-1]["output"] == "sunny"


# -- approvals


@function_tool(needs_approval=True)
async def buy(context: ToolContext[Any], x: int) -> str:
    journal(f"buy {context.tool_call_id}")
    return f"bought {x}"


def buyer(world: World) -> Agent[Any]:
    return Agent("buyer", model=world.model, tools=[buy])


def purchase_script() -> World:
    return World([asks(0, "buy", 2), [assistant_message("finished")]])


def test_approvals_are_received_over_every_crash_and_every_suspension():
    done = testing.crash_matrix(
        durable(buyer).inputs(), resources=purchase_script, effects=counted,
        signals=[("approval.c0-0", True), ("approval.c0-1", {"approved": False, "message": "too dear"})],
    )  # fmt: skip
    assert (done.result, done.waits) == ("finished", 2)
    assert done.effects[1] == Counter({"buy c0-0": 1})


async def test_a_rejected_call_gives_the_model_the_reason(caplog):
    run = testing.AsyncRun(purchase_script())
    run.send("approval.c0-0", "perhaps")
    run.send("approval.c0-0", {"approved": False, "message": "too dear"})
    run.send("approval.c0-1", True)
    await durable(buyer)(run)
    outputs = [
        item["output"] for item in run.resources.model.calls[-1].input if item.get("type") == "function_call_output"
    ]
    assert sorted(outputs) == ["bought 0", "too dear"]
    assert "signal not understood" in caplog.text


async def test_a_handler_that_decides_itself_gets_the_interruptions():
    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> int:
        result = await DurableRunner.run(buyer(run.resources), "go", run_config=QUIET, receive_approvals=False)
        return len(result.interruptions)

    assert await handler(testing.AsyncRun(purchase_script())) == 2


# -- events


async def test_a_reader_has_each_event_once_whatever_cut_the_run_is_killed_at():
    handler = durable(looker, emit_events=True)
    whole = testing.AsyncRun(long_script())
    assert await handler(whole) == "done"
    assert "response.output_text.delta" in {event["type"] for event in whole.emitted}
    for number in range(1, len(whole._memory.cuts) + 1):
        run = testing.AsyncRun(long_script(), backing=MemoryBacking(crash_at=number))
        with pytest.raises(Crash):
            await handler(run)
        after = run.after_crash()
        await handler(after)
        assert [event["type"] for event in after.emitted] == [event["type"] for event in whole.emitted]


# -- sessions


def chat_script() -> World:
    return World([[assistant_message("first")], asks(1), [assistant_message("second")]])


def texts(items: list[Any]) -> list[str]:
    return [item["content"] if isinstance(item.get("content"), str) else item.get("type", "?") for item in items]


def test_a_session_in_the_run_has_each_item_once_after_every_crash():
    @Registry().handler
    async def chat(run: AsyncRun[Any]) -> list[str]:
        session = RunSession()
        for question in ("one", "two"):
            await DurableRunner.run(looker(run.resources), question, session=session, run_config=QUIET)
        return texts(list(run.messages))

    done = testing.crash_matrix(chat.inputs(), resources=chat_script, effects=unique)
    assert done.result.count("one") == done.result.count("two") == 1
    assert len(done.result) == 2 + 1 + 2 * TOOLS + 1


def test_a_session_in_turns_of_a_loop_has_each_item_once_after_every_crash():
    @Registry().handler
    async def chat(run: AsyncRun[Any]) -> list[str]:
        async for turn in run.loop(2):
            await DurableRunner.run(looker(run.resources), f"question {turn}", session=RunSession(), run_config=QUIET)
        return texts(list(run.messages))

    done = testing.crash_matrix(chat.inputs(), resources=chat_script, effects=unique)
    assert done.result.count("question 0") == done.result.count("question 1") == 1


def test_a_session_elsewhere_has_each_item_once_after_every_crash():
    opened: list[SQLiteSession] = []

    class Remembering(World):
        def __init__(self) -> None:
            super().__init__([[assistant_message("first")], asks(1), [assistant_message("second")]])
            self.session = SQLiteSession("chat")
            opened.append(self.session)

    def items(world: Remembering) -> list[str]:
        return texts(asyncio.run(world.session.get_items()))

    @Registry().handler
    async def chat(run: AsyncRun[Any]) -> str:
        last: Any = None
        for question in ("one", "two"):
            last = await DurableRunner.run(
                looker(run.resources), question, session=run.resources.session, run_config=QUIET
            )
        return str(last.final_output)

    done = testing.crash_matrix(chat.inputs(), resources=Remembering, effects=items)
    for session in opened:
        session.close()  # from 3.13 on, Python warns of a connection that is not closed
    assert done.effects.count("one") == done.effects.count("two") == 1


async def test_a_session_in_the_run_pops_clears_and_limits():
    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> list[Any]:
        session = RunSession()
        await session.add_items([{"role": "user", "content": str(n)} for n in range(4)])
        popped, last = await session.pop_item(), await session.get_items(limit=2)
        await session.clear_session()
        return [popped, last, await session.get_items(), await session.pop_item(), session.session_id]

    popped, last, rest, none, id = await handler(testing.AsyncRun())
    assert (popped["content"], [item["content"] for item in last], rest, none, id) == (
        "3",
        ["1", "2"],
        [],
        None,
        "test-00",
    )


# -- agents as tools


def manager(world: World) -> Agent[Any]:
    helper = Agent[Any]("helper", model=world.model, tools=[look])
    return Agent("manager", model=world.model, tools=[helper.as_tool("ask", "Ask the helper.")])


def test_an_agent_as_a_tool_killed_at_any_cut_repeats_no_saved_call():
    def script() -> World:
        inner: list[Any] = [asks(turn, count=1) for turn in (1, 2)]
        ask = [function_call("ask", {"input": "look twice"}, call_id="a")]
        return World([ask, *inner, [assistant_message("inside")], [assistant_message("outside")]])

    done = testing.crash_matrix(durable(manager).inputs(), resources=script, effects=counted)
    assert (done.cuts, done.result, done.effects[0]) == (7, "outside", 5)


async def test_two_calls_of_one_agent_as_a_tool_do_not_mix():
    seen: list[str] = []

    class ByInput(ScriptedModel):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("input", args[1] if len(args) > 1 else None)
            text = given if isinstance(given, str) else str(given)
            seen.append(text)
            for word in ("left", "right"):
                if word in text and "manager" not in text:
                    return await ScriptedModel([[assistant_message(f"{word} done")]]).get_response(*args, **kwargs)
            return await super().get_response(*args, **kwargs)

    def script() -> World:
        world = World([])
        ask = [function_call("ask", {"input": word}, call_id=word) for word in ("left", "right")]
        world.model = ByInput([ask, [assistant_message("both")]])
        seen.clear()
        return world

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> list[str]:
        result = await DurableRunner.run(manager(run.resources), "manager", run_config=QUIET)
        return [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]

    done = testing.crash_matrix(handler.inputs(), resources=script, effects=lambda world: len(set(seen)))
    assert done.result == ["left done", "right done"]


def test_an_agent_as_a_tool_waits_for_an_approval_over_every_crash():
    def make(world: World) -> Agent[Any]:
        helper = Agent[Any]("helper", model=world.model, tools=[buy])
        return Agent("manager", model=world.model, tools=[helper.as_tool("ask", "Ask the helper.")])

    def script() -> World:
        ask, wish = [function_call("ask", {"input": "tea"}, call_id="a")], [function_call("buy", {"x": 1}, call_id="b")]
        return World([ask, wish, [assistant_message("inside")], [assistant_message("outside")]])

    done = testing.crash_matrix(
        durable(make).inputs(), resources=script, effects=counted, signals=[("approval.b", True)]
    )
    assert (done.result, done.effects) == ("outside", (4, Counter({"buy b": 1})))


# -- streams


def streaming(make: Callable[[World], Agent[Any]], **options: Any) -> Any:
    """Return a handler that streams an agent of the world's model, and returns the text of the completed messages."""

    async def handler(run: AsyncRun[Any]) -> list[str]:
        result = DurableRunner.run_streamed(make(run.resources), "go", run_config=QUIET, **options)
        kinds = [event.item.type async for event in result.stream_events() if event.type == "run_item_stream_event"]
        return [*kinds, str(result.final_output)]

    return Registry().handler(kind="stream")(handler)


def test_a_streamed_agent_killed_at_any_cut_repeats_no_saved_call():
    done = testing.crash_matrix(streaming(looker).inputs(), resources=long_script, effects=unique)
    assert done.cuts == TURNS * (TOOLS + 1) + 1
    assert (done.result[-1], done.result.count("tool_call_output_item")) == ("done", TURNS * TOOLS)
    testing.drain_matrix(streaming(looker).inputs(), resources=long_script, effects=counted)


async def test_a_streamed_agent_emits_the_events_that_its_handler_gets():
    run = testing.AsyncRun(World([[assistant_message("hello")]]))
    got: list[str] = []

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        result = DurableRunner.run_streamed(looker(run.resources), "go", run_config=QUIET)
        got.extend([event.data.type async for event in result.stream_events() if event.type == "raw_response_event"])
        return str(result.final_output)

    assert await handler(run) == "hello"
    emitted = [event["type"] for event in run.emitted]
    assert "response.output_text.delta" in emitted
    assert got == [*emitted, "response.completed"]
    quiet_run = testing.AsyncRun(World([[assistant_message("hello")]]))
    await streaming(looker, emit_events=False)(quiet_run)
    assert quiet_run.emitted == []


def test_a_streamed_agent_receives_approvals_over_every_crash_and_every_suspension():
    done = testing.crash_matrix(
        streaming(buyer).inputs(), resources=purchase_script, effects=counted,
        signals=[("approval.c0-0", True), ("approval.c0-1", {"approved": False, "message": "too dear"})],
    )  # fmt: skip
    assert (done.result[-1], done.waits) == ("finished", 2)
    assert done.effects[1] == Counter({"buy c0-0": 1})
    assert done.result.count("tool_call_output_item") == 2


async def test_the_result_of_a_streamed_agent_is_that_of_the_agent_after_its_approvals():
    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> tuple[Any, ...]:
        result = DurableRunner.run_streamed(buyer(run.resources), "go", run_config=QUIET)
        kinds = [event.type async for event in result.stream_events()]
        gc.collect()
        return result.final_output, result.is_complete, result.interruptions, result.last_agent.name, len(kinds) > 4

    run = testing.AsyncRun(purchase_script())
    for call in ("c0-0", "c0-1"):
        run.send(f"approval.{call}", True)
    assert await handler(run) == ("finished", True, [], "buyer", True)
    *_, note = (event for event in run.emitted if isinstance(event, Note))
    assert "approval of tool 'buy' on topic approval.c0-0" in note.text
    kinds = [event["type"] for event in run.emitted if isinstance(event, dict)]
    assert kinds.count("response.output_item.done") == 3


async def test_a_handler_that_decides_itself_gets_the_interruptions_of_a_stream():
    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        options: Any = {"run_config": QUIET, "receive_approvals": False}
        agent = buyer(run.resources)
        result = DurableRunner.run_streamed(agent, "go", **options)
        assert [event async for event in result.stream_events()]
        state = result.to_state()
        for item in result.interruptions:
            state.approve(item)
        result = DurableRunner.run_streamed(agent, state, **options)
        assert [event async for event in result.stream_events()]
        return str(result.final_output)

    run = testing.AsyncRun(purchase_script())
    assert await handler(run) == "finished"
    assert run.resources.journal.count("buy c0-0") == 1


async def test_a_stream_that_is_cancelled_does_not_wait_for_approvals():
    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> int:
        result = DurableRunner.run_streamed(buyer(run.resources), "go", run_config=QUIET)
        async for _ in result.stream_events():
            result.cancel(mode="after_turn")
        return len(result.interruptions)

    assert await handler(testing.AsyncRun(purchase_script())) == 2


async def test_a_stream_that_is_not_read_to_its_end_leaves_no_call_behind():
    class Endless(ScriptedModel):
        ended = False

        async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                async for event in ScriptedModel([[assistant_message("hello")]]).stream_response(*args, **kwargs):
                    yield event
                    if event.type == "response.output_text.delta":
                        await asyncio.Event().wait()
            finally:
                self.ended = True

    world = World([])
    world.model = Endless([])

    @Registry().handler
    async def handler(run: AsyncRun[Any]) -> str:
        result = DurableRunner.run_streamed(looker(run.resources), "go", run_config=QUIET)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                result.cancel()
        return "left"

    assert await handler(testing.AsyncRun(world)) == "left"
    assert world.model.ended


async def test_outside_of_a_handler_a_stream_of_the_sdk_runs():
    result = DurableRunner.run_streamed(looker(World([[assistant_message("plain")]])), "go", run_config=QUIET)
    assert [event async for event in result.stream_events()]
    assert result.final_output == "plain"


def test_a_session_in_the_run_is_refused_outside_of_a_handler():
    with pytest.raises(Refused, match="inside a handler"):
        RunSession()


def test_the_sdk_itself_runs_the_scripts_of_these_tests():
    world = long_script()

    async def plain() -> Any:
        token = testing.AsyncRun(world)

        @Registry().handler
        async def handler(run: AsyncRun[Any]) -> str:
            return str((await Runner.run(looker(world), "go", run_config=QUIET)).final_output)

        return await handler(token)

    assert asyncio.run(plain()) == "done"


# -- MCP


class FakeServer(MCPServer):
    """An MCP server in the process of the test, which records its calls."""

    @property
    def name(self) -> str:
        return "fake"

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Any]:
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
        return [McpTool(name="look", input_schema=schema)]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        journal(f"mcp {arguments['x']}")
        return CallToolResult(content=[TextContent(type="text", text=f"seen {arguments['x']}")])

    async def list_prompts(self) -> Any: ...
    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


def test_tools_of_an_mcp_server_are_called_once_whatever_cut_the_run_is_killed_at():
    def make(world: World) -> Agent[Any]:
        return Agent("remote", model=world.model, mcp_servers=[FakeServer()])

    def script() -> World:
        return World([asks(0, count=1), asks(1, count=1), [assistant_message("done")]])

    done = testing.crash_matrix(durable(make).inputs(), resources=script, effects=counted)
    assert done.effects == (3, Counter({"mcp 0": 1, "mcp 1": 1}))


# ---- budgets -------------------------------------------------------------------------------------------------------------


async def test_model_calls_are_counted_for_the_budget_of_the_run():
    def budgeted(budget: Budget | None) -> Any:
        async def handler(run: AsyncRun[Any]) -> list[Any]:
            await DurableRunner.run(looker(run.resources), "go", run_config=QUIET)
            return [run.spent.tokens, run.spent.requests]

        return Registry().handler(kind="agent", budget=budget)(handler)

    def script() -> World:
        world = long_script()
        vars(world.model)["model"] = "gpt-4o"  # the attribute of the models of the SDK
        return world

    tokens, requests = await budgeted(Budget(requests=100))(testing.AsyncRun(script()))
    assert requests == TURNS + 1
    assert await budgeted(None)(testing.AsyncRun(script())) == [0, 0]
    assert await budgeted(Budget(usd=1))(testing.AsyncRun(script())) == [tokens, requests]
    testing.crash_matrix(budgeted(Budget(requests=100)).inputs(), resources=script, effects=unique)
    world = script()
    with pytest.raises(BudgetExceeded):
        await budgeted(Budget(requests=1))(testing.AsyncRun(world))
    assert len(world.model.calls) == 1


class NamedModel(ScriptedModel):
    """A scripted model with the attribute of the SDK's models. Its streamed responses report another name."""

    def __init__(self, name: str, reported: str = "") -> None:
        super().__init__(
            [[assistant_message("done")]], default_usage=Usage(requests=1, input_tokens=1_000, output_tokens=100)
        )
        self.model, self._reported = name, reported

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for event in super().stream_response(*args, **kwargs):
            if isinstance(event, ResponseCompletedEvent):
                event.response.model = self._reported
            yield event


async def cost_of(model: ScriptedModel, budget: Budget | None, **options: Any) -> list[Any]:
    """Run an agent of a model in a run with a budget, and return what the run has spent."""

    @Registry().handler(budget=budget)
    async def handler(run: AsyncRun[Any]) -> list[Any]:
        await DurableRunner.run(Agent("spender", model=model), "go", run_config=QUIET, **options)
        return [run.spent.usd, run.spent.tokens, run.spent.requests]

    return await handler(testing.AsyncRun())


async def test_model_without_a_known_price_is_refused_before_it_is_called_if_the_budget_limits_dollars():
    for model in (NamedModel("nobody-sells-this"), ScriptedModel([[assistant_message("done")]])):
        for options in ({}, {"emit_events": True}):
            with pytest.raises(UnknownPrice, match=r"no request was sent.*limit tokens or requests"):
                await cost_of(model, Budget(usd=1), **options)
        assert model.calls == ()
        assert (await cost_of(model, Budget(requests=9)))[2] == 1


async def test_streamed_agent_of_a_model_without_a_known_price_ends_with_the_error_of_the_price():
    model = NamedModel("nobody-sells-this")

    @Registry().handler(budget=Budget(usd=1))
    async def handler(run: AsyncRun[Any]) -> None:
        result = DurableRunner.run_streamed(Agent("spender", model=model), "go", run_config=QUIET)
        async for _ in result.stream_events():
            pass

    with pytest.raises(UnknownPrice, match="nobody-sells-this"):
        await handler(testing.AsyncRun())
    assert model.calls == ()


async def test_price_of_the_name_that_a_stream_reports_goes_before_that_of_the_requested_name():
    budget = Budget(usd=1)
    dear, cheap = await cost_of(NamedModel("gpt-4o"), budget), await cost_of(NamedModel("gpt-4o-mini"), budget)
    assert dear[0] > cheap[0] > 0
    for reported, cost in {"gpt-4o-mini": cheap, "nobody-sells-this": dear, "": dear}.items():
        assert await cost_of(NamedModel("gpt-4o", reported), budget, emit_events=True) == cost


@pytest.mark.parametrize("options", [{}, {"emit_events": True}], ids=["whole", "streamed"])
async def test_price_of_a_model_is_that_of_its_provider(options: Any):
    async def dollars(name: str, reported: str = "nobody-sells-this", **attributes: Any) -> float:
        model = NamedModel(name, reported)
        vars(model).update(attributes)
        return float((await cost_of(model, Budget(usd=1), **options))[0])

    def client(url: str) -> dict[str, Any]:  # the attribute of the SDK's own models
        return {"_client": AsyncOpenAI(base_url=url, api_key="none")}

    request: Any = {"model": "gpt-oss-120b", "input_tokens": 1_000, "output_tokens": 100}
    there, elsewhere = (float(price(provider=provider, **request)) for provider in ("cerebras", "openai"))
    assert there > elsewhere
    for cost, name, attributes in (
        (there, "gpt-oss-120b", client("https://api.cerebras.ai/v1")),
        (elsewhere, "gpt-oss-120b", client("https://api.openai.com/v1")),
        (elsewhere, "gpt-oss-120b", client("http://localhost:8000")),
        (there, "cerebras/gpt-oss-120b", {"base_url": None}),  # names and attributes of LiteLLM and any-llm
        (there, "cerebras/gpt-oss-120b", {"base_url": "http://localhost:8000"}),
        (there, "gpt-oss-120b", {"base_url": "https://api.cerebras.ai/v1"}),
    ):
        for reported in ("", name, "nobody-sells-this"):
            assert await dollars(name, reported, **attributes) == pytest.approx(cost, abs=1e-5), (name, attributes)
    with pytest.raises(UnknownPrice):
        await dollars("nobody/gpt-oss-120b")


async def test_url_of_a_model_is_asked_for_only_if_the_budget_limits_dollars_and_may_raise_any_error():
    class Nowhere(NamedModel):
        @property
        def base_url(self) -> str:
            asked.append(self.model)
            raise NotImplementedError

    asked: list[str] = []
    for budget, spent in {None: [0, 0, 0], Budget(tokens=10_000): [0, 1_100, 1]}.items():
        assert await cost_of(Nowhere("gpt-4o"), budget) == spent
    assert asked == []
    assert await cost_of(Nowhere("gpt-4o"), Budget(usd=1)) == await cost_of(NamedModel("gpt-4o"), Budget(usd=1))
    assert asked == ["gpt-4o"]


async def test_price_of_a_model_behind_a_gateway_is_that_of_the_provider_after_the_gateway():
    budget = Budget(usd=1)
    direct = await cost_of(NamedModel("anthropic/claude-sonnet-4-5"), budget)
    assert await cost_of(NamedModel("openrouter/anthropic/claude-sonnet-4-5"), budget) == direct
    assert await cost_of(NamedModel("openrouter/anthropic/claude-sonnet-4.5"), budget) == direct


@pytest.mark.parametrize(
    "name",
    [
        "ollama/gpt-4o",
        "local/gpt-4o",
        "local/openai/gpt-4o",
        "openrouter/ollama/gpt-4o",
        "openrouter/gpt-4o",
        "openrouter/",
    ],
)
async def test_model_of_a_provider_without_prices_does_not_get_the_price_of_another_model_of_its_name(name: str):
    with pytest.raises(UnknownPrice, match=f"does not know model '{name}'"):
        await cost_of(NamedModel(name), Budget(usd=1))


async def test_streamed_agent_whose_budget_is_spent_ends_with_the_error_of_the_budget():
    @Registry().handler(budget=Budget(requests=1))
    async def agent(run: AsyncRun[Any]) -> None:
        result = DurableRunner.run_streamed(looker(run.resources), "go", run_config=QUIET)
        async for _ in result.stream_events():
            pass

    with pytest.raises(BudgetExceeded):
        await agent(testing.AsyncRun(long_script()))
