"""An agent with the client of OpenAI's SDK and a plain loop: no framework, and no reply is paid for twice.

Without OPENAI_API_KEY the example answers itself: a scripted model speaks the wire format of the API, so no network is needed.

workers start openai_loop:runs
coordinator enqueue research question="How do tides work?"
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from openai import AsyncOpenAI

from workers import AsyncRun, Registry, ToolCall

MODEL = "gpt-5"
PARAMETERS = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}
TOOLS: Any = [{"type": "function", "function": {"name": "search", "parameters": PARAMETERS}}]


def scripted_client(asked: list[int] | None = None) -> AsyncOpenAI:
    """Return a client whose model searches two pages, and then answers. It appends the length of each transcript to `asked`."""

    def reply(request: httpx2.Request) -> httpx2.Response:
        messages = json.loads(request.content)["messages"]
        if asked is not None:
            asked.append(len(messages))
        found = [message["content"] for message in messages if message["role"] == "tool"]
        message: dict[str, Any] = {"role": "assistant", "content": f"From {len(found)} pages: {found}"}
        if len(found) < 2:
            function = {"name": "search", "arguments": json.dumps({"page": len(found) + 1})}
            call = {"id": f"call-{len(found) + 1}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice]}
        return httpx2.Response(200, json=body)

    return AsyncOpenAI(api_key="none", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(reply)))


@asynccontextmanager
async def open_client() -> AsyncGenerator[AsyncOpenAI, None]:
    async with AsyncOpenAI() if "OPENAI_API_KEY" in os.environ else scripted_client() as client:
        yield client


runs = Registry(lifespan=open_client)


@runs.handler
async def research(run: AsyncRun[AsyncOpenAI], question: str) -> str:
    if not run.messages:
        run.messages.append({"role": "user", "content": question})
    async for turn in run.loop(limit=40):
        run.note("thinking", done=turn)
        if not run.messages.open_calls():  # after a resume the model's reply may be there already
            messages: Any = list(run.messages)
            reply = await run.resources.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
            run.messages.append(reply.choices[0].message.model_dump(mode="json", exclude_none=True))
            if not run.messages.open_calls():
                return reply.choices[0].message.content or ""
            run.checkpoint()  # the reply was paid for: offer it to be saved before the tools run
        for call in run.messages.open_calls():
            output = await run.phase(f"tool-{call.id}", use_tool, call)  # the output is saved
            run.messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return "no answer in 40 turns"


async def use_tool(call: ToolCall) -> str:
    return f"{call.name} says: page {json.loads(call.arguments)['page']}"
