"""Approvals of tool calls, which the run receives as signals."""

from __future__ import annotations

import logging
from typing import Any

from agents import RunState
from agents.items import ToolApprovalItem

from workers.handlers.async_run import AsyncRun
from workers.integrations.steps import note_waits, topic_of

logger = logging.getLogger(__name__)


async def receive_decisions(run: AsyncRun[Any], state: RunState[Any, Any], items: list[ToolApprovalItem]) -> None:
    """Wait for the decision about each tool call, one signal after the other, and record it in the state.

    Args:
        run: The run.
        state: The state of the agent that has asked for the approvals.
        items: The tool calls.
    """
    topics = {topic_of("approval", _call_id(item)): item for item in items}
    waits = (f"the approval of tool {item.name!r} on topic {topic}" for topic, item in topics.items())
    await note_waits(run, waits)
    for topic, item in topics.items():
        approved, message = await _receive_decision(run, topic)
        if approved:
            state.approve(item)
        else:
            state.reject(item, rejection_message=message)


async def _receive_decision(run: AsyncRun[Any], topic: str) -> tuple[bool, str | None]:
    while True:
        payload = (await run.receive(topic)).payload
        given = payload if isinstance(payload, dict) else {"approved": payload}
        if isinstance(given.get("approved"), bool):
            return given["approved"], given.get("message")
        logger.warning(
            "signal not understood: run %s got %.200r on topic %s; send true, false, or a dict with `approved`",
            run.id, payload, topic, extra={"run": run.id},
        )  # fmt: skip


def _call_id(item: ToolApprovalItem) -> str:
    raw: Any = item.raw_item
    fields = raw if isinstance(raw, dict) else vars(raw)
    return str(fields.get("call_id") or fields.get("id"))
