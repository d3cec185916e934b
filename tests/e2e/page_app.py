"""Handlers for the tests of the page: one that emits and is lost, one with effects and a budget, and a tree of runs."""

from __future__ import annotations

from tests.e2e.app import journal, opened
from workers import AsyncRun, Registry

runs: Registry[None] = Registry()


@runs.handler(throttle=0)
async def teller(run: AsyncRun[None]) -> str:
    """Emit a word and save it, emit a word that no checkpoint covers, and wait for the test."""
    if not run.state.get("saved"):
        run.emit({"delta": "kept "})
        run.state["saved"] = True
        await run.flush()
    attempt = run.token.split("-")[0]
    run.emit({"delta": f"attempt-{attempt} "})
    run.note("waits for the test", 1, 2)
    journal(run, "said")
    await opened(run, "all")
    run.emit({"step": 3, "of": 3})
    return "told"


@runs.handler(throttle=0, keep_messages=True)
async def talker(run: AsyncRun[None]) -> None:
    """Have a conversation with a call of a tool, whose reply is long."""
    call = {"id": "c1", "function": {"name": "search", "arguments": '{"query": "tides"}'}}
    run.messages.append({"role": "user", "content": "When is high tide?"})
    run.messages.append({"role": "assistant", "content": "I look it up.", "tool_calls": [call]})
    run.messages.append({"role": "tool", "tool_call_id": "c1", "name": "search", "content": "moon " * 20_000})
    run.messages.append({"role": "assistant", "content": "At noon."})
    await run.flush()


@runs.handler(throttle=0, keep_messages=True)
async def grower(run: AsyncRun[None]) -> None:
    """Save one message, and then 250 messages at once when the test opens the gate `more`."""
    run.messages.append({"role": "user", "content": "first"})
    await run.flush()
    await opened(run, "more")
    for number in range(250):
        run.messages.append({"role": "assistant", "content": str(number)})
    await run.flush()
    await opened(run, "all")


async def _charge() -> str:
    return "paid"


async def _break() -> str:
    raise ValueError("the other system did not answer")


@runs.handler(throttle=0)
async def buyer(run: AsyncRun[None]) -> None:
    """Spend a part of the budget, finish one effect, and leave another one with an unknown outcome."""
    run.spend(usd=1.25, tokens=4000)
    await run.once("charge", _charge)
    await run.once("refund", _break)


@runs.handler
async def leaf(run: AsyncRun[None]) -> None:
    """Wait for the test."""
    await opened(run, "all")


@runs.handler
async def root(run: AsyncRun[None]) -> None:
    """Wait for three children."""
    await run.gather("leaves", [leaf.inputs() for _ in range(3)])
