"""An agent with the client of Anthropic's SDK and a plain loop: no framework, and no reply is paid for twice.

Without ANTHROPIC_API_KEY the example answers itself: a scripted model speaks the wire format of the API, so no network is needed.

workers start anthropic_loop:runs
coordinator enqueue research question="How do tides work?"
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from anthropic import AsyncAnthropic

from workers import AsyncRun, Registry, ToolCall

MODEL = "claude-sonnet-5-5"
SCHEMA = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}
TOOLS: Any = [{"name": "search", "description": "Search a page.", "input_schema": SCHEMA}]


def scripted_client(asked: list[int] | None = None) -> AsyncAnthropic:
    """Return a client whose model searches two pages, and then answers. It appends the length of each transcript to `asked`."""

    def reply(request: httpx2.Request) -> httpx2.Response:
        messages = json.loads(request.content)["messages"]
        if asked is not None:
            asked.append(len(messages))
        results = [message["content"][0]["content"] for message in messages[1:] if message["role"] == "user"]
        block: dict[str, Any] = {"type": "text", "text": f"From {len(results)} pages: {results}"}
        if len(results) < 2:
            page = len(results) + 1
            block = {"type": "tool_use", "id": f"call-{page}", "name": "search", "input": {"page": page}}
        usage = {"input_tokens": 1, "output_tokens": 1}
        body = {"id": "1", "type": "message", "role": "assistant", "model": MODEL, "content": [block], "usage": usage}
        return httpx2.Response(200, json=body | {"stop_reason": "end_turn", "stop_sequence": None})

    return AsyncAnthropic(api_key="none", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(reply)))


@asynccontextmanager
async def open_client() -> AsyncGenerator[AsyncAnthropic, None]:
    async with AsyncAnthropic() if "ANTHROPIC_API_KEY" in os.environ else scripted_client() as client:
        yield client


runs = Registry(lifespan=open_client)


@runs.handler
async def research(run: AsyncRun[AsyncAnthropic], question: str) -> str:
    if not run.messages:
        run.messages.append({"role": "user", "content": question})
    async for turn in run.loop(limit=40):
        run.note("thinking", done=turn)
        if not run.messages.open_calls():  # after a resume the model's reply may be there already
            messages: Any = list(run.messages)
            reply = await run.resources.messages.create(model=MODEL, max_tokens=1000, messages=messages, tools=TOOLS)
            content = [block.model_dump(mode="json", exclude_none=True) for block in reply.content]
            run.messages.append({"role": "assistant", "content": content})
            if not run.messages.open_calls():
                return "".join(block.text for block in reply.content if block.type == "text")
            run.checkpoint()  # the reply was paid for: offer it to be saved before the tools run
        results = []
        for call in run.messages.open_calls():
            output = await run.phase(f"tool-{call.id}", use_tool, call)  # the output is saved
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": output})
        run.messages.append({"role": "user", "content": results})  # Anthropic wants all results in one message
    return "no answer in 40 turns"


async def use_tool(call: ToolCall) -> str:
    return f"{call.name} says: page {call.arguments['page']}"
