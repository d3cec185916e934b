"""An agent like the one in examples/research_agent.py.

Its model and its tools write each question and each action to the journal.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Registry
from workers.handlers.checkpoint.messages import ToolCall

TURNS = 20
runs = Registry()


def reply_to(messages: Sequence[Any]) -> dict[str, Any]:
    """Return the model's reply: tool calls for TURNS turns, two calls in every third turn; then the answer, computed
    from all messages.
    """
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn == TURNS:
        return {"role": "assistant", "content": digest(messages)}
    calls = [
        {"id": f"{turn}-{number}", "type": "function", "function": {"name": "look_up", "arguments": f"{turn}"}}
        for number in range(2 if turn % 3 == 0 else 1)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result_of(topic: str, id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": f"what is known of {topic}, page {id}"}


def digest(messages: Sequence[Any]) -> str:
    return f"{len(messages)} {hashlib.sha256(json.dumps(messages).encode()).hexdigest()}"


def answer(topic: str) -> str:
    """Return the result of a run that is never killed."""
    messages: list[Any] = [{"role": "user", "content": topic}]
    while (reply := reply_to(messages))["content"] is None:
        messages.append(reply)
        messages += [result_of(topic, call["id"]) for call in reply["tool_calls"]]
    return str(reply["content"])


async def ask(run: AsyncRun) -> dict[str, Any]:
    journal(run, "ask", len(run.messages))
    await work_for(random.uniform(0, 0.08))
    return reply_to(run.messages)


async def look_up(run: AsyncRun, topic: str, call: ToolCall) -> str:
    turn, _, number = call.id.partition("-")
    journal(run, "tool", 10 * int(turn) + int(number))
    await work_for(random.uniform(0, 0.04))
    return str(result_of(topic, call.id)["content"])


@runs.handler(throttle=0.05)
async def research(run: AsyncRun, topic: str) -> str:
    """Write to the journal, after each save, how much of the transcript the server has acknowledged."""
    journal(run, "start", len(run.messages))
    if not run.messages:
        run.messages.append({"role": "user", "content": topic})
    async for turn in run.loop(limit=TURNS + 1):
        # After a resume, the reply that was already paid for may be in the transcript.
        if not run.messages.open_calls():
            reply = await ask(run)
            run.messages.append(reply)
            if not run.messages.open_calls():
                journal(run, "end", len(run.messages))
                return str(reply["content"])
            if turn % 2:
                await run.flush()
                journal(run, "saved", len(run.messages))
            else:
                run.checkpoint()
        for call in run.messages.open_calls():
            output = await run.phase(f"tool-{call.id}", look_up, run, topic, call)
            journal(run, "saved", len(run.messages))
            run.messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return f"no answer in {TURNS} turns"
