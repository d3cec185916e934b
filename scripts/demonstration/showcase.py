"""Handlers that look like those of a real program, for the pictures of the page in the documentation."""

from __future__ import annotations

import asyncio
import random

from workers import AsyncRun, Budget, Registry, Retry

runs: Registry[None] = Registry()
SENTENCE = "The tide is the periodic rise and fall of the sea under the pull of the moon and the sun. "


@runs.handler(throttle=0, budget=Budget(usd=2.0, tokens=100_000))
async def research(run: AsyncRun[None], topic: str, turns: int = 12) -> str:
    """Converse with a model that calls a tool in each turn, and emit the words of its answers."""
    if not run.messages:
        run.messages.append({"role": "system", "content": "You are a careful researcher. Cite every source."})
        run.messages.append({"role": "user", "content": f"Write a short report about {topic}."})
        await run.flush()
    async for turn in run.loop(limit=turns):
        run.note("asks the model", turn + 1, turns)
        for word in f"Part {turn + 1} of {topic} needs a source. ".split():
            await asyncio.sleep(random.uniform(0.02, 0.12))
            run.emit({"delta": f"{word} "})
        call = {
            "id": f"c{turn}",
            "function": {"name": "search", "arguments": f'{{"query": "{topic}, part {turn + 1}"}}'},
        }
        run.messages.append({"role": "assistant", "content": f"Let me look up part {turn + 1}.", "tool_calls": [call]})
        found = await run.phase(f"search-{turn}", search)
        run.messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": found})
        run.spend(usd=0.04, tokens=1800)
    await run.once("publish", publish)
    return f"A report about {topic}, with {turns} sources."


async def search() -> str:
    await asyncio.sleep(random.uniform(0.1, 0.6))
    return SENTENCE * 12


async def publish() -> str:
    await asyncio.sleep(0.1)
    return "published"


@runs.handler
async def invoice(run: AsyncRun[None], customer: str) -> str:
    await asyncio.sleep(random.uniform(0.05, 0.4))
    return f"invoice of {customer}"


@runs.handler(retry=Retry(limit=2, wait=0.5))
async def deliver(run: AsyncRun[None], address: str) -> str:
    await asyncio.sleep(random.uniform(0.1, 0.5))
    if random.random() < 0.55:
        raise ConnectionError(f"{address} refused the connection")
    return "delivered"


@runs.handler(at_once=2, group_by="customer")
async def export(run: AsyncRun[None], customer: str) -> int:
    await asyncio.sleep(random.uniform(3, 6))
    return 1


@runs.handler(linger=0)
async def approval(run: AsyncRun[None], amount: int) -> str:
    signal = await run.receive("decision")
    return str(signal.payload)


@runs.handler
async def chapter(run: AsyncRun[None], number: int) -> int:
    await asyncio.sleep(random.uniform(1, 4))
    return number


@runs.handler
async def book(run: AsyncRun[None], chapters: int = 4) -> int:
    return len(await run.gather("chapters", [chapter.inputs(number=number) for number in range(chapters)]))
