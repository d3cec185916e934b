"""Turn the chunks that a graph streams into events of plain data."""

from __future__ import annotations

from typing import Any

from coordinator.encoding.codec import encode
from coordinator.errors import NotPlain


def plain_event(mode: str, chunk: Any) -> Any:
    """Return the event for a chunk, for the readers of a run's output.

    Args:
        mode: The stream mode of LangGraph.
        chunk: The chunk, as LangGraph streams it in this mode.

    Returns:
        In the mode "messages": the text of the chunk, its node and the id of the message, or None if it has no text. In other
        modes: the chunk if it is plain data, otherwise the names of the nodes or channels in it.
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
