"""`RunSaver` and `run_graph` in a worker: waits, several calls, streams, ownership, and what stays on the server."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from tests.servers import Server
from tests.waiting import wait_until
from workers import AsyncRun, Registry, Retry, Run, testing
from workers.durable import Fenced
from workers.integrations.langgraph import RunSaver, run_graph


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def build(*nodes: Any, state: Any = State) -> Any:
    """Return a graph that calls the nodes one after the other."""
    graph = StateGraph(state)
    for node in nodes:
        graph.add_node(node.__name__, node)
    for before, after in zip(
        (START, *(node.__name__ for node in nodes)), (*(node.__name__ for node in nodes), END), strict=True
    ):
        graph.add_edge(before, after)
    return graph.compile()


def test_interrupt_waits_for_a_signal_and_no_node_is_repeated(real_url: str) -> None:
    runs, calls = Registry[Any](), Counter[str]()

    def plan(state: State) -> dict[str, Any]:
        calls["plan"] += 1
        return {"said": ["planned"]}

    def ask(state: State) -> dict[str, Any]:
        return {"said": [f"answer: {interrupt('may I?')}"]}

    def act(state: State) -> dict[str, Any]:
        calls["act"] += 1
        return {"said": ["done"]}

    graph = build(plan, ask, act)

    @runs.handler(linger=0)
    async def agent(run: AsyncRun, question: str) -> list[str]:
        calls["handler"] += 1
        return list((await run_graph(run, graph, {"said": [question]}))["said"])

    with testing.worker(runs, real_url) as client:
        handle = client.enqueue(agent.inputs("question"))
        wait_until(lambda: str(handle.view().status) == "waiting", "the run to wait for an answer")
        handle.send("resume", "yes")
        assert handle.result(30) == ["question", "planned", "answer: yes", "done"]
    assert calls == {"plan": 1, "act": 1, "handler": 2}


def test_node_that_asks_twice_gets_both_answers_in_order(real_url: str) -> None:
    runs = Registry[Any]()

    def ask(state: State) -> dict[str, Any]:
        return {"said": [interrupt("the same question"), interrupt("the same question")]}

    def ask_again(state: State) -> dict[str, Any]:
        return {"said": [interrupt("another question")]}

    graph = build(ask, ask_again)

    @runs.handler(linger=0)
    async def agent(run: AsyncRun) -> list[str]:
        return list((await run_graph(run, graph, {"said": []}, topic="answer"))["said"])

    with testing.worker(runs, real_url) as client:
        handle = client.enqueue(agent.inputs())
        wait_until(lambda: str(handle.view().status) == "waiting", "the run to wait for an answer")
        for number in range(3):
            handle.send("answer", f"answer {number}")
        assert handle.result(30) == ["answer 0", "answer 1", "answer 2"]


def test_resumed_graph_takes_the_answer_to_its_open_question_and_not_an_earlier_one(real_url: str) -> None:
    runs, calls = Registry[Any](), Counter[str]()

    def first(state: State) -> dict[str, Any]:
        return {"said": [interrupt("first question")]}

    def second(state: State) -> dict[str, Any]:
        return {"said": [interrupt("second question")]}

    graph = build(first, second)

    @runs.handler(linger=0)
    async def agent(run: AsyncRun) -> list[str]:
        calls["handler"] += 1
        return list((await run_graph(run, graph, {"said": []}))["said"])

    with testing.worker(runs, real_url) as client:
        handle = client.enqueue(agent.inputs())
        for number, answer in enumerate(("one", "two"), start=1):
            wait_until(
                lambda: calls["handler"] == number and str(handle.view().status) == "waiting",  # noqa: B023
                "the run to wait for the next answer",
            )
            handle.send("resume", answer)
        assert handle.result(30) == ["one", "two"]
    assert calls["handler"] == 3


def test_calls_in_a_loop_use_one_thread_and_are_not_repeated(real_url: str) -> None:
    runs, calls = Registry[Any](), Counter[str]()

    def model(state: MessagesState) -> dict[str, Any]:
        text = str(state["messages"][-1].content)
        calls[text] += 1
        return {"messages": [AIMessage(f"about {text}, {len(state['messages'])}")]}

    graph = build(model, state=MessagesState)

    @runs.handler(linger=0, retry=Retry(limit=3, wait=0.01))
    async def chat(run: AsyncRun) -> list[str]:
        heard: list[str] = []
        async for turn in run.loop(limit=2):
            signal = await run.receive("question")
            for text in (signal.payload, f"more {signal.payload}"):
                values = await run_graph(run, graph, {"messages": [HumanMessage(text)]})
                heard = [str(one.content) for one in values["messages"]]
            if turn == 1 and not failures:
                failures.append(turn)
                raise RuntimeError("the attempt fails after its calls")
        return heard

    failures: list[int] = []
    with testing.worker(runs, real_url) as client:
        handle = client.enqueue(chat.inputs())
        for text in ("tides", "moons"):
            handle.send("question", text)
        heard = handle.result(30)
    assert failures
    assert calls == {"tides": 1, "more tides": 1, "moons": 1, "more moons": 1}
    assert heard[1::2] == ["about tides, 1", "about more tides, 3", "about moons, 5", "about more moons, 7"]


def test_tokens_of_a_model_are_emitted(real_url: str) -> None:
    runs = Registry[Any]()
    chat_model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))

    async def model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chat_model.ainvoke(state["messages"])]}

    graph = build(model, state=MessagesState)

    @runs.handler
    async def agent(run: AsyncRun) -> str:
        values = await run_graph(run, graph, {"messages": [HumanMessage("count")]}, stream=["messages"])
        return str(values["messages"][-1].content)

    with testing.worker(runs, real_url) as client:
        handle = client.enqueue(agent.inputs())
        assert handle.result(30) == "one two three"
        events = [event.value for event in handle.stream() if hasattr(event, "value")]
    assert "".join(event["text"] for event in events) == "one two three"
    assert {event["node"] for event in events} == {"model"}


def test_saver_of_an_ended_attempt_is_refused(real_url: str) -> None:
    runs, savers = Registry[Any](), list[RunSaver]()

    def node(state: State) -> dict[str, Any]:
        return {"said": ["once"]}

    @runs.handler
    async def agent(run: AsyncRun) -> list[str]:
        savers.append(RunSaver(run))
        values = await run_graph(run, build(node), {"said": []})
        return list(values["said"])

    with testing.worker(runs, real_url) as client:
        handle = client.enqueue(agent.inputs())
        assert handle.result(30) == ["once"]
        saved = savers[0].get_tuple({"configurable": {"thread_id": handle.id}})
        assert saved is not None
        with pytest.raises(Fenced):
            savers[0].put(saved.config, saved.checkpoint, {}, {})
        with pytest.raises(Fenced):
            savers[0].put_writes(saved.config, [("said", "late")], "task")
        with pytest.raises(Fenced):
            savers[0].delete_thread(handle.id)
        again = savers[0].get_tuple({"configurable": {"thread_id": handle.id}})
        assert again == saved


def test_plain_handler_runs_a_graph_with_its_saver(real_server: Server) -> None:
    runs = Registry[Any]()

    def node(state: State) -> dict[str, Any]:
        return {"said": ["once"]}

    @runs.handler
    def agent(run: Run) -> list[str]:
        graph = build(node)
        graph.checkpointer = RunSaver(run)
        config: Any = {"configurable": {"thread_id": "any"}}
        graph.invoke({"said": ["first"]}, config)
        return list(graph.invoke({"said": ["second"]}, config)["said"])

    with testing.worker(runs, real_server.url) as client:
        handle = client.enqueue(agent.inputs())
        assert handle.result(30) == ["first", "once", "second", "once"]
        keys = list(real_server.admin.scan_iter(f"*:graph*{handle.id}*"))
        assert len(keys) == 3
        assert all(real_server.admin.pttl(key) > 0 for key in keys)


def test_failed_node_is_retried_without_the_nodes_before_it(real_url: str) -> None:
    runs, calls = Registry[Any](), Counter[str]()

    def first(state: State) -> dict[str, Any]:
        calls["first"] += 1
        return {"said": ["first"]}

    def second(state: State) -> dict[str, Any]:
        calls["second"] += 1
        if calls["second"] == 1:
            raise ValueError("not yet")
        return {"said": ["second"]}

    graph = build(first, second)

    @runs.handler(retry=Retry(limit=3, wait=0.01))
    async def agent(run: AsyncRun) -> list[str]:
        return list((await run_graph(run, graph, {"said": []}))["said"])

    with testing.worker(runs, real_url) as client:
        assert client.enqueue(agent.inputs()).result(30) == ["first", "second"]
    assert calls == {"first": 1, "second": 2}


def test_graph_continues_after_a_task_whose_writes_are_saved_and_whose_checkpoint_is_not(
    real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, calls = Registry[Any](), Counter[str]()

    def first(state: State) -> dict[str, Any]:
        calls["first"] += 1
        return {"said": ["first"]}

    def second(state: State) -> dict[str, Any]:
        calls["second"] += 1
        return {"said": ["second"]}

    graph, put = build(first, second), RunSaver.aput

    async def put_or_break(saver: RunSaver, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        calls["put"] += 1
        if calls["put"] == 3:  # after the input and the start: the checkpoint after the first node
            raise ConnectionError("the process ends here")
        return await put(saver, config, checkpoint, metadata, versions)

    monkeypatch.setattr(RunSaver, "aput", put_or_break)

    @runs.handler(retry=Retry(limit=3, wait=0.01))
    async def agent(run: AsyncRun) -> list[str]:
        return list((await run_graph(run, graph, {"said": []}))["said"])

    with testing.worker(runs, real_url) as client:
        assert client.enqueue(agent.inputs()).result(30) == ["first", "second"]
    assert (calls["first"], calls["second"]) == (1, 1)


async def test_graph_runs_in_a_run_in_memory() -> None:
    def node(state: State) -> dict[str, Any]:
        return {"said": [f"answer: {interrupt('question')}"]}

    graph = build(node)

    async def agent(run: AsyncRun) -> list[str]:
        return list((await run_graph(run, graph, {"said": []}))["said"])

    run = testing.AsyncRun()
    run.send("resume", "yes")
    assert await agent(run) == ["answer: yes"]
