"""An agent that writes a text word by word, and asks before it publishes it. server.py has its page.

workers dev examples.browser_agent.agent:runs

The model is scripted, so that the example needs no key of a provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from workers import AsyncRun, Registry

runs = Registry()
SECONDS_PER_WORD = 0.05


@runs.handler(linger=0)
async def write(run: AsyncRun, topic: str) -> str:
    # After a kill -9 in the middle, the draft begins again, and the page takes its first words back.
    text = await run.phase("draft", draft, run, topic)
    await run.phase("ask", ask, run, "Publish this text?")
    answer = await run.receive("approval")  # the run waits without a process, for minutes or for months
    if not answer.payload["granted"]:
        run.emit("\n\nNot published.")
        return "rejected"
    run.emit("\n\nPublished.")
    return text


async def ask(run: AsyncRun, question: str) -> None:
    """Emit a question. It is asked in a phase, because the handler is called again after the wait, and must not ask twice."""
    run.emit({"ask": question})


async def draft(run: AsyncRun, topic: str) -> str:
    words = []
    async for word in ask_model(topic):
        run.emit(word)  # the call never waits, and the page gets the word within milliseconds
        words.append(word)
    return "".join(words)


async def ask_model(topic: str) -> AsyncIterator[str]:
    """Yield the words of an answer, as a provider's stream does."""
    text = f"{topic} rise and fall twice a day. The moon pulls the water towards it, and the earth turns below. " * 3
    for word in text.split():
        await asyncio.sleep(SECONDS_PER_WORD)
        yield f"{word} "
