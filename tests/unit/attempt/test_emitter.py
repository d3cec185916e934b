"""The emitter: how often a process sends events, which runs share a request, and that one run does not disturb the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.clock import SystemClock
from coordinator.errors import Unconfirmed
from coordinator.store.transport.wire import AsyncWire
from tests.waiting import eventually
from workers.attempt.attempt import Attempt
from workers.attempt.output.emitter import LONGEST_BACK_OFF, MOST_BYTES, MOST_EVENTS, PACE, SHORTEST_PACE, Emitter
from workers.attempt.output.outbox import Outbox


class Server:
    """A wire whose server stores events, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[str]]] = []
        self.failing: set[str] = set()  # hash tags of partitions that do not answer
        self.fenced: set[str] = set()  # runs that belong to another worker

    async def ask(self, requests: Any, timeout: Any = None, give_up: Any = None) -> list[Any]:
        [call] = requests
        self.requests.append((call.at, [id for id, _, _ in call.items]))
        if call.at in self.failing:
            return [Unconfirmed("the server is busy")]
        return [[b"fenced" if id in self.fenced else b"ok" for id, _, _ in call.items]]


class Emitting:
    """A run with events, as the emitter sees its attempt."""

    def __init__(self, emitter: Emitter, id: str, events: int = 1, size: int = 10, at: str = "{1}") -> None:
        self.id, self.token, self.emits_soon = id, "token", True
        self.key = (id, self.token)
        self.lease = SimpleNamespace(keys=SimpleNamespace(at=at, partition=0))
        self.outbox = Outbox(0, emitter.unsent)
        for _ in range(events):
            self.outbox.add(b"e", b"x" * (size - 1))
        emitter.schedule(cast("Attempt", self))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def emitter(server: Server) -> Emitter:
    found = Emitter(cast("AsyncWire", server), SystemClock())
    found._trusted[0] = float("inf")
    return found


async def until_sent(emitter: Emitter) -> None:
    await eventually(lambda: emitter._task is None, "all events to be sent")


async def test_events_of_the_runs_of_a_partition_share_a_request(server: Server, emitter: Emitter) -> None:
    runs = [Emitting(emitter, f"r{number}", at="{1}" if number < 3 else "{2}") for number in range(5)]
    await until_sent(emitter)
    assert sorted(server.requests) == [("{1}", ["r0", "r1", "r2"]), ("{2}", ["r3", "r4"])]
    assert not any(run.outbox.waiting for run in runs)
    assert emitter.unsent.total == 0


async def test_request_has_a_bounded_number_of_events(server: Server, emitter: Emitter) -> None:
    many = Emitting(emitter, "many", events=2 * MOST_EVENTS)
    few = [Emitting(emitter, f"r{number}", events=MOST_EVENTS // 4) for number in range(3)]
    await until_sent(emitter)
    first = server.requests[0]
    assert first == ("{1}", ["many"]), "a run with many events does not carry others with it"
    assert server.requests[1] == ("{1}", ["r0", "r1", "r2"]), "and the others do not wait for all its events"
    assert not any(run.outbox.waiting for run in (many, *few))


async def test_request_has_a_bounded_number_of_bytes(server: Server, emitter: Emitter) -> None:
    for number in range(4):
        Emitting(emitter, f"r{number}", size=MOST_BYTES // 2)
    await until_sent(emitter)
    assert [ids for _, ids in server.requests] == [["r0", "r1"], ["r2", "r3"]]


async def test_events_stay_while_a_partition_does_not_answer_and_others_are_sent(
    server: Server, emitter: Emitter
) -> None:
    server.failing = {"{2}"}
    good, bad = Emitting(emitter, "good"), [Emitting(emitter, f"bad{number}", at="{2}") for number in range(2)]
    await eventually(lambda: not good.outbox.waiting, "the events of the other partition to be stored")
    assert all(run.outbox.waiting for run in bad)
    server.failing = set()
    await until_sent(emitter)
    assert not any(run.outbox.waiting for run in bad)


async def test_refused_events_of_one_run_are_dropped_and_the_others_are_stored(
    server: Server, emitter: Emitter
) -> None:
    server.fenced = {"stale"}
    stale, owned = Emitting(emitter, "stale"), Emitting(emitter, "owned")
    await until_sent(emitter)
    assert (stale.outbox.closed, owned.outbox.closed, owned.outbox.waiting) == (True, False, False)


def paced(runs: int = 0, failures: int = 0) -> Emitter:
    return Emitter(None, SystemClock(), _last_runs=runs, _failures=failures)  # type: ignore[arg-type]  # nothing is sent


@pytest.mark.parametrize(
    ("runs", "seconds"), [(0, SHORTEST_PACE), (10, SHORTEST_PACE), (50, 0.01), (100, PACE), (9999, PACE)]
)
def test_pace_is_short_while_few_runs_emit(runs: int, seconds: float) -> None:
    assert paced(runs)._pause() == pytest.approx(seconds)


def test_back_off_grows_and_is_bounded_after_a_long_outage() -> None:
    pauses = [paced(1, failures)._pause() for failures in (1, 2, 3, 100, 5000)]
    assert pauses == sorted(pauses)
    assert pauses[0] > PACE
    assert pauses[-1] == LONGEST_BACK_OFF
