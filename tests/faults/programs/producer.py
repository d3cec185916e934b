"""A producer of the lab, in a process of its own. It keeps a number of runs in progress until SIGTERM.

    python -m tests.faults.programs.producer SEED UNDER_WAY MOST

It enqueues in all possible ways: one run, several at once, twice with the same key. It also cancels and revives. It
ignores calls that are not confirmed: the history contains them, and the judge counts only acknowledged ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from coordinator import Client, CoordinatorError, Status

WAITING = (Status.QUEUED, Status.DELAYED, Status.RUNNING)
KINDS = ("agent", "agent", "agent", "plain", "stumbling", "failing", "charging", "spending")


def inputs(choose: random.Random, number: int, turns: int = 12) -> tuple[str, dict[str, Any]]:
    """Return the kind and the inputs of the next run."""
    size = "large" if choose.random() < 0.08 else "small"
    topic = f"{size}-{os.getpid()}-{number}"
    return choose.choice(KINDS), {"topic": topic, "turns": choose.randint(3, turns)}


def work(seed: int, under_way: int, most: int, stopped: threading.Event) -> None:
    choose = random.Random(seed)
    made = _numbers(most)
    with Client(timeout=5) as client:
        while not stopped.wait(0.05):
            with contextlib.suppress(CoordinatorError, StopIteration):
                overview = client.status()
                room = under_way - sum(overview.counts[status] for status in WAITING)
                while room > 0 and not stopped.is_set():
                    room -= _enqueue_some(client, choose, made)


def _numbers(most: int) -> Iterator[int]:
    return iter(range(most))


def _enqueue_some(client: Client, choose: random.Random, made: Iterator[int]) -> int:
    """Enqueue some runs in one of the ways, and return their number."""
    way = choose.random()
    if way < 0.5:
        handle = client.enqueue(*inputs(choose, next(made)))
        if way < 0.04:  # usually it is still queued
            handle.cancel(grace=5)
        return 1
    if way < 0.54:
        for view in client.list(status=Status.FAILED, limit=1):
            client.handle(view.id).revive()
        return 1
    if way < 0.8:
        client.enqueue_many([inputs(choose, next(made)) for _ in range(3)])
        return 3
    kind, given = inputs(choose, next(made))
    for _ in range(2):  # The second call finds the run of the first one.
        client.enqueue(kind, given, key=given["topic"])
    return 1


def main() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    seed, under_way, most = (int(word) for word in sys.argv[1:4])
    work(seed, under_way, most, stopped)


if __name__ == "__main__":
    main()
