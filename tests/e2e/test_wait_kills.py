"""SIGKILL of workers, coordinators and the server while runs wait.

Signals are received once and in order, and children are counted once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from coordinator import Client, Handle, Status
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import Stage, children
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases of a promise")

WAITERS = int(os.environ.get("RUNS_TEST_WAITERS", "40"))
KILLS = int(os.environ.get("RUNS_TEST_KILLS", "8"))
PARENTS = int(os.environ.get("RUNS_TEST_PARENTS", "20"))
CHILDREN = int(os.environ.get("RUNS_TEST_CHILDREN", "10"))
SIGNALS = 5


def kill_a_worker(fleet: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(
            random.choice(wait_until(lambda: children(fleet), "the fleet has a process", timeout=60)), signal.SIGKILL
        )


@pytest.mark.timeout(180 + 10 * KILLS)
def test_signals_are_received_once_and_in_order_while_everything_is_killed(stage: Stage, client: Client) -> None:
    coordinator = stage.coordinator()
    options = ["--processes", "2", "--concurrency", "10", "--lease", "5"]
    fleet = stage._start("workers", "start", "tests.e2e.wait_app:runs", *options)
    handles: list[Handle[list[int]]] = [
        client.enqueue("listener" if number % 2 else "plain_listener", {"count": SIGNALS}) for number in range(WAITERS)
    ]
    wait_until(lambda: stage.events("start"), "the first run has started", timeout=60)
    sends = [(handle, number) for number in range(SIGNALS) for handle in handles]
    every = max(1, len(sends) // (KILLS + 1))
    for place, (handle, number) in enumerate(sends, 1):
        assert handle.send(random.choice(["word", "other"]), number, key=str(number))
        if place % every:
            continue
        kill_a_worker(fleet.pid)
        if place % (3 * every) == 0:
            coordinator.kill()
            coordinator.wait()
            coordinator = stage.coordinator()
        enough = 0.8 * place  # Every signal that was sent is heard sometime, so this is reached after any kill.
        wait_until(lambda: len(stage.events("heard")) >= enough, "most signals to be heard", timeout=60)  # noqa: B023
    endings = Counter(handle.wait(120) for handle in handles)
    assert endings == {Status.COMPLETED: WAITERS}, "none is dead, failed or forgotten"
    assert [handle.result() for handle in handles] == [list(range(SIGNALS))] * WAITERS
    views = [handle.view() for handle in handles]
    assert sum(view.counters.failures for view in views) == 0, "a wait is no failure"


@pytest.mark.timeout(180 + 10 * KILLS)
def test_parents_get_the_result_of_each_child_once_while_everything_is_killed(stage: Stage, client: Client) -> None:
    coordinator = stage.coordinator()
    options = ["--processes", "2", "--concurrency", "10", "--lease", "5"]
    fleet = stage._start("workers", "start", "tests.e2e.wait_app:runs", *options)
    handles: list[Handle[int]] = [
        client.enqueue("parent", {"count": CHILDREN, "at_once": None if number % 2 else 3}) for number in range(PARENTS)
    ]
    all_children = 2 * PARENTS * CHILDREN
    for kill in range(1, KILLS + 1):
        enough = all_children * kill // (KILLS + 2)
        wait_until(lambda: len(stage.events("child")) >= enough, "some children to run", timeout=90)  # noqa: B023
        kill_a_worker(fleet.pid)
        if kill % 3 == 0:
            coordinator.kill()
            coordinator.wait()
            coordinator = stage.coordinator()
    endings = Counter(handle.wait(120) for handle in handles)
    assert endings == {Status.COMPLETED: PARENTS}, "none is dead, failed or forgotten"
    assert [handle.result() for handle in handles] == [2 * sum(range(CHILDREN))] * PARENTS
    ran = {event.run for event in stage.events("child")}
    assert len(ran) == all_children, "each child was enqueued once"
    assert sum(handle.view().counters.failures for handle in handles) == 0, "a wait is no failure"


@pytest.mark.timeout(180 + 10 * KILLS)
def test_signals_are_received_once_and_in_order_while_the_server_is_killed(
    make_stage: MakeStage, start_server: Any
) -> None:
    server = start_server()
    stage = make_stage(server)
    stage.coordinator()
    options = ["--processes", "2", "--concurrency", "10", "--lease", "5"]
    stage._start("workers", "start", "tests.e2e.wait_app:runs", *options)
    with Client(stage.url, stage.namespace) as client, ThreadPoolExecutor(1) as sender:
        handles: list[Handle[list[int]]] = [
            client.enqueue("listener" if number % 2 else "plain_listener", {"count": SIGNALS})
            for number in range(WAITERS // 2)
        ]
        parents: list[Handle[int]] = [client.enqueue("parent", {"count": 3, "at_once": None}) for _ in range(3)]
        wait_until(lambda: stage.events("start"), "the first run has started", timeout=60)
        for number in range(SIGNALS):
            for place, handle in enumerate(handles):
                if place == len(handles) // 2:
                    server.kill()
                    sending = sender.submit(handle.send, "word", number, key=str(number))
                    server.restart()
                    assert sending.result(60)
                else:
                    assert handle.send(random.choice(["word", "other"]), number, key=str(number))
            enough = 0.8 * len(handles) * (number + 1)
            wait_until(lambda: len(stage.events("heard")) >= enough, "most signals to be heard", timeout=60)  # noqa: B023
        assert Counter(handle.wait(120) for handle in [*handles, *parents]) == {
            Status.COMPLETED: len(handles) + len(parents)
        }
        assert [handle.result() for handle in handles] == [list(range(SIGNALS))] * len(handles)
        assert [parent.result() for parent in parents] == [6] * len(parents)
        assert sum(handle.view().counters.failures for handle in handles) == 0, "a wait is no failure"
