"""A user of the lab, as a process of its own. It uses the features that a run needs more than a producer for.

    python -m tests.faults.programs.user SEED

A user sends signals, enqueues parents of children, limits groups and rates, reads output and sets schedules. It never cancels,
pauses or damages anything, so a campaign with any fault can have a user. `operator.py` does the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import redis

from coordinator import Client, CoordinatorError, ResultTimeout, RunView, Status
from tests.faults.programs.app import RATE, answer_all

REST = 0.25  # seconds between two actions
SCHEDULES = {"first": 1.0, "second": 2.0}  # schedules and the seconds between their fire times


class User:
    """The client and the random choices of a user."""

    def __init__(self, seed: int, stopped: threading.Event) -> None:
        self.choose, self.stopped = random.Random(seed), stopped
        self.client = Client(timeout=5.0)
        self.asking: list[str] = []
        self.numbers = itertools.count()

    def inputs(self, turns: int = 4) -> dict[str, Any]:
        return {"topic": f"small-user-{os.getpid()}-{next(self.numbers)}", "turns": turns}

    def some_run(self, *statuses: Status) -> RunView | None:
        found = self.client.list(status=self.choose.choice(statuses), limit=30)
        return self.choose.choice(found) if found else None

    def a_while(self) -> None:
        self.stopped.wait(self.choose.uniform(0.1, 0.4))

    def next_action(self) -> Callable[[], None]:
        action = self.choose.choice(ACTIONS)
        return lambda: action(self)

    def work(self) -> None:
        while not self.stopped.wait(REST):
            action = self.next_action()
            with contextlib.suppress(CoordinatorError, redis.RedisError):
                action()


# ---- runs --------------------------------------------------------------------------------------------------------------


def look(by: User) -> None:
    if run := by.some_run(Status.RUNNING, Status.QUEUED):
        handle = by.client.handle(run.id)
        handle.view()
        list(handle.messages())
        handle.wait(timeout=0.3)


def read_output(by: User) -> None:
    """Read the outputs of two runs at the same time: the second reader interrupts the blocking read of the first."""
    found = [by.some_run(Status.RUNNING, Status.QUEUED) for _ in range(2)]
    readers = [by.client.handle(run.id).stream(timeout=0.3) for run in found if run is not None]
    for reader in readers:
        with contextlib.suppress(StopIteration, ResultTimeout):
            next(reader)
    for reader in readers:
        with contextlib.suppress(ResultTimeout):
            list(itertools.islice(reader, 5))


def enqueue_asking_run(by: User) -> None:
    """Enqueue a run that waits for signals. `answer` sends them to it later."""
    by.asking.append(by.client.enqueue("asking", by.inputs()).id)
    if len(by.asking) > 5:
        _answer(by, by.asking.pop(0))


def enqueue_summing_run(by: User) -> None:
    """Enqueue a run that waits for children."""
    by.client.enqueue("summing", by.inputs(by.choose.choice([1, 4, 8])))


def limit_group(by: User) -> None:
    """Change the limit of a group, and enqueue runs of the group."""
    group = by.choose.choice(["first", "second"])
    by.client.set_limit("plain", at_once=by.choose.choice([1, 2, 5]), group=group)
    by.client.enqueue_many([("plain", by.inputs()) for _ in range(3)], group=group)


def fill_group(by: User) -> None:
    """Enqueue enough runs of a group that some wait in its line for seconds. Coordinators sweep only while runs wait."""
    by.client.set_limit("plain", at_once=1, group="third")
    by.client.enqueue_many([("plain", by.inputs(turns=8)) for _ in range(12)], group="third")


def call_outside(by: User) -> None:
    """Set the rate of the external calls, and enqueue runs that make such calls."""
    by.client.set_rate(RATE, "60/s", burst=10, at_once=3)
    by.client.enqueue_many([("calling", by.inputs()) for _ in range(3)])


def answer(by: User) -> None:
    """Send signals to a run that waits, or to a new one."""
    if not by.asking:
        enqueue_asking_run(by)
    _answer(by, by.choose.choice(by.asking))


def _answer(by: User, id: str) -> None:
    handle = by.client.handle(id)
    if by.choose.random() < 0.5:
        handle.send("hint")
    answer_all(lambda topic, payload, key: handle.send(topic, payload, key=key), by.choose.choice([1, 4]))


# ---- schedules --------------------------------------------------------------------------------------------------------


def schedule(by: User) -> None:
    _scheduled(by)


def _scheduled(by: User) -> str:
    name = by.choose.choice(list(SCHEDULES))
    overlap = by.choose.choice(["skip", "allow", "cancel"])
    by.client.schedule(name, SCHEDULES[name], "plain", {"topic": f"small-{name}", "turns": 3}, overlap=overlap)
    return name


def pause_schedule(by: User) -> None:
    name = _scheduled(by)
    by.client.pause_schedule(name)
    try:
        by.a_while()
    finally:
        by.client.unpause_schedule(name)


def unschedule(by: User) -> None:
    by.client.unschedule(_scheduled(by))


ACTIONS: tuple[Callable[[User], None], ...] = (
    look, read_output, enqueue_asking_run, answer, enqueue_summing_run, limit_group, call_outside,
    schedule, pause_schedule, unschedule,
)  # fmt: skip


def main() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    User(int(sys.argv[1]), stopped).work()


if __name__ == "__main__":
    main()
