"""The services tick by tick, on the test clock: no sleep, no loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from coordinator.clock import SystemClock
from coordinator.config import address
from coordinator.errors import BadCall
from coordinator.model.limits import SWEEP_GROUPS, SWEEP_TURNS
from coordinator.model.names import route
from coordinator.model.run_id import RunIds
from coordinator.services.admission import Admission
from coordinator.services.bell_ringer import BellRinger
from coordinator.services.due import DueRuns
from coordinator.services.recovery import Recovery, RecoveryReport
from coordinator.services.retention import Retention
from coordinator.services.service_loop import LONGEST_REST, Partition
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import groups as group_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.replies import pairs, text
from coordinator.store.script import read
from coordinator.store.transport.wire import AsyncWire, Plan, drive_async

LEASE = 15.0
T = TypeVar("T")
KIND = route("default", "work", 0)


@dataclass
class World:
    """A namespace on the test clock, with the actions of workers and producers."""

    wire: AsyncWire
    namespace: Namespace
    seconds: float = 1_000_000.0
    ids: RunIds = field(default_factory=RunIds)
    numbers: dict[str, int] = field(default_factory=dict)

    def now(self) -> str:
        return str(round(self.seconds * 1000))

    async def ask(self, plan: Plan[T]) -> T:
        return await drive_async(self.wire, plan)

    def partition(self, number: int = 0) -> Partition:
        return Partition(self.wire, self.namespace.keys(number), self.now)

    def recovery(self, coordinator: str = "c-1", partition: int = 0) -> Recovery:
        return Recovery(self.partition(partition), coordinator, SystemClock(), jitter=lambda: 0.5)

    async def enqueue(self, count: int = 1, *, partition: int = 0, due: str = "", expires: str = "") -> list[str]:
        runs = [
            client_plans.NewRun(self.ids.make(self.seconds, partition), KIND, b"\x80", due=due, expires=expires)
            for _ in range(count)
        ]
        for answer in await self.ask(client_plans.enqueue(self.namespace, runs, self.now())):
            assert answer[0] == "created", answer
        return [run.id for run in runs]

    async def join(self, *workers: str, partition: int = 0) -> None:
        for worker in workers:
            member = worker_plans.WorkerRecord(worker, round(LEASE * 1000), "host", 7, "", "default", "", 100, (KIND,))
            keys = self.namespace.keys(partition)
            assert await self.ask(worker_plans.join(keys, self.namespace.birth, member, self.now())) == "ok"

    async def beat(self, *workers: str) -> None:
        for worker in workers:
            plan = worker_plans.heartbeat(self.keys, worker, lease_ms=round(LEASE * 1000), floor=0, now=self.now())
            assert await self.ask(plan) is not None

    async def claim(
        self, worker: str, want: int, *, partition: int = 0, alone: bool = False
    ) -> list[worker_plans.Claimed]:
        number = self.numbers[worker] = self.numbers.get(worker, 0) + 1
        plan = worker_plans.claim(
            self.namespace.keys(partition), worker, number=number, want=want, routes=[KIND], alone=alone, now=self.now()
        )
        _, claimed = await self.ask(plan)
        return claimed

    async def statuses(self, ids: list[str]) -> list[str]:
        found = []
        for id in ids:
            reply = await self.ask(client_plans.view(self.namespace.keys_of(id), id))
            found.append(text(pairs(reply[0])["status"]))
        return found

    async def recoveries(self, ids: list[str]) -> list[int]:
        found = []
        for id in ids:
            reply = await self.ask(client_plans.view(self.namespace.keys_of(id), id))
            found.append(int(text(pairs(reply[0])["counters"]).split()[4]))
        return found

    async def watch(self, *recoveries: Recovery, seconds: float, beating: tuple[str, ...] = ()) -> list[RecoveryReport]:
        """Tick once a second for a while, as coordinators do. The given workers send heartbeats meanwhile."""
        reports = []
        for _ in range(round(seconds)):
            self.seconds += 1
            await self.beat(*beating)
            reports += [await recovery.tick() for recovery in recoveries]
        return reports

    @property
    def keys(self) -> Keys:
        return self.namespace.keys(0)


@pytest.fixture
async def world(store_url: str, namespace: str) -> AsyncIterator[World]:
    wire = AsyncWire(address(store_url))
    found = await drive_async(wire, namespace_plans.create(namespace, birth="b", partitions=2, clock="test"))
    yield World(wire, found)
    await wire.close()


# ---- recovery -------------------------------------------------------------------------------------------


async def test_new_coordinator_recovers_workers_that_died_earlier_after_one_pause(world: World) -> None:
    await world.join("w-1")
    ids = await world.enqueue(3)
    assert len(await world.claim("w-1", 3)) == 3
    world.seconds += 3600
    recovery = world.recovery()
    first = await recovery.tick()
    assert (first.hold, first.workers) == (LEASE, ())
    reports = await world.watch(recovery, seconds=LEASE - 1)
    assert not any(report.workers for report in reports)
    last = (await world.watch(recovery, seconds=1))[0]
    assert (last.workers, last.runs.queued, last.hold) == (("w-1",), 3, 0)
    assert await world.statuses(ids) == ["queued"] * 3


async def test_worker_that_dies_while_a_coordinator_runs_is_recovered_after_one_lease(world: World) -> None:
    recovery = world.recovery()
    await recovery.tick()
    await world.join("w-1", "w-2")
    ids = await world.enqueue(2)
    await world.claim("w-1", 2)
    await world.watch(recovery, seconds=10, beating=("w-1", "w-2"))
    reports = await world.watch(recovery, seconds=LEASE - 1, beating=("w-2",))
    assert not any(report.workers for report in reports)
    reports = await world.watch(recovery, seconds=1, beating=("w-2",))
    assert reports[0].workers == ("w-1",)
    assert await world.statuses(ids) == ["queued"] * 2
    assert await world.claim("w-2", 5), "another worker can claim the runs"


async def test_workers_are_recovered_although_a_key_of_another_lost_worker_is_damaged(world: World) -> None:
    recovery = world.recovery()
    await recovery.tick()
    await world.join("w-1", "w-2", "w-3")
    ids = await world.enqueue(2)
    await world.claim("w-2", 2)
    await world.ask(damage(world.keys.at, world.keys.owned("w-1")))
    with pytest.raises(BadCall, match="WRONGTYPE"):
        await world.watch(recovery, seconds=LEASE + 1, beating=("w-3",))
    assert await world.statuses(ids) == ["queued"] * 2


def damage(at: str, key: str) -> Plan[None]:
    """Give a key a wrong type."""
    yield read(at, "DEL", key)
    yield read(at, "SET", key, "damaged")


async def test_worker_with_heartbeats_is_never_recovered(world: World) -> None:
    recovery = world.recovery()
    await world.join("w-1")
    ids = await world.enqueue(1)
    await world.claim("w-1", 1)
    reports = await world.watch(recovery, seconds=60, beating=("w-1",))
    assert not any(report.workers for report in reports)
    assert await world.statuses(ids) == ["running"]


async def test_most_workers_dead_at_once_are_recovered_after_one_pause(world: World) -> None:
    recovery = world.recovery()
    await recovery.tick()
    workers = [f"w-{n}" for n in range(5)]
    await world.join(*workers)
    ids = await world.enqueue(50)
    for worker in workers[1:]:
        await world.claim(worker, 12)
    reports = await world.watch(recovery, seconds=LEASE, beating=("w-0",))
    assert reports[-1].hold == LEASE, "four of five at once say that something else is wrong"
    reports = await world.watch(recovery, seconds=LEASE, beating=("w-0",))
    assert sorted(worker for report in reports for worker in report.workers) == workers[1:]
    assert reports[-1].runs.queued == 48
    assert await world.recoveries(ids[:48]) == [1] * 48


@pytest.mark.parametrize("count", [2, 3])
async def test_concurrent_coordinators_recover_each_run_exactly_once(world: World, count: int) -> None:
    recoveries = [world.recovery(f"c-{n}") for n in range(count)]
    await recoveries[0].tick()
    workers = [f"w-{n}" for n in range(4)]
    await world.join("keeps-going", "keeps-going-2", "keeps-going-3", "keeps-going-4", *workers)
    ids = await world.enqueue(4 * 250)
    for worker in workers:
        assert len(await world.claim(worker, 250)) == 250
    beating = ("keeps-going", "keeps-going-2", "keeps-going-3", "keeps-going-4")
    await world.watch(*recoveries, seconds=LEASE - 1, beating=beating)
    world.seconds += 1
    reports = await asyncio.gather(*(recovery.tick() for recovery in recoveries))
    reports += await asyncio.gather(*(recovery.tick() for recovery in recoveries))
    assert sum(report.runs.taken for report in reports) == 1000
    assert await world.recoveries(ids) == [1] * 1000
    assert await world.statuses(ids) == ["queued"] * 1000


async def test_replacing_a_coordinator_does_not_delay_recovery(world: World) -> None:
    old = world.recovery("c-old")
    await old.tick()
    await world.join("w-1")
    await world.enqueue(1)
    await world.claim("w-1", 1)
    await world.watch(old, seconds=10)
    new = world.recovery("c-new")
    reports = await world.watch(new, seconds=5)
    assert [report.workers for report in reports] == [(), (), (), (), ("w-1",)], (
        "the judgement is on the server: no new hold"
    )


async def test_coordinator_without_the_lock_does_not_recover(world: World) -> None:
    recovery = world.recovery()
    await recovery.tick()
    await world.join("w-1")
    ids = await world.enqueue(1)
    await world.claim("w-1", 1)
    assert await world.ask(coordinator_plans.lock(world.keys, "recovery", "somebody", 60))
    assert not any(report.workers for report in await world.watch(recovery, seconds=LEASE + 5))
    assert await world.statuses(ids) == ["running"]
    await world.ask(coordinator_plans.lock(world.keys, "recovery", "somebody", 0.001))
    reports: list[RecoveryReport] = []
    while not any(report.workers for report in reports):
        reports += await world.watch(recovery, seconds=1)
    assert await world.statuses(ids) == ["queued"]


async def test_lock_is_released_after_the_work(world: World) -> None:
    first, second = world.recovery("c-1"), world.recovery("c-2")
    await first.tick()
    for n, recovery in enumerate((first, second)):
        await world.join(f"w-{n}")
        await world.enqueue(1)
        await world.claim(f"w-{n}", 1)
        reports = await world.watch(recovery, seconds=LEASE)
        assert reports[-1].workers == (f"w-{n}",)


async def test_each_partition_decides_recovery_independently(world: World) -> None:
    recoveries = [world.recovery(partition=0), world.recovery(partition=1)]
    for recovery in recoveries:
        await recovery.tick()
    await world.join("w-1", partition=1)
    ids = await world.enqueue(2, partition=1)
    await world.claim("w-1", 2, partition=1)
    reports = await world.watch(*recoveries, seconds=LEASE)
    assert [report.workers for report in reports[-2:]] == [(), ("w-1",)]
    assert await world.statuses(ids) == ["queued"] * 2


async def test_run_that_kills_three_workers_is_dead_and_logged_as_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    recovery = world.recovery()
    await recovery.tick()
    ids = await world.enqueue(1)
    due = DueRuns(world.partition())
    for n in range(3):
        await world.join(f"w-{n}")
        assert await world.claim(f"w-{n}", 1, alone=True)
        await world.watch(recovery, seconds=LEASE + 3)
        await due.tick()
    assert await world.statuses(ids) == ["dead"]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("INFO", "worker w-0 (host, pid 7) is gone: 1 run requeued") in lines
    assert ("INFO", "worker w-1 (host, pid 7) is gone: 1 run delayed") in lines
    assert ("WARNING", "worker w-2 (host, pid 7) is gone: 1 run dead") in lines


async def test_recovery_pause_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await world.join("w-1")
    recovery = world.recovery()
    await recovery.tick()
    await world.watch(recovery, seconds=10, beating=("w-1",))
    assert [record.getMessage()[:29] for record in caplog.records] == ["recovery paused for 15.0 s in"]


# ---- due ------------------------------------------------------------------------------------------------


async def test_delayed_runs_are_enqueued_when_due_and_not_before(world: World) -> None:
    due = DueRuns(world.partition())
    late = await world.enqueue(1, due="+5000")
    soon = await world.enqueue(1, due="+500")
    report = await due.tick()
    assert (report.moved, report.rest) == (0, 0.5)
    world.seconds += 0.5
    report = await due.tick()
    assert (report.moved, report.rest) == (1, LONGEST_REST)
    assert await world.statuses(late + soon) == ["delayed", "queued"]
    world.seconds += 4.5
    assert (await due.tick()).moved == 1


async def test_all_due_runs_are_enqueued_even_if_there_are_many(world: World) -> None:
    ids = await world.enqueue(25, due="+1000")
    world.seconds += 1
    report = await DueRuns(world.partition(), batch=10).tick()
    assert (report.moved, report.rest) == (25, LONGEST_REST)
    assert set(await world.statuses(ids)) == {"queued"}


async def test_run_due_before_the_first_one_rings_the_coordinator(world: World) -> None:
    due, bell = DueRuns(world.partition()), world.keys.coordinator_bell()

    async def rung() -> bool:
        def taken() -> Plan[bool]:
            reply = yield read(world.keys.at, "LPOP", bell)
            return reply is not None

        return await world.ask(taken())

    await world.enqueue(1, due="+5000")
    assert await rung()
    await due.tick()
    await world.enqueue(1, due="+9000")
    assert not await rung(), "it is due later than the first run, so no bell is needed"
    await world.enqueue(1, due="+200")
    assert await rung()
    assert (await due.tick()).rest == 0.2


async def test_two_coordinators_enqueue_each_delayed_run_once(world: World) -> None:
    ids = await world.enqueue(300, due="+1000")
    world.seconds += 1
    reports = await asyncio.gather(*(DueRuns(world.partition(), batch=20).tick() for _ in range(2)))
    assert sum(report.moved for report in reports) == 300
    assert len(await world.statuses(ids)) == 300


async def test_unclaimed_run_expires(world: World) -> None:
    ids = await world.enqueue(1, expires="1000")
    world.seconds += 1
    assert (await DueRuns(world.partition()).tick()).passed == 1
    assert await world.statuses(ids) == ["cancelled"]


# ---- bells and retention --------------------------------------------------------------------------------


async def test_lost_bell_is_rung_again(world: World) -> None:
    await world.enqueue(1)

    def lose() -> Plan[int]:
        reply = yield read(world.keys.at, "DEL", world.keys.bell(KIND))
        return int(reply)

    assert await world.ask(lose()) == 1
    assert (await BellRinger(world.partition()).tick()).queues == 1
    assert await world.ask(lose()) == 1


async def test_raised_limit_admits_runs_of_all_groups_at_the_next_tick(world: World) -> None:
    runs = [
        client_plans.NewRun(world.ids.make(world.seconds, 0), KIND, b"\x80", group=f"g{n % 300}") for n in range(900)
    ]
    await world.ask(client_plans.enqueue(world.namespace, runs, world.now()))
    admission = Admission(world.partition())
    assert (await admission.tick()).admitted == 0
    await world.ask(group_plans.set_limit(world.keys, "work", None, "2", "o1"))
    report = await admission.tick()
    assert (report.groups, report.admitted, report.rest) == (300, 600, 0.0)
    report = await admission.tick()
    assert (report.admitted, report.rest) == (0, 1.0)
    await world.join("w1")
    assert len(await world.claim("w1", 500)) + len(await world.claim("w1", 500)) == 600


async def test_coordinator_sweeps_many_groups_over_several_ticks(world: World) -> None:
    async def enqueue(count: int, groups: int) -> list[str]:
        runs = [
            client_plans.NewRun(world.ids.make(world.seconds, 0), KIND, b"\x80", group=f"g{n % groups}")
            for n in range(count)
        ]
        await world.ask(client_plans.enqueue(world.namespace, runs, world.now()))
        return [run.id for run in runs]

    await world.ask(group_plans.set_limit(world.keys, "work", None, "1", "o1"))
    ids = await enqueue(60, 20)
    for id in ids[:20]:
        await world.ask(_delete(world, id))
    admission = Admission(world.partition())
    assert [(await admission.tick()).admitted for _ in range(SWEEP_TURNS)] == [2] * SWEEP_TURNS
    await enqueue(SWEEP_GROUPS + 500, SWEEP_GROUPS + 500)
    await enqueue(SWEEP_GROUPS + 500, SWEEP_GROUPS + 500)
    seen = [(await admission.tick()).groups for _ in range(2)]
    assert SWEEP_GROUPS <= seen[0] < SWEEP_GROUPS + 500 <= sum(seen)


def _delete(world: World, id: str) -> Plan[None]:
    yield read(world.keys.at, "DEL", world.keys.run(id))


async def test_ended_runs_are_deleted_after_their_retention(world: World) -> None:
    ids = await world.enqueue(2, expires="1000")
    world.seconds += 1
    await DueRuns(world.partition()).tick()
    retention = Retention(world.partition(), world.namespace)
    assert (await retention.tick()).forgotten == 0
    assert await world.statuses(ids) == ["cancelled"] * 2
    world.seconds += 8 * 24 * 3600
    assert (await retention.tick()).forgotten == 2


async def test_oldest_ended_runs_are_deleted_beyond_the_limit(world: World, caplog: pytest.LogCaptureFixture) -> None:
    ids = await world.enqueue(220, expires="1000")
    world.seconds += 1
    await DueRuns(world.partition()).tick()
    retention = Retention(world.partition(), world.namespace, keep=100)
    assert (await retention.tick()).beyond == 120
    assert (await retention.tick()).beyond == 0
    assert "deleted 120 cancelled runs in partition 0 before their retention was over" in caplog.text
    assert len(ids) == 220
