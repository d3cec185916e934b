# pyright: strict
"""An agent, a report in phases and their producer, as the design shows them. They type-check in the strictest mode.

The arguments of a tool, the output of a phase and the result of a handle are checked too. The code is never run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, assert_type

from coordinator import Client, Handle
from workers import AsyncRun, Deadline, Registry, Retry, Run, ToolCall


class Model:
    async def ask(self, messages: Sequence[Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": str(len(messages))}


@asynccontextmanager
async def open_model() -> AsyncGenerator[Model, None]:
    yield Model()


async def use_tool(call: ToolCall) -> str:
    return f"{call.name}({call.arguments})"


def make_outline(topic: str) -> list[str]:
    return [topic]


def polish(outline: list[str]) -> str:
    return " - ".join(outline)


runs = Registry(lifespan=open_model)


@runs.handler
async def research(run: AsyncRun[Model], topic: str) -> str:
    if not run.messages:
        run.messages.append({"role": "user", "content": topic})
    async for _ in run.loop(limit=40):
        if not run.messages.open_calls():
            reply = await run.resources.ask(run.messages)
            run.messages.append(reply)
            if not run.messages.open_calls():
                return str(reply["content"])
            run.checkpoint()
        for call in run.messages.open_calls():
            output = await run.phase(f"tool-{call.id}", use_tool, call)
            assert_type(output, str)
            run.messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return "no answer in 40 turns"


@runs.handler(retry=Retry(limit=4), deadline=Deadline(soft=600, hard=900), schema=2)
def report(run: Run, topic: str) -> str:
    outline = run.phase("outline", make_outline, topic)
    assert_type(outline, list[str])
    return run.phase("polish", polish, outline)


def produce(topics: list[str]) -> None:
    with Client() as client:
        handle = client.enqueue(research.inputs("tides"), key="tides-today", meta={"caller_id": "u1"})
        assert_type(handle, Handle[str])
        print(handle.id, handle.created, handle.result(timeout=600))
        client.enqueue_many(research.inputs(topic) for topic in topics)
        client.enqueue("research", {"topic": "tides"})
        client.schedule("nightly", "0 2 * * *", report.inputs("tides"), tz="Europe/Berlin")
