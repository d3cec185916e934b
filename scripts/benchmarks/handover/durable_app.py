"""run-coordinator: the same work as in peers/hayhooks_app.py."""

from __future__ import annotations

import asyncio

from marks import mark

from workers import AsyncRun, Registry

runs = Registry()


@runs.handler
async def chat(run: AsyncRun, steps: int, seconds: float, text: str) -> int:
    """Append a message in each step, and save it."""
    mark("start", run.id, len(run.messages), run.attempt)
    while len(run.messages) < steps:
        mark("step", run.id, len(run.messages), run.attempt)
        run.messages.append({"role": "assistant", "content": text})
        await run.flush()
        await asyncio.sleep(seconds)
    return len(run.messages)


@runs.handler(linger=0)
async def approval(run: AsyncRun, steps: int, seconds: float, text: str) -> int:
    """Wait until a client sends a signal."""
    if not run.resumed:
        mark("waits", run.id, 0, run.attempt)
    await run.receive("go")
    mark("resumed", run.id, 0, run.attempt)
    return 0
