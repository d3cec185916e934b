"""What the demo's workers run: an agent that asks a model and uses a tool, turn by turn. The model follows a script."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from scripts.demo_.journal import write
from workers import AsyncRun, Registry

TURNS = 12
STEPS = 2 * TURNS - 1  # each turn asks the model and uses a tool; the last one brings the answer
JOURNAL = os.environ.get("DEMO_JOURNAL", "")


class ScriptedModel:
    """Asks for a tool in every turn but the last. Thinks for a moment, as models do."""

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
    except BaseException:  # it is told to stop, whichever way
        note(run, "left")
        raise
    note(run, "end")
    return found


async def converse(run: AsyncRun[ScriptedModel], topic: str) -> str:
    """The loop of an agent. What a resumed run finds done it does not do again."""
    if not run.messages:
        run.messages.append({"role": "user", "content": f"what is there to know about {topic}?"})
    async for turn in run.loop(limit=TURNS):
        if not run.messages.open_calls():
            note(run, "step", 2 * turn)
            reply = await run.resources.ask(topic, turn)
            run.messages.append(reply)
            await run.flush()  # paid for: safe before the tool is used
            note(run, "saved", 2 * turn)
            if not run.messages.open_calls():
                return str(reply["content"])
        for call in run.messages.open_calls():
            page = await run.phase(f"tool-{call.id}", look_up, run, 2 * turn + 1, call.arguments)
            note(run, "saved", 2 * turn + 1)
            run.messages.append({"role": "tool", "tool_call_id": call.id, "content": page})
    raise AssertionError("the last turn brings the answer")


async def look_up(run: AsyncRun[ScriptedModel], step: int, page: str) -> str:
    note(run, "step", step)
    await asyncio.sleep(random.uniform(0.3, 0.7))
    return f"{page} says a lot"


def note(run: AsyncRun[ScriptedModel], what: str, number: int = 0) -> None:
    write(JOURNAL, what, number, run.id, run.token)
