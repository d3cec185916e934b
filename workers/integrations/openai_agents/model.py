"""Models whose calls are phases of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Model, ModelProvider, ModelResponse, Usage
from agents.exceptions import ModelBehaviorError
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from openai.types.responses import Response, ResponseCompletedEvent, ResponseOutputItemDoneEvent
from pydantic import TypeAdapter

from coordinator.errors import Refused
from workers.handlers.async_run import AsyncRun
from workers.integrations.steps import call_step, emit_event

_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


class AgentCall:
    """One call of `DurableRunner.run`.

    Args:
        run: The run.
        number: The number of the call, which is the same in every attempt.
        emits: Whether the events of the models are emitted.

    Attributes:
        responses: How many model calls have ended.
    """

    def __init__(self, run: AsyncRun[Any], number: str, emits: bool) -> None:
        self.run, self.number, self.emits, self.responses = run, number, emits, 0


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
        call = self._call

        async def ask() -> Any:
            if call.emits:
                response = await self._ask_with_events(args, kwargs)
            else:
                response = await self._inner.get_response(*args, **kwargs)
            return _RESPONSE.dump_python(response, mode="json", by_alias=True, exclude_unset=True, warnings=False)

        saved = await call_step(call.run, f"model {call.number}.{call.responses}", ask)
        call.responses += 1
        return _RESPONSE.validate_python(saved)

    async def _ask_with_events(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelResponse:
        """Stream a response, emit its events, and return the whole response.

        Raises:
            ModelBehaviorError: If the stream ends without a completed response.
        """
        items: list[Any] = []
        async for event in self._inner.stream_response(*args, **kwargs):
            if isinstance(event, ResponseCompletedEvent):
                return _completed(event.response, items)
            if isinstance(event, ResponseOutputItemDoneEvent):
                items.append(event.item)
            emit_event(self._call.run, event.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False))
        raise ModelBehaviorError("the model's stream ended without a completed response")

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Refuse to stream: DurableRunner has no `run_streamed`, and emits the events instead.

        Raises:
            Refused: Always.
        """
        raise Refused("a durable run emits its events: use DurableRunner.run(…, emit_events=True)")

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Return the advice of the model."""
        return self._inner.get_retry_advice(request)

    async def close(self) -> None:
        """Close the model."""
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
