"""Graphs of LangGraph with a scripted model, for the end-to-end tests. Every call of a node is written to the journal."""

from __future__ import annotations

import operator
from contextvars import ContextVar
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from tests.e2e.app import journal
from tests.waiting import work_for
from workers import AsyncRun, Registry
from workers.integrations.langgraph import run_graph

runs = Registry[Any]()
STEPS = 12
current: ContextVar[AsyncRun[Any]] = ContextVar("current")


class State(TypedDict):
    texts: Annotated[list[dict[str, Any]], operator.add]


async def model(state: State) -> dict[str, Any]:
    """Answer as a model would, and take a moment for it."""
    number = len(state["texts"])
    journal(current.get(), "model", number)
    await work_for(0.02)
    journal(current.get(), "paid", number)
    return {"texts": [{"number": number, "text": f"answer {number} " * 20}]}


def ask(state: State) -> dict[str, Any]:
    """Ask a person in the middle of the work."""
    return {"texts": [{"number": len(state["texts"]), "text": str(interrupt("may I go on?"))}]}


def route(state: State) -> str:
    done = len(state["texts"])
    return END if done >= STEPS else "ask" if done == STEPS // 2 else "model"


def build() -> Any:
    graph = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("ask", ask)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", route, ["model", "ask", END])
    graph.add_conditional_edges("ask", route, ["model", END])
    return graph.compile()


GRAPH = build()


@runs.handler(linger=0.1, throttle=0)
async def agent(run: AsyncRun) -> list[int]:
    """Run the graph, and return the numbers of its texts."""
    current.set(run)
    journal(run, "start")
    values = await run_graph(run, GRAPH, {"texts": []})
    journal(run, "end")
    return [text["number"] for text in values["texts"]]
