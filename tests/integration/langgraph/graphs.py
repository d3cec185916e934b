"""Graphs for the tests of checkpointers, and the text of a transcript."""

from __future__ import annotations

import base64
import operator
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph

PROSE = " ".join(path.read_text() for path in sorted((Path(__file__).parents[3] / "docs").rglob("*.md")))


def texts(size: int = 1000) -> Iterator[str]:
    """Yield pieces of prose, each with this many characters."""
    place = 0
    while True:
        yield PROSE[place : place + size]
        place = (place + size) % (len(PROSE) - size)


def codes(size: int = 1000) -> Iterator[str]:
    """Yield texts of random characters, which cannot be compressed by more than a quarter."""
    source = random.Random(1)
    while True:
        yield base64.b64encode(source.randbytes(size * 3 // 4)).decode()


def chat(replies: Iterator[str]) -> Any:
    """Return a graph with a transcript and one node, which answers with the next text."""
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [AIMessage(next(replies))]})
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    return graph


def extend(before: list[str], writes: Any) -> list[str]:
    return [*before, *(one for write in writes for one in write)]


class Counted(TypedDict):
    numbers: Annotated[list[dict[str, int]], operator.add]
    deltas: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=5)]
    last: dict[str, Any]
    kept: bytes


def count(state: Counted) -> dict[str, Any]:
    number = len(state.get("numbers", []))
    return {"numbers": [{"number": number}], "deltas": [f"text {number} " * 10], "last": {"number": number}}


def counting() -> Any:
    """Return a graph with an appended list, a delta channel, a value that changes, and one that does not."""
    graph = StateGraph(Counted)
    for name in ("first", "second"):
        graph.add_node(name, count)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph
