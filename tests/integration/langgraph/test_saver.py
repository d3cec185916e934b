"""`RedisSaver` with real graphs: what is stored, what is sent, and what happens if others change a thread."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from coordinator.errors import BadName, BadOption
from tests.integration.langgraph.graphs import chat, codes, counting, texts
from tests.servers import Server
from workers.integrations.langgraph import RedisSaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def states(graph: Any, config: Any = CONFIG) -> list[Any]:
    """Return everything that the history of a graph tells, without ids and times."""
    return [
        (one.values, one.next, one.metadata["source"], one.metadata["step"]) for one in graph.get_state_history(config)
    ]


def test_history_of_a_graph_is_the_same_as_in_memory(saver_url: str, namespace: str) -> None:
    with RedisSaver(saver_url, namespace) as saver:
        graph, twin = counting().compile(checkpointer=saver), counting().compile(checkpointer=InMemorySaver())
        for one in (graph, twin):
            one.invoke({"kept": b"k" * 1000}, CONFIG)
            for _ in range(6):
                one.invoke({}, CONFIG)
        assert states(graph) == states(twin)
        assert len(graph.get_state(CONFIG).values["deltas"]) == 14


async def test_async_graph_is_resumed_by_another_process(saver_url: str, namespace: str) -> None:
    for number in range(1, 4):
        async with RedisSaver(saver_url, namespace) as saver:
            graph = counting().compile(checkpointer=saver)
            await graph.ainvoke({"kept": b"k"}, CONFIG)
            found = (await graph.aget_state(CONFIG)).values
            assert [one["number"] for one in found["numbers"]] == list(range(2 * number))
            assert len(found["deltas"]) == 2 * number


def test_fork_of_an_earlier_checkpoint_leaves_the_other_branch_as_it_was(saver_url: str, namespace: str) -> None:
    with RedisSaver(saver_url, namespace) as saver:
        graph = chat(texts(100)).compile(checkpointer=saver)
        for _ in range(3):
            graph.invoke({"messages": [HumanMessage("question")]}, CONFIG)
        before = list(graph.get_state_history(CONFIG))
        graph.invoke({"messages": [HumanMessage("another question")]}, before[4].config)
        for one in before:
            assert graph.get_state(one.config).values == one.values
        assert len(graph.get_state(CONFIG).values["messages"]) == len(before[4].values["messages"]) + 2


def test_edited_and_removed_messages_are_stored(saver_url: str, namespace: str) -> None:
    with RedisSaver(saver_url, namespace) as saver:
        graph = chat(texts(100)).compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("question", id="q")]}, CONFIG)
        graph.invoke({"messages": [HumanMessage("corrected", id="q")]}, CONFIG)
    with RedisSaver(saver_url, namespace) as saver:
        messages = chat(texts(100)).compile(checkpointer=saver).get_state(CONFIG).values["messages"]
        assert [messages[0].content, len(messages)] == ["corrected", 3]


def test_interrupted_graph_is_resumed_with_an_answer(saver_url: str, namespace: str) -> None:
    def build(saver: RedisSaver) -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("ask", lambda state: {"messages": [AIMessage(f"told: {interrupt('may I?')}")]})
        graph.add_edge(START, "ask")
        graph.add_edge("ask", END)
        return graph.compile(checkpointer=saver)

    with RedisSaver(saver_url, namespace) as saver:
        assert build(saver).invoke({"messages": []}, CONFIG)["__interrupt__"][0].value == "may I?"
    with RedisSaver(saver_url, namespace) as saver:
        found = build(saver).invoke(Command(resume="yes"), CONFIG)
        assert found["messages"][-1].content == "told: yes"


def test_thread_that_others_delete_or_prune_is_saved_again_whole(saver_url: str, namespace: str) -> None:
    with RedisSaver(saver_url, namespace) as saver, RedisSaver(saver_url, namespace) as other:
        graph = counting().compile(checkpointer=saver)
        config = graph.invoke({"kept": b"k" * 1000}, CONFIG) and graph.get_state(CONFIG).config
        values = graph.get_state(CONFIG).values
        checkpoint = saver.get_tuple(config)
        assert checkpoint is not None
        other.delete_thread("t")
        again: Any = {**checkpoint.checkpoint, "id": "1f0a1b2c-3d4e-6f50-8000-000000000000"}
        saver.put(CONFIG, again, checkpoint.metadata, again["channel_versions"])
        read = other.get_tuple(CONFIG)
        assert read is not None
        assert read.checkpoint["channel_values"]["kept"] == values["kept"]
        assert read.checkpoint["channel_values"]["numbers"] == values["numbers"]


def test_two_processes_that_store_the_same_values_do_not_make_them_unreadable(saver_url: str, namespace: str) -> None:
    """Each process compresses a value against the values that it knows, and they know different ones."""
    one, two = (next(codes()) + end for end in ("1", "2"))
    with RedisSaver(saver_url, namespace) as first, RedisSaver(saver_url, namespace) as second:
        config = first.put(CONFIG, empty_checkpoint(), {}, {})
        first.put_writes(config, [("channel", one)], "task 1")
        second.put_writes(config, [("channel", two), ("channel", one)], "task 2")
        first.put_writes(config, [("channel", two), ("channel", one)], "task 3")
        for reader in (first, second):
            found = reader.get_tuple(CONFIG)
            assert found is not None
            assert found.pending_writes is not None
            assert [value for _, _, value in found.pending_writes] == [one, two, one, two, one]


def test_pruned_thread_continues_with_its_delta_channels(saver_url: str, namespace: str) -> None:
    with RedisSaver(saver_url, namespace) as saver:
        graph = counting().compile(checkpointer=saver)
        for _ in range(4):
            graph.invoke({"kept": b"k"}, CONFIG)
        values = graph.get_state(CONFIG).values
        checkpoints = len(list(saver.list(CONFIG)))
        saver.prune(["t"])
        assert graph.get_state(CONFIG).values == values
        assert len(list(saver.list(CONFIG))) < checkpoints
        graph.invoke({}, CONFIG)
        assert len(graph.get_state(CONFIG).values["deltas"]) == len(values["deltas"]) + 2


def test_all_threads_are_listed_without_a_configuration(saver_url: str, namespace: str) -> None:
    with RedisSaver(saver_url, namespace) as saver:
        graph = chat(texts(100)).compile(checkpointer=saver)
        for number in range(5):
            graph.invoke({"messages": []}, {"configurable": {"thread_id": f"thread {number}"}})
        found = list(saver.list(None, filter={"source": "input"}))
        assert {one.config["configurable"]["thread_id"] for one in found} == {f"thread {n}" for n in range(5)}
        assert len(list(saver.list(None, limit=3))) == 3


def test_large_values_are_read_in_several_trips(
    saver_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.integrations.langgraph.read_plans.ROOM", 1000)
    with RedisSaver(saver_url, namespace) as saver:
        graph = chat(texts(900)).compile(checkpointer=saver)
        for _ in range(4):
            graph.invoke({"messages": [HumanMessage("question")]}, CONFIG)
        assert [len(one.content) for one in graph.get_state(CONFIG).values["messages"]][1::2] == [900] * 4


class Xor(CipherProtocol):
    """A cipher whose text differs each time, as real ones do."""

    number = 0

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        self.number += 1
        key = self.number % 256
        return "xor", bytes([key, *(one ^ key for one in plaintext)])

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(one ^ ciphertext[0] for one in ciphertext[1:])


def test_encrypted_values_are_sent_once_and_never_plain(real_server: Server, namespace: str) -> None:
    with RedisSaver(real_server.url, namespace, serde=EncryptedSerializer(Xor())) as saver:
        graph = chat(texts()).compile(checkpointer=saver)
        sent = []
        for _ in range(20):
            before = received(real_server)
            graph.invoke({"messages": [HumanMessage("a secret")]}, CONFIG)
            sent.append(received(real_server) - before)
        assert sent[-1] < 3 * sent[1]
        assert len(graph.get_state(CONFIG).values["messages"]) == 40
    for key in real_server.admin.scan_iter(f"{{{namespace}:*"):
        if real_server.admin.type(key) == b"hash":
            assert not any(b"secret" in value for value in real_server.admin.hgetall(key).values())


def test_thread_with_a_ttl_expires_after_its_last_write(real_server: Server, namespace: str) -> None:
    with RedisSaver(real_server.url, namespace, ttl=100) as saver:
        chat(texts(10)).compile(checkpointer=saver).invoke({"messages": []}, CONFIG)
    keys = [key for key in real_server.admin.scan_iter(f"{{{namespace}:*") if b":graph-threads:" not in key]
    assert len(keys) == 2
    assert all(90_000 < real_server.admin.pttl(key) <= 100_000 for key in keys)


def test_wrong_options_and_names_are_refused(namespace: str) -> None:
    with pytest.raises(BadOption, match="ttl"):
        RedisSaver("memory://x", namespace, ttl=0)
    with RedisSaver(f"memory://{namespace}", namespace) as saver:
        with pytest.raises(BadOption, match="strategy"):
            saver.prune(["t"], strategy="some")
        with pytest.raises(BadName, match="NUL"):
            saver.put({"configurable": {"thread_id": "a\0b"}}, empty_checkpoint(), {}, {})


def received(server: Server) -> int:
    return int(server.admin.info("stats")["total_net_input_bytes"])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("durability", "make_texts", "most"),
    [("async", texts, 1.3), ("exit", texts, 0.9), ("async", codes, 1.45), ("exit", codes, 1.1)],
)
def test_bytes_sent_for_a_hundred_turns_stay_near_the_size_of_the_transcript(
    real_server: Server, namespace: str, durability: Any, make_texts: Any, most: float
) -> None:
    """LangGraph makes 3 checkpoints and 2 saves of writes in each turn. With "exit" it makes one checkpoint in each turn."""
    pieces = make_texts()
    with RedisSaver(real_server.url, namespace) as saver:
        graph = chat(pieces).compile(checkpointer=saver)
        graph.invoke({"messages": []}, {"configurable": {"thread_id": "warm"}}, durability=durability)
        before = received(real_server)
        for _ in range(100):
            graph.invoke({"messages": [HumanMessage(next(pieces))]}, CONFIG, durability=durability)
        sent = received(real_server) - before
        messages = graph.get_state(CONFIG).values["messages"]
        transcript = sum(len(saver.serde.dumps_typed(message)[1]) for message in messages)
    assert len(messages) == 200
    assert sent <= most * transcript


def test_unchanged_channel_is_not_sent_again(real_server: Server, namespace: str) -> None:
    with RedisSaver(real_server.url, namespace) as saver:
        graph = counting().compile(checkpointer=saver)
        graph.invoke({"kept": bytes(range(256)) * 4000}, CONFIG)
        before = received(real_server)
        graph.invoke({}, CONFIG)
        assert received(real_server) - before < 10_000
