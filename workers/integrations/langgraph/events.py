"""Events of plain data from the chunks that a graph streams."""

from __future__ import annotations

from typing import Any

from coordinator.encoding.codec import encode
from coordinator.errors import NotPlain


def plain_event(mode: str, chunk: Any) -> Any:
    """Return an event for the readers of a run's output.

    Args:
        mode: The mode of LangGraph's streaming.
        chunk: The chunk, as LangGraph streams it in this mode.

    Returns:
        For "messages" the text of the piece, its node and the id of the message; for other modes the chunk if it is plain data,
        otherwise the names of the nodes or channels in it. None for a message without text.
    """
    if mode == "messages":
        message, metadata = chunk
        text = message.text if isinstance(message.text, str) else ""
        if not text:
            return None
        return {"mode": mode, "text": str(text), "node": metadata.get("langgraph_node", ""), "id": message.id or ""}
    try:
        encode(chunk, "the chunk")
    except NotPlain:
        return {"mode": mode, "names": [str(name) for name in chunk] if isinstance(chunk, dict) else []}
    return {"mode": mode, "data": chunk}
