"""An agent that asks a person before it acts. While it waits for the answer, for days if need be, it holds no slot.

The model is scripted, so the example needs no network: replace it with yours. examples/approval_page.py is a page on which a
person answers; `coordinator send` does the same in a terminal.

workers start approval:runs
coordinator enqueue purchase wish="tea for ten"
coordinator runs --status waiting
coordinator send RUN approval.call-1 granted:=true by=ada
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from workers import AsyncRun, Registry, ToolCall


class ScriptedModel:
    """A model that wants to buy something, and then reports. It records its calls and what was bought, for the tests."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.bought: list[str] = []

    async def ask(self, messages: Sequence[Any]) -> dict[str, Any]:
        self.asked.append(len(messages))
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": f"The shop says: {messages[-1]['content']}"}
        function = {"name": "buy", "arguments": messages[0]["content"]}
        call = {"id": "call-1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    async def buy(self, call: ToolCall) -> str:
        self.bought.append(call.arguments)
        return f"sold {call.arguments}"


@asynccontextmanager
async def open_model() -> AsyncGenerator[ScriptedModel, None]:
    yield ScriptedModel()


runs = Registry(lifespan=open_model)


@runs.handler
async def purchase(run: AsyncRun[ScriptedModel], wish: str) -> str:
    if not run.messages:
        run.messages.append({"role": "user", "content": wish})
    async for _ in run.loop(limit=40):
        # A run that is woken begins its turn again. Then the model's reply is in the transcript already.
        if not run.messages.open_calls():
            reply = await run.resources.ask(run.messages)
            run.messages.append(reply)
            if not run.messages.open_calls():
                return str(reply["content"])
        for call in run.messages.open_calls():
            output = await approved(run, call)
            run.messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return "no answer in 40 turns"


async def approved(run: AsyncRun[ScriptedModel], call: ToolCall) -> str:
    """Ask a person, call the tool if the answer is yes, and return the output of the tool or the reason for not calling it.

    Each call has its own topic, so that an answer can't reach another call.
    """
    run.note(f"May I {call.name} {call.arguments}?")
    answer = await run.receive(f"approval.{call.id}", timeout=timedelta(days=3), default=None)
    if answer is None:
        return "nobody has answered for three days"
    if not answer.payload["granted"]:
        return f"{answer.payload['by']} said no"
    return await run.phase(f"tool-{call.id}", run.resources.buy, call)
