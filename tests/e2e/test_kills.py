"""SIGKILL at random moments of an agent's work, RUNS_TEST_KILLS times: no acknowledged work is repeated."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial

import pytest

from coordinator import Client, Handle, Status
from tests.e2e.agent_app import TURNS, answer
from tests.e2e.processes import Event, Stage, children
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases of a promise")

KILLS = int(os.environ.get("RUNS_TEST_KILLS", "12"))
CONCURRENCY = 10
LAST_BUT_ONE = 2  # With one more strike than this, the run is dead.


@dataclass
class ConstantLoad:
    """A constant number of runs. When one ends, the next one is enqueued."""

    client: Client
    handles: dict[str, Handle[str]] = field(default_factory=dict)
    living: set[str] = field(default_factory=set)

    def fill(self) -> None:
        while len(self.living) < CONCURRENCY:
            topic = f"topic-{len(self.handles)}"
            handle = self.client.enqueue("research", {"topic": topic})
            self.handles[topic] = handle
            self.living.add(topic)

    def may_kill(self) -> bool:
        """Return True if a process may be killed now.

        A kill must not be the third strike of a run that made no progress twice.
        """
        views = {topic: self.handles[topic].view() for topic in self.living}
        self.living -= {topic for topic, view in views.items() if view.status.ended}
        if any(view.counters.strikes >= LAST_BUT_ONE for view in views.values() if not view.status.ended):
            return False  # No other runs are started, because this run waits for an empty process.
        self.fill()
        return True


def kill_one(stage: Stage, fleet: int) -> None:
    """Kill a process that has begun to save.

    The supervisor replaces processes that end before they are ready more and more slowly.
    """

    def at_work() -> list[int]:
        working = {event.pid for event in stage.events("saved")}
        return [pid for pid in children(fleet) if pid in working]

    victim = random.choice(wait_until(at_work, "the fleet has a process that saves", timeout=60))
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)


def kill_again_and_again(herd: ConstantLoad, stage: Stage, fleet: int) -> None:
    for _ in range(KILLS):
        # The random moment is when the journal has grown by a random number of bytes: immediately, or after a second or
        # so of work.
        size: float = stage.journal.stat().st_size + random.choice([0, 2_000, 60_000, 60_000]) * random.random()
        wait_until(partial(it_is_time, herd, stage, size), "a moment at which no run would die", timeout=60)
        kill_one(stage, fleet)


def it_is_time(herd: ConstantLoad, stage: Stage, size: float) -> bool:
    return herd.may_kill() and stage.journal.stat().st_size >= size


@dataclass
class JournalCheck:
    """The journal, checked line by line."""

    resumed: int = 0
    wrong: list[str] = field(default_factory=list)
    done: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    _saved: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, event: Event) -> None:
        acknowledged = self._saved[event.run]
        if event.what == "start":
            self.resumed += event.number > 0
            if event.number < acknowledged:
                self.wrong.append(f"{event}: {acknowledged} messages were acknowledged")
        elif event.what == "ask":
            if event.number < acknowledged:
                self.wrong.append(f"{event}: the reply was acknowledged, and the model is asked again")
        elif event.what == "saved":
            self._saved[event.run] = max(acknowledged, event.number)
        if event.what in ("ask", "tool"):
            self.done[event.run, event.what, event.number] += 1

    @property
    def redone(self) -> int:
        return sum(count - 1 for count in self.done.values())


@pytest.mark.timeout(120 + 5 * KILLS)
def test_agent_killed_at_random_moments_resumes_from_acknowledged_work(stage: Stage, client: Client):
    begun = stage.now()
    stage.coordinator()
    options = ["--processes", "2", "--concurrency", str(CONCURRENCY), "--lease", "15"]
    fleet = stage._start("workers", "start", "tests.e2e.agent_app:runs", *options)
    herd = ConstantLoad(client)
    herd.fill()
    wait_until(lambda: stage.events("start"), "the first run has started", timeout=60)
    kill_again_and_again(herd, stage, fleet.pid)
    endings = Counter(handle.wait(120) for handle in herd.handles.values())
    assert endings == {Status.COMPLETED: len(herd.handles)}, "none is dead, failed or forgotten"
    assert {topic: handle.result() for topic, handle in herd.handles.items()} == {t: answer(t) for t in herd.handles}
    account = JournalCheck()
    for event in stage.events():  # A killed process writes nothing later, so the lines are in the order of the owners.
        account.take(event)
    print(
        f"{KILLS} kills, {len(herd.handles)} runs of {TURNS} turns, {account.resumed} resumed, "
        f"{len(account.done)} steps, {account.redone} of them redone, {stage.now() - begun:.1f} s"
    )
    assert account.wrong == []
    assert account.resumed >= KILLS // 4


@pytest.mark.timeout(120)
def test_child_killed_at_its_start_does_not_end_the_supervisor(stage: Stage, client: Client):
    """Kill the process before it has read its configuration."""
    stage.coordinator()
    fleet = stage._start("workers", "start", "tests.e2e.agent_app:runs", "--processes", "2")
    for born in range(4):
        victim = wait_until(lambda: children(fleet.pid), f"child {born} is born")[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda victim=victim: victim not in children(fleet.pid), "it is gone")  # type: ignore[misc]
    assert client.enqueue("research", {"topic": "tides"}).result(timeout=90) == answer("tides")
    assert fleet.poll() is None
