"""Make agents of pydantic-ai durable: each model request and each tool call is a phase of the current run.

    agent = Agent("openai:gpt-5", name="research", capabilities=[RunDurability()])

    @runs.handler
    async def research(run: AsyncRun, question: str) -> str:
        return (await agent.run(question)).output

Outside of a handler the capability has no effect. The extra `pydantic-ai` installs the framework.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2s
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    EventStreamHandlerParams,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import AgentStreamEvent, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.toolsets import ToolsetTool

from coordinator.clock import SystemClock
from coordinator.errors import NotPlain
from workers.handlers.async_run import AsyncRun
from workers.handlers.checkpoint.draft import current_phase
from workers.handlers.facts import Stopped
from workers.handlers.operations.prices import ModelName, ModelUsage
from workers.integrations.steps import (
    async_run,
    call_step,
    check_prices,
    count_request,
    emit_event,
    note_waits,
    number_agent,
    receive,
    remember_caller,
    topic_of,
)

logger = logging.getLogger(__name__)

FRAMEWORK = "pydantic-ai"
_EVENT: TypeAdapter[AgentStreamEvent] = TypeAdapter(AgentStreamEvent)
TOOL_KEY = "run_coordinator"  # the key of a tool's metadata; False calls the tool outside of a phase


@dataclass(init=False)
class RunDurability(BaseDurabilityCapability[AgentDepsT]):
    """The capability that makes an agent durable inside the handler of a run.

    Each model request, each call of a function tool, each request to an MCP server and each resolution of a dynamic toolset is a
    phase. A resumed run gets the saved outputs, so it repeats only the operations that were under way when the process ended. Tool
    calls of one model response run at the same time. A tool that starts another durable agent saves the phases of that agent too.
    If the run has a budget, each model request is counted.

    Outside of a handler the capability does nothing.

    Args:
        models: Models to which a run can switch by name with `agent.run(model="name")`.
        event_stream_handler: Gets the events of the model and of the tools. A resumed run does not repeat the events of saved
            operations.
        name: The name of the agent in the names of the phases. By default the agent's own name.
        emit_events: True to emit the events of the model's stream, and the beginning and the end of each tool call, with
            `run.emit`. The model must be able to stream.
        receive_deferred: True to wait for deferred tool calls with `run.receive`: for the approval of a call on the topic
            `approval.<tool call id>`, and for the result of an external call on the topic `result.<tool call id>`. False to return
            `DeferredToolRequests` as the output of the agent. By default True, unless the agent's `output_type` names
            `DeferredToolRequests`.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="run-coordinator",
        durable_unit_noun="phase",
        durable_container_noun="handler",
        codec=JSON_CODEC,
        serialization_failure=lambda error: NotPlain(str(error)),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=TOOL_KEY,
        cancellation_error_types=(Stopped,),
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        emit_events: bool = False,
        receive_deferred: bool | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._emit_events, self._receive_deferred = emit_events, receive_deferred

    @property
    def in_durable_context(self) -> bool:
        """Return True if a handler is executing."""
        return async_run(FRAMEWORK) is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[None]:
        """Return the backend that executes the agent's operations as phases."""
        return _PhaseBackend(self.name, self.default_model_id, self._emit_events)

    def get_default_run_id(self) -> str | None:
        """Return the id of a call of the agent, which is the same in every attempt of the run. Return None outside of a handler."""
        run = async_run(FRAMEWORK)
        if run is None:
            return None
        run_id = f"{run.id}:{self.name}:{number_agent(run, self.name)}"
        remember_caller(run, run_id)
        return run_id

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of a conversation that begins with a call of the agent, or None outside of a handler."""
        run = async_run(FRAMEWORK)
        if run is None:
            return None
        remember_caller(run, run_id)
        return conversation_id_from_run_id(run_id)

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return the time at which a call of the agent first started, or None outside of a handler.

        The `timeout` of the call counts from this time.
        """
        run = async_run(FRAMEWORK)
        if run is None:
            return None

        async def now() -> float:
            return SystemClock().now()

        started = await call_step(run, f"{self.name}__run_start_time {_short_id(run, self.name, run_id)}", now)
        return datetime.fromtimestamp(started, UTC)

    def _effective_event_stream_handler(self) -> EventStreamHandler[AgentDepsT] | None:
        return self._emit_stream if self._emit_events and self.in_durable_context else self._event_stream_handler

    async def _emit_stream(self, ctx: RunContext[AgentDepsT], stream: AsyncIterable[AgentStreamEvent]) -> None:
        """Emit the events of a stream, and pass them on to the handler of the agent's author, if there is one."""
        emitted = _emitted(stream)
        if self._event_stream_handler is not None:
            await self._event_stream_handler(ctx, emitted)
        async for _ in emitted:
            pass

    async def _dispatch_event_stream_event(self, ctx: RunContext[AgentDepsT], event: AgentStreamEvent) -> None:
        # The events of a tool call are emitted inside its phase, so that the checkpoint at its end covers them.
        if self._event_stream_handler is not None:
            await super()._dispatch_event_stream_event(ctx, event)

    async def _event_stream_handler_operation(self, params: EventStreamHandlerParams) -> None:
        assert self._event_stream_handler is not None
        with self._durable_run_context_scope(params.run_context) as context:
            await self._event_stream_handler(context, self._single_event_stream(params.event))

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for the approvals and the results of deferred tool calls, one after the other.

        Returns:
            The decisions and results; None if the agent has to return the requests as its output.
        """
        run = async_run(FRAMEWORK)
        if run is None or current_phase.get() or not self._receives_deferred():
            return None
        results = DeferredToolResults()
        await note_waits(run, _wanted(requests))
        for call in requests.approvals:
            results.approvals[call.tool_call_id] = await _receive_approval(run, call, ctx.run_id or "")
        for call in requests.calls:
            topic = topic_of("result", call.tool_call_id)
            results.calls[call.tool_call_id] = (await receive(run, topic, ctx.run_id or "")).payload
        return results

    def _receives_deferred(self) -> bool:
        if self._receive_deferred is not None:
            return self._receive_deferred
        wanted: Any = None if self.agent is None else self.agent.output_type
        return DeferredToolRequests not in (wanted if isinstance(wanted, (list, tuple)) else [wanted])


class _ToolConfig(RoleBasedOperationConfig[None]):
    """The settings of tools. The metadata of a tool may say that the tool is called outside of a phase."""

    def __init__(self) -> None:
        super().__init__(model=None, event=None, capability=None, tool=None, resolve_tool=_tool_config)


def _tool_config(operation: DurableOperationId, tool: object | None, tool_name: str) -> Literal[False] | None:
    metadata = tool.tool_def.metadata if isinstance(tool, ToolsetTool) else None
    value = (metadata or {}).get(TOOL_KEY)
    if value is False:
        return False
    if value is not None:
        raise UserError(f"tool {tool_name!r} has the metadata {TOOL_KEY}={value!r}: the only possible value is False")
    return None


class _PhaseBackend(JournalCallableOperationBackend[None]):
    """Execute each operation of an agent as a phase of the current run.

    Args:
        agent: The name of the agent.
        model: The id of the agent's default model, if it has one.
        emits: True if the beginning and the end of tool calls are emitted as events.
    """

    def __init__(self, agent: str, model: str | None, emits: bool) -> None:
        super().__init__(agent_name=agent, default_model_id=model, config=_ToolConfig())
        self._agent, self._emits = agent, emits

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        """Execute an operation as a phase, and return its output.

        The name of the phase contains the number of the agent's call, the agent's step and the id of the tool call, so tool calls
        that run at the same time have different names.
        """
        run = async_run(FRAMEWORK)
        assert run is not None  # the framework asks in_durable_context first

        context = next((part for part in cache_key if isinstance(part, RunContext)), None)
        emits = self._emits and isinstance(operation_id, ToolsetCallToolId) and context is not None

        async def output() -> object:
            if emits:
                emit_event(run, {**_tool_event("function_tool_call", cache_key, context), "args": cache_key[1]})
            models: list[ModelName] = []
            if isinstance(operation_id, ModelRequestId):
                models = check_prices(run, partial(_requested_models, operation_id, context))
            value = await body()
            if isinstance(operation_id, ModelRequestId) and isinstance(value, dict):
                count_request(run, _answering_models(value, models), _usage(value.get("usage") or {}))
            if emits:
                emit_event(run, _tool_event("function_tool_result", cache_key, context))
            return value

        return await call_step(run, _operation_name(run, self._agent, name, context), output)


def _requested_models(request: ModelRequestId, context: RunContext[Any] | None) -> list[ModelName]:
    """Return the names of the models that may answer a request: one name, or those of all models of a `FallbackModel`."""
    model = context.model if context is not None else None
    if not isinstance(model, Model) or model.model_name != request.model_name:  # a capability has replaced the model
        return [ModelName(request.model_name)]
    return [ModelName(one.model_name, one.system, _url(one)) for one in _single_models(model)]


def _single_models(model: Model) -> Iterator[Model]:
    while isinstance(model, WrapperModel):
        model = model.wrapped
    if isinstance(model, FallbackModel):
        for one in model.models:
            yield from _single_models(one)
    else:
        yield model


def _url(model: Model) -> str | None:
    try:
        return model.base_url
    except Exception:  # noqa: BLE001 - models raise errors of many types if they have no URL, and the price may be known without it
        return None


def _answering_models(response: Mapping[str, Any], requested: list[ModelName]) -> list[ModelName]:
    """Return the names of the model that has answered a request: the name in the response, and then the requested names.

    The requested names at the provider of the response are first, because another model of a `FallbackModel` has another price.
    """
    provider, url = response.get("provider_name"), response.get("provider_url")
    if not provider and not url and len(requested) == 1:
        _, provider, url = requested[0]
    names = sorted(requested, key=lambda model: model.provider != provider)
    return [ModelName(response["model_name"], provider, url), *names] if response.get("model_name") else names


def _usage(stored: Mapping[str, Any]) -> ModelUsage:
    """Return the tokens of a response, which include the tokens that the provider read from its cache or wrote to it."""
    return {
        "input_tokens": stored.get("input_tokens") or 0,
        "output_tokens": stored.get("output_tokens") or 0,
        "cache_read_tokens": stored.get("cache_read_tokens") or 0,
        "cache_write_tokens": stored.get("cache_write_tokens") or 0,
    }


def _operation_name(run: AsyncRun[Any], agent: str, name: str, context: RunContext[Any] | None) -> str:
    if context is None:
        return name
    place = f"{name} {_short_id(run, agent, context.run_id or '')}.{context.run_step}"
    return f"{place} {context.tool_call_id}" if context.tool_call_id else place


def _short_id(run: AsyncRun[Any], agent: str, run_id: str) -> str:
    """Return the part of a call's id that distinguishes the calls of a run. An id that the caller chose is hashed."""
    prefix = f"{run.id}:{agent}:"
    return (
        run_id.removeprefix(prefix)
        if run_id.startswith(prefix)
        else blake2s(run_id.encode(), digest_size=6).hexdigest()
    )


# -- events


async def _emitted(stream: AsyncIterable[AgentStreamEvent]) -> AsyncIterator[AgentStreamEvent]:
    """Yield the events of a stream, and emit each of them."""
    run = async_run(FRAMEWORK)
    async for event in stream:
        if run is not None:
            emit_event(run, _EVENT.dump_python(event, mode="json"))
        yield event


def _tool_event(kind: str, cache_key: tuple[object, ...], context: RunContext[Any] | None) -> dict[str, object]:
    return {"event_kind": kind, "tool_name": cache_key[0], "tool_call_id": context.tool_call_id if context else None}


# -- deferred tool calls


def _wanted(requests: DeferredToolRequests) -> Iterator[str]:
    """Yield a description of each signal that the deferred tool calls need."""
    for what, calls in (("approval", requests.approvals), ("result", requests.calls)):
        for call in calls:
            yield f"the {what} of tool {call.tool_name!r} on topic {topic_of(what, call.tool_call_id)}"


async def _receive_approval(run: AsyncRun[Any], call: ToolCallPart, run_id: str) -> ToolApproved | ToolDenied:
    topic = topic_of("approval", call.tool_call_id)
    while True:
        payload = (await receive(run, topic, run_id)).payload
        decision = read_decision(payload)
        if decision is not None:
            return decision
        logger.warning(
            "signal not understood: run %s got %.200r on topic %s; send true, false, or a dict with `approved`",
            run.id, payload, topic, extra={"run": run.id},
        )  # fmt: skip


def read_decision(payload: Any) -> ToolApproved | ToolDenied | None:
    """Return the decision that a signal carries, or None if the payload is not a decision.

    Args:
        payload: True or False; or a dict with `approved`, and optionally `message` (why the call is denied) or `override_args`
            (other arguments for the call).
    """
    given = payload if isinstance(payload, dict) else {"approved": payload}
    approved = given.get("approved")
    if approved is True:
        return ToolApproved(override_args=given.get("override_args"))
    if approved is False:
        return ToolDenied(str(given["message"])) if given.get("message") else ToolDenied()
    return None
