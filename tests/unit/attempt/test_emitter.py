"""The emitter: how often a process sends events, which runs share a request, and that one run does not disturb the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.clock import SystemClock
from coordinator.errors import Unconfirmed
from coordinator.store.transport.wire import AsyncWire
from tests.waiting import eventually
from workers.attempt.attempt import Attempt
from workers.attempt.output.emitter import (
    LONGEST_BACK_OFF,
    MOST_BYTES,
    MOST_EVENTS,
    PACE,
    SHORTEST_PACE,
    TRUSTED_SECONDS,
    Emitter,
    Sending,
)
from workers.attempt.output.outbox import Outbox


class Server:
    """A wire whose server stores events, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[str]]] = []
        self.failing: set[str] = set()  # hash tags of partitions that do not answer
        self.fenced: set[str] = set()  # runs that belong to another worker
        self.silent: set[str] = set()  # hash tags of partitions whose answer does not come
        self.broken = 0  # the number of requests that raise an error that no code expects

    async def ask(self, requests: Any, timeout: Any = None, give_up: Any = None) -> list[Any]:
        [call] = requests
        self.requests.append((call.at, [id for id, _, _ in call.items]))
        if call.at in self.silent:
            await asyncio.Event().wait()
        if self.broken:
            self.broken -= 1
            raise KeyError("a bug")
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
    await eventually(lambda: not any(one.task for one in emitter._partitions.values()), "all events to be sent")


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


async def test_partition_that_does_not_answer_delays_no_events_of_the_others(server: Server, emitter: Emitter) -> None:
    server.silent = {"{2}"}
    silent = Emitting(emitter, "silent", at="{2}")
    for number in range(3):
        heard = Emitting(emitter, f"r{number}")
        await eventually(lambda: not heard.outbox.waiting, "the events of the other partition to be stored")  # noqa: B023
    assert silent.outbox.waiting
    task = emitter._partitions["{2}"].task
    assert task is not None
    task.cancel()


async def test_error_that_no_code_expects_is_logged_and_the_events_are_sent_again(
    server: Server, emitter: Emitter, caplog: pytest.LogCaptureFixture
) -> None:
    server.broken = 1
    runs = [Emitting(emitter, f"r{number}", events=MOST_EVENTS) for number in range(2)]
    await until_sent(emitter)
    assert not any(run.outbox.waiting for run in runs)
    assert "could not be stored and are sent again" in caplog.text


async def test_worker_that_has_no_time_left_sends_no_events_before_the_outcome(
    server: Server, emitter: Emitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitter.__class__, "schedule", lambda emitter, attempt: None)
    run = Emitting(emitter, "many", events=10 * MOST_EVENTS)
    await emitter.send_ahead(cast("Attempt", run), lambda: len(server.requests) == 2)
    assert len(server.requests) == 2
    assert len(run.outbox) == 8 * MOST_EVENTS, "the outcome carries the others"


async def test_refused_events_of_one_run_are_dropped_and_the_others_are_stored(
    server: Server, emitter: Emitter
) -> None:
    server.fenced = {"stale"}
    stale, owned = Emitting(emitter, "stale"), Emitting(emitter, "owned")
    await until_sent(emitter)
    assert (stale.outbox.closed, owned.outbox.closed, owned.outbox.waiting) == (True, False, False)


async def check_of(emitter: Emitter, run: Emitting, monkeypatch: pytest.MonkeyPatch, old: str | None) -> bool:
    """Return whether a save of a run may carry events. A check of the processes finds the old process, if any."""

    def find(keys: Any, feature: Any) -> Any:
        yield from ()
        return old

    monkeypatch.setattr("workers.attempt.output.emitter.worker_plans.find_process_without", find)
    return await emitter.may_carry(cast("Attempt", run))


async def test_save_of_a_new_output_is_checked_again_after_a_while(
    server: Server, emitter: Emitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitter.__class__, "schedule", lambda emitter, attempt: None)
    emitter._trusted.clear()
    run = Emitting(emitter, "new")
    assert await check_of(emitter, run, monkeypatch, None)
    assert await check_of(emitter, run, monkeypatch, "coordinator old"), "the check is not repeated at once"
    emitter._trusted[0] -= TRUSTED_SECONDS
    assert not await check_of(emitter, run, monkeypatch, "coordinator old")


async def test_save_of_an_output_that_exists_carries_its_events_beside_an_older_process(
    server: Server, emitter: Emitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Emitting(emitter, "r")
    await until_sent(emitter)
    emitter._trusted.clear()
    run.outbox.add(b"e", b"late")
    assert await check_of(emitter, run, monkeypatch, "coordinator old")
    resumed = Outbox(3, emitter.unsent)
    assert (resumed.begun, Outbox(0, emitter.unsent).begun) == (True, False)


def pause(runs: int, failures: int = 0) -> float:
    """Return the pause of a partition with a tenth of the runs. The runs of all partitions count."""
    emitter = Emitter(None, SystemClock())  # type: ignore[arg-type]  # nothing is sent
    emitter._partitions["{2}"].runs = runs - runs // 10
    one = emitter._partitions["{1}"] = Sending(runs=runs // 10, failures=failures)
    return emitter._pause(one)


@pytest.mark.parametrize(
    ("runs", "seconds"), [(0, SHORTEST_PACE), (10, SHORTEST_PACE), (50, 0.01), (100, PACE), (9999, PACE)]
)
def test_pace_is_short_while_few_runs_emit(runs: int, seconds: float) -> None:
    assert pause(runs) == pytest.approx(seconds)


def test_back_off_grows_and_is_bounded_after_a_long_outage() -> None:
    pauses = [pause(1, failures) for failures in (1, 2, 3, 100, 5000)]
    assert pauses == sorted(pauses)
    assert pauses[0] > PACE
    assert pauses[-1] == LONGEST_BACK_OFF
