"""Run agents of the OpenAI Agents SDK inside the handler of a run."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from agents import Agent, Model, RunConfig, Runner, RunResult, RunState, Session, TResponseInputItem
from agents.items import ToolApprovalItem

from workers.handlers.async_run import AsyncRun
from workers.handlers.draft import current_phase
from workers.integrations.openai_agents.copies import Copies
from workers.integrations.openai_agents.model import AgentCall, DurableModel, DurableProvider
from workers.integrations.openai_agents.session import DurableSession, RunSession
from workers.integrations.steps import async_run, number_agent, topic_of

logger = logging.getLogger(__name__)

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
        """Run an agent inside a handler. Outside of a handler do the same as `Runner.run`.

        A resumed run gets the saved responses and outputs, so it repeats only the calls that were under way when the process ended.
        Tools of one response run at the same time. Agents to which the agent hands off are durable too.

        Args:
            agent: The agent with which the run starts.
            input: The input.
            emit_events: True to stream the responses, and to emit their events with `run.emit`.
            receive_approvals: True to wait for the approval of a tool call with a signal on the topic `approval.<call id>`. False
                to return a result with `interruptions`.
            session: The session. Its changes are made once. See `RunSession` for a session that is part of the run.
            run_config: The configuration, as for `Runner.run`.
            **options: Options of `Runner.run`: context, max_turns, hooks, error_handlers, previous_response_id, conversation_id.

        Returns:
            The result, as `Runner.run` returns it. Its agents are copies of the given ones.

        Raises:
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            Refused: If the handler is not async, or the call has to wait outside of the handler's own task.
        """
        run = async_run(FRAMEWORK)
        if run is None:
            return await Runner.run(agent, input, session=session, run_config=run_config, **options)
        call = AgentCall(run, f"{agent.name} {number_agent(run, agent.name)}", emit_events)
        start = Copies(call).of(agent)
        options |= {"run_config": _durable_config(run_config or RunConfig(), call)}
        if session is not None:
            options["session"] = (
                session if isinstance(session, RunSession) else DurableSession(session, run, call.number)
            )
        result = await Runner.run(start, input, **options)
        while result.interruptions and receive_approvals and not current_phase.get():
            state = result.to_state()
            await _decide(run, state, result.interruptions)
            result = await Runner.run(start, state, **options)
        return result


def _durable_config(config: RunConfig, call: AgentCall) -> RunConfig:
    model = DurableModel(config.model, call) if isinstance(config.model, Model) else config.model
    return dataclasses.replace(config, model=model, model_provider=DurableProvider(config.model_provider, call))


async def _decide(run: AsyncRun[Any], state: RunState[Any, Any], items: list[ToolApprovalItem]) -> None:
    """Wait for the decision about each tool call, and record it in the state."""
    topics = {topic_of("approval", _call_id(item)): item for item in items}
    waits = (f"the approval of tool {item.name!r} on topic {topic}" for topic, item in topics.items())
    run.note("waits for " + ", ".join(waits))
    for topic, item in topics.items():
        approved, message = await _receive_decision(run, topic)
        if approved:
            state.approve(item)
        else:
            state.reject(item, rejection_message=message)


async def _receive_decision(run: AsyncRun[Any], topic: str) -> tuple[bool, str | None]:
    while True:
        payload = (await run.receive(topic)).payload
        given = payload if isinstance(payload, dict) else {"approved": payload}
        if isinstance(given.get("approved"), bool):
            return given["approved"], given.get("message")
        logger.warning(
            "signal not understood: run %s got %.200r on topic %s; send true, false, or a dict with `approved`",
            run.id, payload, topic, extra={"run": run.id},
        )  # fmt: skip


def _call_id(item: ToolApprovalItem) -> str:
    raw: Any = item.raw_item
    fields = raw if isinstance(raw, dict) else vars(raw)
    return str(fields.get("call_id") or fields.get("id"))
