"""Copies of agents whose models and tools are durable. The user's agents stay as they are."""

from __future__ import annotations

import copy
from typing import Any

from agents import Agent, FunctionTool, Handoff, Model, RunContextWrapper, Tool, ToolOutputImage, ToolOutputText
from agents.tool import ToolOutputFileContent
from agents.tool_context import ToolContext

from coordinator.encoding.codec import encode
from coordinator.errors import NotPlain, TooLarge
from workers.integrations.openai_agents.model import AgentCall, durable_model
from workers.integrations.openai_agents.nested import nested_call, nested_runs_are_durable
from workers.integrations.steps import call_step, number_agent

_OUTPUTS: dict[str, type[Any]] = {"text": ToolOutputText, "image": ToolOutputImage, "file": ToolOutputFileContent}


class Copies:
    """Make durable copies of agents. Each agent is copied once, so that agents can hand off to each other in a cycle.

    Args:
        call: The call of the runner.
    """

    def __init__(self, call: AgentCall) -> None:
        self._call = call
        # By the id() of an agent: the agent and its copy. The reference to the agent keeps Python from using its id() again.
        self._made: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def of(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the durable copy of an agent. An agent that is a durable copy itself is returned unchanged."""
        if id(agent) in self._made:
            return self._made[id(agent)][1]
        made = copy.copy(agent)
        made.__class__ = _durable_class(type(agent), self._call)
        self._made[id(agent)] = self._made[id(made)] = agent, made
        if isinstance(agent.model, Model):
            made.model = durable_model(agent.model, self._call)
        made.handoffs = [self._handoff(target) for target in agent.handoffs]
        return made

    def _handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(target, Agent):
            return self.of(target)
        invoke, made = target.on_invoke_handoff, copy.copy(target)

        async def invoke_durable(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
            return self.of(await invoke(context, arguments))

        made.on_invoke_handoff = invoke_durable
        return made


def _durable_class(base: type[Agent[Any]], call: AgentCall) -> type[Agent[Any]]:
    """Return a subclass of an agent class whose tools are durable.

    A subclass is needed because other code may clone an agent, as Sentry does, and a clone keeps only its class.
    """

    async def get_all_tools(self: Agent[Any], run_context: RunContextWrapper[Any]) -> list[Tool]:
        tools = await base.get_all_tools(self, run_context)  # tools of MCP servers are among them
        return [_durable_tool(tool, call) if isinstance(tool, FunctionTool) else tool for tool in tools]

    return type(base.__name__, (base,), {"get_all_tools": get_all_tools, "__module__": base.__module__})


def _durable_tool(tool: FunctionTool, call: AgentCall) -> FunctionTool:
    invoke, made = tool.on_invoke_tool, copy.copy(tool)

    async def invoke_durable(context: ToolContext[Any], arguments: str) -> Any:
        step = f"tool {call.number} {tool.name} {context.tool_call_id}"
        if tool._is_agent_tool and nested_runs_are_durable():
            # Its model calls and its tools are phases. The call itself is not a phase, because it may wait for approvals.
            with nested_call(AgentCall(call.run, f"{step} {number_agent(call.run, step)}", call.emits)):
                return await invoke(context, arguments)

        async def invoke_once() -> Any:
            return _stored(await invoke(context, arguments))

        return _read(await call_step(call.run, step, invoke_once))

    made.on_invoke_tool = invoke_durable
    return made


def _stored(output: Any) -> list[Any]:
    """Return the output of a tool as plain data. An output of an unknown type becomes text, as the model gets it."""
    for kind, of in _OUTPUTS.items():
        if isinstance(output, of):
            return [kind, output.model_dump(mode="json")]
    try:
        encode(output, "the output of a tool")
    except NotPlain:
        return ["plain", str(output)]
    except TooLarge:  # the phase refuses it with the name of the tool
        return ["plain", output]
    return ["plain", output]


def _read(stored: list[Any]) -> Any:
    kind, output = stored
    return _OUTPUTS[kind](**output) if kind in _OUTPUTS else output
