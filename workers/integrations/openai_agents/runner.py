"""Run agents of the OpenAI Agents SDK inside the handler of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

from agents import Agent, Model, RunConfig, Runner, RunResult, RunResultStreaming, RunState, Session, TResponseInputItem

from workers.handlers.async_run import AsyncRun
from workers.handlers.checkpoint.draft import current_phase
from workers.integrations.openai_agents.approvals import receive_decisions
from workers.integrations.openai_agents.copies import Copies
from workers.integrations.openai_agents.model import AgentCall, durable_model, durable_provider
from workers.integrations.openai_agents.nested import install
from workers.integrations.openai_agents.session import DurableSession, RunSession
from workers.integrations.openai_agents.stream import DurableStream
from workers.integrations.steps import async_run, budget_errors, number_agent

FRAMEWORK = "the OpenAI Agents SDK"


class DurableRunner:
    """Run agents so that each model call and each tool call is a phase of the current run."""

    @classmethod
    async def run(
        cls,
        agent: Agent[Any],
        input: str | list[TResponseInputItem],
        *,
        emit_events: bool = False,
        receive_approvals: bool = True,
        session: Session | None = None,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an agent inside a handler, and return its result. Outside of a handler, do the same as `Runner.run`.

        A resumed run gets the saved responses and outputs, so it repeats only the calls that were under way when the process ended.
        Tools of one response run at the same time. Agents to which the agent hands off are durable too.

        Args:
            agent: The agent with which the run starts.
            input: The input.
            emit_events: True to stream the responses, and to emit their events with `run.emit`.
            receive_approvals: True to wait for the approval of a tool call with a signal on the topic `approval.<call id>`. False
                to return a result with `interruptions`.
            session: The session. Each change of it is made once. See `RunSession` for a session that is part of the run.
            run_config: The configuration, as for `Runner.run`.
            **options: Options of `Runner.run`: context, max_turns, hooks, error_handlers, previous_response_id, conversation_id.

        Returns:
            The result, as `Runner.run` returns it. Its agents are copies of the given ones.

        Raises:
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            BudgetExceeded: If the budget of the run is spent.
            Refused: If the handler is not async, or the call has to wait outside of the handler's own task.
        """
        run = async_run(FRAMEWORK)
        options |= {"session": session, "run_config": run_config}
        if run is None:
            return await Runner.run(agent, input, **options)
        start = _prepare(_call_of(run, agent, emit_events), agent, options)
        with budget_errors():
            result = await Runner.run(start, input, **options)
            while result.interruptions and receive_approvals and not current_phase.get():
                state = result.to_state()
                await receive_decisions(run, state, result.interruptions)
                result = await Runner.run(start, state, **options)
        return result

    @classmethod
    def run_streamed(
        cls,
        agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any, Any],
        *,
        emit_events: bool = True,
        receive_approvals: bool = True,
        session: Session | None = None,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> RunResultStreaming:
        """Run an agent inside a handler, and stream its events to the handler.

        Outside of a handler, do the same as `Runner.run_streamed`.

        Read `stream_events()` of the result to its end: the run works while its events are read, and a stop of the run is raised
        there. A resumed run gets each saved response as one completed event, without its deltas.

        Args:
            agent: The agent with which the run starts.
            input: The input, or the state of a result with `interruptions`.
            emit_events: False to emit no events with `run.emit`. By default the readers of the run get them while a response is
                streamed.
            receive_approvals: True to wait for the approval of a tool call with a signal, as `run` does. The run waits while the
                handler reads the events, which continue after the decision. False to end the events, with `interruptions` in
                the result.
            session: The session, as for `run`.
            run_config: The configuration, as for `Runner.run_streamed`.
            **options: Options of `Runner.run_streamed`.

        Returns:
            The result, as `Runner.run_streamed` returns it. After an approval it is the result of the continued agent.

        Raises:
            Refused: If the handler is not async.
        """
        run = async_run(FRAMEWORK)
        options |= {"session": session, "run_config": run_config}
        if run is None:
            return Runner.run_streamed(agent, input, **options)
        start = _prepare(_call_of(run, agent, emit_events), agent, options)
        result = Runner.run_streamed(start, input, **options)
        if not receive_approvals:
            return result
        return DurableStream.of(result, run, lambda state: Runner.run_streamed(start, state, **options))


def _call_of(run: AsyncRun[Any], agent: Agent[Any], emits: bool) -> AgentCall:
    install(_prepare)
    return AgentCall(run, f"{agent.name} {number_agent(run, agent.name)}", emits)


def _prepare(call: AgentCall, agent: Agent[Any], options: dict[str, Any]) -> Agent[Any]:
    """Make the options of a call durable, and return the durable copy of its agent."""
    config = options.get("run_config") or RunConfig()
    model = durable_model(config.model, call) if isinstance(config.model, Model) else config.model
    provider = durable_provider(config.model_provider, call)
    options["run_config"] = dataclasses.replace(config, model=model, model_provider=provider)
    session = options.get("session")
    if session is not None and not isinstance(session, (RunSession, DurableSession)):
        options["session"] = DurableSession(session, call.run, call.number)
    return Copies(call).of(agent)
