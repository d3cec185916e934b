"""Agents that are tools of another agent (`agent.as_tool`): the SDK runs them itself, with its default runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from agents import Agent, RunResult, RunResultStreaming
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

from workers.integrations.openai_agents.model import AgentCall

# Makes the agent and the options of a call durable.
Prepare = Callable[[AgentCall, Agent[Any], dict[str, Any]], Agent[Any]]

_nested: ContextVar[AgentCall | None] = ContextVar("nested_call", default=None)


class NestedRunner(AgentRunner):
    """The default runner of the SDK, which makes the agents inside tools durable. It changes no other call.

    Args:
        inner: The previous default runner.
        prepare: Makes the agent and the options of a call durable.
    """

    def __init__(self, inner: AgentRunner, prepare: Prepare) -> None:
        self._inner, self._prepare = inner, prepare

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        """Run an agent, and return its result. An agent inside a tool is made durable first."""
        with self._prepared(starting_agent, options) as agent:
            return await self._inner.run(agent, input, **options)

    def run_sync(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        """Run an agent in a thread without an event loop. There is no current run in such a thread, so nothing is made durable."""
        return self._inner.run_sync(starting_agent, input, **options)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResultStreaming:
        """Start a streamed run of an agent, and return its result. An agent inside a tool is made durable first."""
        with self._prepared(starting_agent, options) as agent:
            return self._inner.run_streamed(agent, input, **options)

    @contextmanager
    def _prepared(self, agent: Agent[Any], options: dict[str, Any]) -> Iterator[Agent[Any]]:
        call = _nested.get()
        if call is None:
            yield agent
            return
        token = _nested.set(None)  # the tools of the nested agent set it again for their own agents
        try:
            yield self._prepare(call, agent, options)
        finally:
            _nested.reset(token)


def install(prepare: Prepare) -> None:
    """Replace the default runner of the SDK with a NestedRunner, unless it is a NestedRunner already."""
    if not nested_runs_are_durable():
        set_default_agent_runner(NestedRunner(get_default_agent_runner(), prepare))


def nested_runs_are_durable() -> bool:
    """Return False if a program has replaced the default runner of the SDK after `install`."""
    return isinstance(get_default_agent_runner(), NestedRunner)


@contextmanager
def nested_call(call: AgentCall) -> Iterator[None]:
    """Make a nested agent durable: the agent that runs while the context is open.

    Args:
        call: The call of the nested agent. The names of its phases contain the number of this call.
    """
    token = _nested.set(call)
    try:
        yield
    finally:
        _nested.reset(token)
