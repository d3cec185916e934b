"""Handlers that put a given text into every field that a handler controls."""

from __future__ import annotations

from typing import Any

from workers import AsyncRun, Registry

runs: Registry[None] = Registry()


@runs.handler(throttle=0, at_once=1)
async def hostile(run: AsyncRun[None], text: str, more: Any = None) -> None:
    run.messages.append({"role": text, "content": text, text: text})
    run.messages.append({"role": "user", "content": [{"type": text, "x": text}, {"type": "text", "text": text}, text]})
    run.messages.append(
        {
            "role": "assistant",
            "content": text,
            "tool_calls": [{"id": text, "function": {"name": text, "arguments": text}}],
        }
    )
    run.messages.append({"role": "tool", "tool_call_id": text, "name": text, "content": text * 30})
    run.state[text] = [text]
    run.note(text)
    await run.phase("search", _echo, text)
    await run.phase(text, _echo, text)
    run.emit(text)
    run.emit({"delta": text})
    run.emit({text: [text]})
    await run.once(text, _echo, text)
    raise ValueError(text)


async def _echo(text: str) -> dict[str, str]:
    return {text: text}


@runs.handler
async def returns(run: AsyncRun[None], text: str = "") -> dict[str, str]:
    return {text: text}
