"""Models whose calls are phases of a run. A streamed response is one phase too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NamedTuple

from agents import Model, ModelProvider, ModelResponse, Usage
from agents.exceptions import ModelBehaviorError
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from openai.types.responses import Response, ResponseCompletedEvent, ResponseOutputItemDoneEvent, ResponseUsage
from pydantic import TypeAdapter

from workers.handlers.async_run import AsyncRun
from workers.handlers.operations.prices import ModelName, ModelUsage
from workers.integrations.steps import call_step, check_prices, count_request, emit_event

_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


class AgentCall:
    """One call of `DurableRunner`, or of an agent that is a tool.

    Args:
        run: The run.
        number: The name and the number of the call, which are the same in every attempt.
        emits: True if the events of the models are emitted.

    Attributes:
        responses: How many model calls have ended.
    """

    def __init__(self, run: AsyncRun[Any], number: str, emits: bool) -> None:
        self.run, self.number, self.emits, self.responses = run, number, emits, 0


class _Answer(NamedTuple):
    """A response, and the name of the model that the provider reports in it; empty if the SDK does not say it."""

    response: ModelResponse
    reported: str = ""


class DurableModel(Model):
    """A model whose calls are phases.

    Args:
        inner: The model.
        call: The call of the runner.
    """

    def __init__(self, inner: Model, call: AgentCall) -> None:
        self._inner, self._call = inner, call

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the response of the model, or the saved response of an earlier attempt."""

        async def ask() -> _Answer:
            if self._call.emits:
                return await self._ask_with_events(args, kwargs, _ignore)
            return _Answer(await self._inner.get_response(*args, **kwargs))

        return await self._step(ask)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Stream a response of the model. The last event contains the whole response.

        A response that an earlier attempt has saved is streamed as the last event only.
        """
        events: asyncio.Queue[TResponseStreamEvent | None] = asyncio.Queue()

        async def ask() -> _Answer:
            return await self._ask_with_events(args, kwargs, events.put_nowait)

        async def step() -> ModelResponse:
            try:
                return await self._step(ask)
            finally:
                events.put_nowait(None)

        task, number = asyncio.create_task(step()), 0
        try:
            while (event := await events.get()) is not None:
                number = max(number, event.sequence_number + 1)
                yield event
            response = await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        yield ResponseCompletedEvent(
            type="response.completed", sequence_number=number, response=_whole_response(response)
        )

    async def _step(self, ask: Callable[[], Coroutine[Any, Any, _Answer]]) -> ModelResponse:
        async def ask_and_count() -> Any:
            requested = check_prices(self._call.run, lambda: [_requested_model(self._inner)])
            response, reported = await ask()
            names = [model._replace(name=reported) for model in requested if reported] + requested
            count_request(self._call.run, names, _usage(response.usage))
            return _stored(response)

        saved = await call_step(self._call.run, f"model {self._call.number}.{self._call.responses}", ask_and_count)
        self._call.responses += 1
        return _RESPONSE.validate_python(saved)

    async def _ask_with_events(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], got: Callable[[TResponseStreamEvent], None]
    ) -> _Answer:
        """Stream a response, emit its events if the call emits, and return the whole response with the name of its model.

        Args:
            args: The positional arguments of the model.
            kwargs: The keyword arguments of the model.
            got: Called with each event but the last.

        Raises:
            ModelBehaviorError: If the stream ends without a completed response.
        """
        items: list[Any] = []
        async for event in self._inner.stream_response(*args, **kwargs):
            if isinstance(event, ResponseCompletedEvent):
                return _Answer(_completed(event.response, items), event.response.model or "")
            if isinstance(event, ResponseOutputItemDoneEvent):
                items.append(event.item)
            if self._call.emits:
                shown = event.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
                emit_event(self._call.run, shown)
            got(event)
        raise ModelBehaviorError("the model's stream ended without a completed response")

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Return the advice of the inner model on whether a failed request should be retried."""
        return self._inner.get_retry_advice(request)

    async def close(self) -> None:
        """Close the inner model."""
        await self._inner.close()


class DurableProvider(ModelProvider):
    """A provider whose models are durable.

    Args:
        inner: The provider.
        call: The call of the runner.
    """

    def __init__(self, inner: ModelProvider, call: AgentCall) -> None:
        self._inner, self._call = inner, call

    def get_model(self, model_name: str | None) -> Model:
        """Return a durable model by its name."""
        return DurableModel(self._inner.get_model(model_name), self._call)


def durable_model(model: Model, call: AgentCall) -> Model:
    """Return a durable model for a call.

    If the model is already durable, its inner model is used, so that it belongs to this call.
    """
    return DurableModel(model._inner if isinstance(model, DurableModel) else model, call)


def durable_provider(provider: ModelProvider, call: AgentCall) -> ModelProvider:
    """Return a durable provider for a call, in the same way as `durable_model`."""
    return DurableProvider(provider._inner if isinstance(provider, DurableProvider) else provider, call)


def _ignore(event: TResponseStreamEvent) -> None:
    """Ignore an event, because only the readers of the run's output read the stream."""


def _requested_model(model: Model) -> ModelName:
    """Return the name of a model, and its provider as far as the model object knows it."""
    name = str(getattr(model, "model", ""))
    # LiteLLM and any-llm write the provider before the name. genai-prices splits such a name for the provider "litellm".
    return ModelName(name, "litellm" if "/" in name else None, _url(model))


def _url(model: Model) -> str | None:
    try:
        url = getattr(model, "base_url", None) or getattr(getattr(model, "_client", None), "base_url", None)
        return str(url) if url else None
    except Exception:  # noqa: BLE001 - a property of a model may raise any error, and the price may be known without the URL
        return None


def _usage(usage: Usage) -> ModelUsage:
    """Return the tokens of a response, which include the tokens that the provider read from its cache or wrote to it."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.input_tokens_details.cached_tokens or 0,
        "cache_write_tokens": getattr(usage.input_tokens_details, "cache_write_tokens", 0) or 0,
    }


def _stored(response: ModelResponse) -> Any:
    return _RESPONSE.dump_python(response, mode="json", by_alias=True, exclude_unset=True, warnings=False)


def _whole_response(response: ModelResponse) -> Response:
    """Return a response in the form in which the last event of a stream contains it."""
    used = response.usage
    made = Response(
        id=response.response_id or "",
        created_at=0,
        model="",
        object="response",
        output=response.output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=True,
        status="completed",
        usage=ResponseUsage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        ),
    )
    if response.response_id is None:
        object.__setattr__(made, "id", None)  # the SDK takes None for a response without an id
    return made


def _completed(response: Response, items: list[Any]) -> ModelResponse:
    used = response.usage
    usage = Usage(requests=1)
    if used is not None:
        usage = Usage(
            requests=1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    return ModelResponse(output=response.output or items, usage=usage, response_id=response.id or None)
