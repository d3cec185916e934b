"""The handler of the demo: an agent that asks a scripted model and calls a tool, turn by turn."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from scripts.demonstration.journal import write
from workers import AsyncRun, Registry

TURNS = 12
STEPS = 2 * TURNS - 1  # each turn asks the model and calls a tool; the last turn returns the answer
JOURNAL = os.environ.get("DEMO_JOURNAL", "")


class ScriptedModel:
    """A model that asks for a tool in every turn but the last. Each reply takes a moment."""

    async def ask(self, topic: str, turn: int) -> dict[str, Any]:
        await asyncio.sleep(random.uniform(0.3, 0.9))
        if turn == TURNS - 1:
            return {"role": "assistant", "content": answer(topic)}
        call = {"id": f"call-{turn}", "type": "function", "function": {"name": "look_up", "arguments": f"page {turn}"}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


def answer(topic: str) -> str:
    return f"all there is to know about {topic}"


@asynccontextmanager
async def open_model() -> AsyncIterator[ScriptedModel]:
    write(JOURNAL, "joins", os.getppid())
    yield ScriptedModel()


runs = Registry(lifespan=open_model)


@runs.handler
async def research(run: AsyncRun[ScriptedModel], topic: str) -> str:
    note(run, "start", 2 * run.iteration + len(run.messages.open_calls()))
    try:
        found = await converse(run, topic)
    except BaseException:  # the run is stopped, for whatever reason
        note(run, "left")
        raise
    note(run, "end")
    return found


async def converse(run: AsyncRun[ScriptedModel], topic: str) -> str:
    """Run the agent loop. A resumed run does not repeat the steps that were saved."""
    if not run.messages:
        run.messages.append({"role": "user", "content": f"what is there to know about {topic}?"})
    async for turn in run.loop(limit=TURNS):
        if not run.messages.open_calls():
            note(run, "step", 2 * turn)
            reply = await run.resources.ask(topic, turn)
            run.messages.append(reply)
            await run.flush()  # the reply is saved before the tool is called
            note(run, "saved", 2 * turn)
            if not run.messages.open_calls():
                return str(reply["content"])
        for call in run.messages.open_calls():
            page = await run.phase(f"tool-{call.id}", look_up, run, 2 * turn + 1, call.arguments)
            note(run, "saved", 2 * turn + 1)
            run.messages.append({"role": "tool", "tool_call_id": call.id, "content": page})
    raise AssertionError("the last turn returns the answer")


async def look_up(run: AsyncRun[ScriptedModel], step: int, page: str) -> str:
    note(run, "step", step)
    await asyncio.sleep(random.uniform(0.3, 0.7))
    return f"{page} says a lot"


def note(run: AsyncRun[ScriptedModel], what: str, number: int = 0) -> None:
    write(JOURNAL, what, number, run.id, run.token)
