"""A whole coordinator: its loops, its bell, outages and its shutdown. The tests wait for facts, in real time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from coordinator.clock import Clock, SystemClock
from coordinator.config import Settings, address
from coordinator.errors import NotConfigured, Refused, Unreachable
from coordinator.model.names import route
from coordinator.model.run_id import RunIds
from coordinator.services.daemon import Coordinator
from coordinator.services.service_loop import Outage, ServiceLoop, TickReport
from coordinator.store.keys import Namespace
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.replies import pairs, text
from coordinator.store.transport.wire import AsyncWire, drive_async
from tests.conftest import StartServer
from tests.waiting import eventually, next_turn

KIND = route("default", "work", 0)


@asynccontextmanager
async def running(url: str, namespace: str, clock: Clock | None = None) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(Settings(url, namespace), clock)
    task = asyncio.create_task(coordinator.run())
    try:
        yield coordinator
    finally:
        coordinator.stop()
        async with asyncio.timeout(10):
            await task


@dataclass
class Producer:
    """Enqueues runs and reads their status."""

    wire: AsyncWire
    namespace: Namespace
    ids: RunIds = field(default_factory=RunIds)

    async def enqueue(self, due: str = "", partition: int = 0) -> str:
        id = self.ids.make(time.time(), partition)
        await drive_async(
            self.wire, client_plans.enqueue(self.namespace, [client_plans.NewRun(id, KIND, b"\x80", due=due)])
        )
        return id

    async def status(self, id: str) -> str:
        reply = await drive_async(self.wire, client_plans.view(self.namespace.keys_of(id), id))
        return text(pairs(reply[0])["status"])

    async def becomes_queued(self, id: str, timeout: float = 30) -> None:
        async def queued() -> bool:
            return await self.status(id) == "queued"

        await eventually(queued, "the run to be queued", timeout)

    async def die_with_a_run(self, worker: str, lease: float) -> str:
        """Claim runs with a worker that never sends a heartbeat again."""
        member = worker_plans.WorkerRecord(worker, round(lease * 1000), "host", 7, "", "default", "", 1, (KIND,))
        await drive_async(self.wire, worker_plans.join(self.namespace.keys(0), self.namespace.birth, member))
        await self.enqueue()
        plan = worker_plans.claim(self.namespace.keys(0), worker, number=1, want=1, routes=[KIND], alone=False)
        _, claimed = await drive_async(self.wire, plan)
        return claimed[0].id


async def producer_on(url: str, namespace: str, partitions: int = 1, birth: str = "b") -> Producer:
    wire = AsyncWire(address(url))
    return Producer(
        wire, await drive_async(wire, namespace_plans.create(namespace, birth=birth, partitions=partitions))
    )


@pytest.fixture
async def producer(store_url: str, namespace: str) -> AsyncIterator[Producer]:
    made = await producer_on(store_url, namespace, partitions=2)
    yield made
    await made.wire.close()


async def test_delayed_run_is_enqueued_when_due_in_every_partition(
    store_url: str, namespace: str, producer: Producer
) -> None:
    async with running(store_url, namespace):
        for id in [await producer.enqueue("+300", partition) for partition in (0, 1)]:
            await producer.becomes_queued(id)


class NeverWakingClock(SystemClock):
    """A clock that never ends a sleep, so that only a bell wakes the service."""

    async def asleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds if seconds < 0.9 else 3600)  # A clock's own sleep.


async def test_earlier_delayed_run_wakes_the_coordinator(store_url: str, namespace: str, producer: Producer) -> None:
    async with running(store_url, namespace, NeverWakingClock()):
        for partition in (0, 1):
            await producer.enqueue("+60000", partition)
            await producer.becomes_queued(await producer.enqueue("+100", partition))


async def test_run_of_a_dead_worker_is_recovered(store_url: str, namespace: str, producer: Producer) -> None:
    id = await producer.die_with_a_run("w-1", lease=0.2)
    async with running(store_url, namespace), running(store_url, namespace):
        await producer.becomes_queued(id)


async def test_other_coordinator_continues_when_one_stops(store_url: str, namespace: str, producer: Producer) -> None:
    async with running(store_url, namespace):
        async with running(store_url, namespace):
            await producer.becomes_queued(await producer.enqueue("+100"))
        await producer.becomes_queued(await producer.enqueue("+100"))
        await producer.becomes_queued(await producer.die_with_a_run("w-2", lease=0.2))


@pytest.mark.matrix("waits through a timeout")
async def test_outage_is_logged_once_and_work_continues_after_it(
    start_server: StartServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = start_server()
    producer = await producer_on(server.url, namespace, partitions=2)
    async with running(server.url, namespace):
        await producer.becomes_queued(await producer.enqueue("+10"))
        server.kill()

        def lines_with(part: str) -> list[str]:
            return [record.getMessage() for record in caplog.records if part in record.getMessage()]

        await eventually(lambda: lines_with("can't be reached"), "the outage to be said")
        server.start()
        await eventually(lambda: lines_with("answers again"), "the end of the outage to be said")
        await producer.becomes_queued(await producer.enqueue("+10"))
        assert len(lines_with("can't be reached")) == len(lines_with("answers again")) == 1
    await producer.wire.close()


@pytest.mark.matrix("waits through a timeout")
async def test_recreated_namespace_is_served_in_all_its_partitions(
    start_server: StartServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    before = await producer_on(server.url, namespace, partitions=1)
    await before.wire.close()
    async with running(server.url, namespace):
        await eventually(lambda: server.admin.exists(f"{{{namespace}:0}}:watch"), "the coordinator")
        server.admin.flushall()
        after = await producer_on(server.url, namespace, partitions=3, birth="another")
        await after.becomes_queued(await after.enqueue("+10", partition=2))
        await after.wire.close()
    assert "was created again" in caplog.text


async def test_evicting_server_is_rejected(start_server: StartServer, namespace: str) -> None:
    server = start_server(settings={"maxmemory-policy": "allkeys-lru"})
    with pytest.raises(NotConfigured, match="CONFIG SET maxmemory-policy noeviction"):
        await Coordinator(Settings(server.url, namespace)).run()


async def test_start_logs_the_server_without_the_password(
    start_server: StartServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = start_server()
    server.admin.config_set("requirepass", "s3cret")
    async with running(f"redis://:s3cret@127.0.0.1:{server.port}/0", namespace):
        await eventually(lambda: caplog.records, "the first line")
    first = caplog.records[0].getMessage()
    assert f"redis://127.0.0.1:{server.port}/0: namespace {namespace}, 1 partition" in first
    assert "s3cret" not in caplog.text


async def test_coordinator_stopped_before_its_start_ends(store_url: str, namespace: str) -> None:
    coordinator = Coordinator(Settings(store_url, namespace))
    coordinator.stop()
    async with asyncio.timeout(10):
        await coordinator.run()


# ---- the loop --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rested:
    rest: float = 0.0


@dataclass
class FailingService:
    """A service that raises the given errors first and then ticks without an error."""

    errors: list[Exception]
    name: str = "stubborn"
    ticks: int = 0

    async def tick(self) -> TickReport:
        self.ticks += 1
        if self.errors:
            raise self.errors.pop(0)
        return Rested()


class RecordingClock(SystemClock):
    """A clock that records the rests and does not wait."""

    def __init__(self) -> None:
        self.rests: list[float] = []

    async def asleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        await next_turn()


async def kept_going(service: FailingService, ticks: int) -> RecordingClock:
    clock = RecordingClock()
    ticking = ServiceLoop(service, clock, Outage(clock))
    task = asyncio.create_task(ticking.run())
    await eventually(lambda: service.ticks >= ticks, f"{ticks} ticks")
    ticking.stop()
    await task
    return clock


async def test_failing_tick_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    service = FailingService([RuntimeError("a mistake"), ValueError("another"), Refused("no")])
    clock = await kept_going(service, 5)
    assert clock.rests[:4] == [1.0, 1.0, 1.0, 0.0]
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


async def test_repeated_failure_is_logged_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    await kept_going(FailingService([Refused("no")] * 20), 22)
    assert len(caplog.records) == 5, "the 1st, 2nd, 4th, 8th and 16th"
    assert not any(record.exc_info for record in caplog.records), "an error of ours is a sentence"


async def test_outage_is_logged_at_its_start_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await kept_going(FailingService([Unreachable("redis://h can't be reached")] * 20), 22)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "redis://h can't be reached; trying again"
    assert len(said) == 2
    assert said[1].startswith("the server answers again")


async def test_bell_during_a_tick_is_not_lost() -> None:
    clock = SystemClock()
    ticking: ServiceLoop

    class Rung:
        name = "rung"
        ticks = 0

        async def tick(self) -> TickReport:
            self.ticks += 1
            if self.ticks == 1:
                ticking.ring()
            return Rested(3600)

    service = Rung()
    ticking = ServiceLoop(service, clock, Outage(clock))
    task = asyncio.create_task(ticking.run())
    await eventually(lambda: service.ticks == 2, "a second tick")
    ticking.stop()
    await task
