"""langgraph's savers with a growing transcript: one message and one checkpoint per step, as a graph with a `messages` channel does.

    program URL STEPS DIRECTORY     {"sqlite": {"bytes": …, "early_ms": …, "late_ms": …}, "redis": the same, or the problem}

For sqlite, the bytes are those that the process passed to the operating system. So both figures count what is sent, not what is
kept.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.redis import RedisSaver
from langgraph.checkpoint.sqlite import SqliteSaver

TEXT = "x" * 1000


def written() -> int:
    """Return the bytes that this process has passed to write calls and sockets."""
    return int(
        next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("wchar")).split()[1]
    )


def steps(saver: Any, count: int) -> dict[str, float]:
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    messages: list[dict[str, str]] = []
    spent, before = [], written()
    for number in range(count):
        messages.append({"role": "assistant", "content": TEXT})
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": list(messages)}
        checkpoint["channel_versions"] = {"messages": number + 1}
        began = time.perf_counter()
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"messages": number + 1})
        spent.append((time.perf_counter() - began) * 1000)
    return {
        "bytes": written() - before,
        "early_ms": statistics.median(spent[: count // 4]),
        "late_ms": statistics.median(spent[-count // 4 :]),
    }


def with_sqlite(count: int, directory: str) -> dict[str, float]:
    with SqliteSaver.from_conn_string(f"{directory}/checkpoints.db") as saver:
        return steps(saver, count)


def with_redis(count: int, url: str) -> dict[str, float]:
    with RedisSaver.from_conn_string(url) as saver:
        saver.setup()
        return steps(saver, count)


def tried(work: Callable[[], dict[str, float]]) -> Any:
    try:
        return work()
    except Exception as error:  # noqa: BLE001  # The reason why a saver can not run here is part of the report.
        return f"{type(error).__name__}: {error}"[:200]


if __name__ == "__main__":
    url, count, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    found = {"sqlite": tried(lambda: with_sqlite(count, directory)), "redis": tried(lambda: with_redis(count, url))}
    print(json.dumps(found))
