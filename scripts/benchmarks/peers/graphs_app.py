"""Checkpointers of LangGraph with the same chat: a graph with one node, messages of 1,000 characters, one call for each turn.

    program SAVER URL TURNS DIRECTORY DURABILITY     {"bytes": …, "transcript": …, "put_ms": …, …}, or {"problem": …}

SAVER is ours, redis (langgraph-checkpoint-redis), postgres (langgraph-checkpoint-postgres), sqlite or memory. The bytes are those
that a saver sends, and not those that it keeps: the bytes that the server receives, that the process has sent on its connection, or
that it passes to write calls. Times are medians of the last quarter of the calls. The times with cpu are the processor time of the
process, which other programs of the machine do not change.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph

SIZE = 1000
PROSE = " ".join(path.read_text() for path in sorted((Path(__file__).parents[3] / "docs").rglob("*.md")))


def texts() -> Iterator[str]:
    place = 0
    while True:
        yield PROSE[place : place + SIZE]
        place = (place + SIZE) % (len(PROSE) - SIZE)


BYTES_SENT = 200  # the place of tcpi_bytes_sent in Linux's struct tcp_info


def sent_bytes(name: str, url: str, saver: Any) -> int:
    if name in ("ours", "redis"):
        with redis.Redis.from_url(url) as admin:
            return int(admin.info("stats")["total_net_input_bytes"])
    if name == "postgres":
        with socket.socket(fileno=os.dup(saver.conn.fileno())) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return int(struct.unpack_from("Q", info, BYTES_SENT)[0])
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


@contextmanager
def opened(name: str, url: str, directory: str) -> Iterator[Any]:
    if name == "ours":
        from workers.integrations.langgraph import RedisSaver

        with RedisSaver(url) as saver:
            yield saver
    elif name == "redis":
        from langgraph.checkpoint.redis import RedisSaver as TheirSaver

        with TheirSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver
    elif name == "postgres":
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver
    elif name == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(f"{directory}/checkpoints.db") as saver:
            yield saver
    else:
        from langgraph.checkpoint.memory import InMemorySaver

        yield InMemorySaver()


def timed(saver: Any, method: str) -> list[tuple[float, float]]:
    """Measure each call of a method: its time and its CPU time, in ms."""
    spent: list[tuple[float, float]] = []
    original = getattr(saver, method)

    def call(*arguments: Any, **given: Any) -> Any:
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            return original(*arguments, **given)
        finally:
            spent.append(((time.perf_counter() - began) * 1000, (time.thread_time() - cpu) * 1000))

    setattr(saver, method, call)
    return spent


def medians(name: str, spent: list[tuple[float, float]]) -> dict[str, float]:
    last = spent[-len(spent) // 4 :]
    wall, cpu = (round(statistics.median(one[place] for one in last), 3) for place in (0, 1))
    return {f"{name}_ms": wall, f"{name}_cpu_ms": cpu}


def measure(name: str, url: str, saver: Any, turns: int, durability: Any) -> dict[str, Any]:
    pieces = texts()
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [AIMessage(next(pieces))]})
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    compiled = graph.compile(checkpointer=saver)
    compiled.invoke({"messages": []}, {"configurable": {"thread_id": "warm"}}, durability=durability)
    puts, gets = timed(saver, "put"), timed(saver, "get_tuple")
    config: Any = {"configurable": {"thread_id": "1"}}
    before = sent_bytes(name, url, saver)
    for _ in range(turns):
        compiled.invoke({"messages": [HumanMessage(next(pieces))]}, config, durability=durability)
    sent = sent_bytes(name, url, saver) - before
    messages = compiled.get_state(config).values["messages"]
    assert len(messages) == 2 * turns
    return {
        "bytes": sent,
        "transcript": sum(len(saver.serde.dumps_typed(message)[1]) for message in messages),
        **medians("put", puts),
        **medians("get", gets),
    }


if __name__ == "__main__":
    name, url, turns, directory, durability = sys.argv[1:]
    try:
        with opened(name, url, directory) as saver:
            found = measure(name, url, saver, int(turns), durability)
    except Exception as error:  # noqa: BLE001  # The reason why a saver can not run here is part of the report.
        found = {"problem": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(found))
