"""Results of streamed agents that wait for approvals while their events are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from agents import RunResultStreaming, RunState, StreamEvent

from workers.handlers.async_run import AsyncRun
from workers.handlers.checkpoint.draft import current_phase
from workers.integrations.openai_agents.approvals import receive_decisions
from workers.integrations.steps import budget_errors

Continue = Callable[[RunState[Any, Any]], RunResultStreaming]


class DurableStream(RunResultStreaming):
    """A result of `Runner.run_streamed` whose events continue after the approval of a tool call.

    The SDK ends the events if a tool call needs an approval, and makes a new result for the continued agent. This object then takes
    over the attributes of the new result, so that the handler keeps using one object.
    """

    _durable: tuple[AsyncRun[Any], Continue]
    _following: RunResultStreaming  # kept alive, because the SDK clears attributes when it deletes a result
    _stream: Callable[[], AsyncIterator[StreamEvent]]  # streams the events up to the next approval

    @classmethod
    def of(cls, result: RunResultStreaming, run: AsyncRun[Any], resume: Continue) -> DurableStream:
        """Turn a result of the SDK into a DurableStream, and return it. Call this before the events are read.

        Args:
            result: The result.
            run: The run.
            resume: Continues the agent from a state in which the tool calls are approved or rejected.
        """
        stream = _take_stream(result)
        result.__class__ = cls
        assert isinstance(result, DurableStream)
        result._durable, result._stream = (run, resume), stream
        return result

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """Stream the events of the agent. Where the agent needs approvals, wait for their signals, and then continue the stream.

        Raises:
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            BudgetExceeded: If the budget of the run is spent.
            Refused: If another task than the handler's own reads the events, and the agent needs an approval.
        """
        while True:
            events: Any = self._stream()
            with budget_errors():
                async with aclosing(events):
                    async for event in events:
                        yield event
            if not self.interruptions or self._cancel_mode != "none" or current_phase.get():
                return
            run, resume = self._durable
            state = self.to_state()
            await receive_decisions(run, state, self.interruptions)
            following = resume(state)
            stream = _take_stream(following)
            self.__dict__ = following.__dict__
            self._durable, self._following, self._stream = (run, resume), following, stream


def _take_stream(result: RunResultStreaming) -> Callable[[], AsyncIterator[StreamEvent]]:
    """Return the function that streams the events of a result of the SDK, and remove it from the attributes of the object.

    Sentry stores its own function in such an attribute, which would hide the method of DurableStream.
    """
    stream = result.stream_events
    result.__dict__.pop("stream_events", None)
    return stream
