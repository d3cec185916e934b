"""An agent loop with a growing transcript. The model is scripted, so the example needs no network: replace it with yours.

workers start research_agent:runs
coordinator enqueue research topic=tides --wait
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from workers import AsyncRun, Registry, ToolCall


class ScriptedModel:
    """A model that asks for two look-ups, one after the other, and then answers. It records its calls, for the tests."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.looked_up: list[str] = []

    async def ask(self, messages: Sequence[Any]) -> dict[str, Any]:
        self.asked.append(len(messages))
        answered = [message for message in messages if message["role"] == "tool"]
        if len(answered) < 2:
            function = {"name": "look_up", "arguments": f'{{"page": {len(answered) + 1}}}'}
            call = {"id": f"call-{len(answered) + 1}", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"role": "assistant", "content": f"From {len(answered)} pages: {answered[-1]['content']}"}

    async def look_up(self, call: ToolCall) -> str:
        self.looked_up.append(call.id)
        return f"what {call.arguments} says"


@asynccontextmanager
async def open_model() -> AsyncGenerator[ScriptedModel, None]:
    """Open the model once per worker process, before its first claim."""
    yield ScriptedModel()


runs = Registry(lifespan=open_model)


@runs.handler
async def research(run: AsyncRun[ScriptedModel], topic: str) -> str:
    if not run.messages:
        run.messages.append({"role": "user", "content": topic})
    async for _ in run.loop(limit=40):
        if not run.messages.open_calls():  # after a resume the model's reply may be there already
            reply = await run.resources.ask(run.messages)
            run.messages.append(reply)
            if not run.messages.open_calls():
                return str(reply["content"])
            run.checkpoint()  # the reply was paid for: offer it to be saved before the tools run
        for call in run.messages.open_calls():
            output = await run.phase(f"tool-{call.id}", run.resources.look_up, call)
            run.messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return "no answer in 40 turns"
