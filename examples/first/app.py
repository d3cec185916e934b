# app.py: the handlers
import asyncio
from collections.abc import Sequence
from typing import Any

from workers import AsyncRun, Registry, Retry, Run

runs = Registry()


@runs.handler  # the kind is the function's name: "research"
async def research(run: AsyncRun, topic: str) -> str:
    if not run.messages:
        run.messages.append({"role": "user", "content": topic})
    async for turn in run.loop(limit=20):  # a resumed run continues at the saved turn
        run.note("thinking", done=turn)
        if not run.messages.open_calls():  # after a resume the model's reply may be there already
            reply = await ask_model(run.messages)
            run.messages.append(reply)
            if not run.messages.open_calls():
                return str(reply["content"])
            run.checkpoint()  # the reply was paid for: offer it to be saved before the tools run
        for call in run.messages.open_calls():
            output = await run.phase(f"tool-{call.id}", search, call.arguments)  # the output is saved
            run.messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return "no answer in 20 turns"


@runs.handler(retry=Retry(limit=4))  # if it raises, it is tried again, up to 4 times in a row
def report(run: Run, topic: str) -> str:  # a plain function runs in a thread
    outline = run.phase("outline", lambda: [f"what is {topic}", f"why {topic}", f"after {topic}"])
    return run.phase("polish", " - ".join, outline)


async def ask_model(messages: Sequence[Any]) -> dict[str, Any]:  # your model; this one asks for five searches
    await asyncio.sleep(1)
    topic, searches = messages[0]["content"], sum(message["role"] == "tool" for message in messages)
    if searches == 5:
        return {"role": "assistant", "content": f"{topic}: read {searches} pages, all is well"}
    function = {"name": "search", "arguments": f"{topic}, page {searches + 1}"}
    return {"role": "assistant", "tool_calls": [{"id": f"call-{searches}", "type": "function", "function": function}]}


async def search(query: str) -> str:  # your tool
    await asyncio.sleep(1)
    return f"a page about {query}"
