"""Schedules: the service tick by tick on the test clock, several coordinators at once, bad entries, and both clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from coordinator import AsyncClient, BadOption, Client, Inputs, NotFound, ScheduleView
from coordinator.client.schedules import build_schedule, schedule_view
from coordinator.config import address
from coordinator.model.policies.schedule import Overlap, Rules, rules_for, run_id
from coordinator.model.run_id import partition_for
from coordinator.services import scheduler
from coordinator.services.scheduler import LEFT_TO_OTHERS_MS, LOOK_AGAIN, Scheduler, SchedulerReport
from coordinator.services.service_loop import LONGEST_REST, Partition
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import schedules as schedule_plans
from coordinator.store.replies import text
from coordinator.store.script import read
from coordinator.store.transport.wire import AsyncWire, Plan, drive_async
from tests.conftest import StartServer
from tests.integration.services.test_daemon import running
from tests.waiting import eventually

T = TypeVar("T")
START = 1_767_225_600_000  # 2026-01-01
MINUTE, HOUR = 60_000, 3_600_000


@dataclass
class World:
    """A namespace on the test clock, with the actions of users and coordinators."""

    wire: AsyncWire
    namespace: Namespace
    ms: int = START
    generations: int = 0

    def now(self) -> str:
        return str(self.ms)

    async def ask(self, plan: Plan[T]) -> T:
        return await drive_async(self.wire, plan)

    def home(self, name: str) -> Keys:
        return self.namespace.keys(partition_for(name, self.namespace.partitions))

    async def schedule(self, name: str, when: Any, **options: Any) -> None:
        self.generations += 1
        new = build_schedule(name, when, "work", {}, options)
        plan = schedule_plans.replace(self.home(name), self.namespace.birth, new, f"g{self.generations}", self.now())
        assert await self.ask(plan) == "ok"

    async def remove(self, name: str) -> None:
        assert await self.ask(schedule_plans.remove(self.home(name), name, "removed", self.now())) == "ok"

    def schedulers(self) -> list[Scheduler]:
        """Return the schedulers of one coordinator."""
        return [Scheduler(Partition(self.wire, keys, self.now)) for keys in self.namespace.everywhere()]

    async def tick(self, *coordinators: list[Scheduler]) -> list[SchedulerReport]:
        """Run one tick of all given schedulers at the same time."""
        every = [one for services in coordinators or (self.schedulers(),) for one in services]
        return list(await asyncio.gather(*(one.tick() for one in every)))

    async def run_ids(self) -> list[str]:
        found: list[str] = []
        for keys in self.namespace.everywhere():
            found += map(text, await self.ask(_one(read(keys.at, "ZRANGE", keys.ready("default:work@0"), 0, -1))))
        return sorted(found)

    async def fired(self, name: str) -> list[int]:
        """Return the fire times for which a run exists, in minutes since the start."""
        keys = self.home(name)
        ids = await self.run_ids()
        minutes = range(6000)
        return [n for n in minutes if run_id(name, START + n * MINUTE, keys.partition) in ids]

    async def view(self, name: str) -> ScheduleView:
        rows = await self.ask(schedule_plans.list_schedules(self.home(name)))
        return schedule_view(name, dict(rows)[name])


def _one(request: Any) -> Any:
    return (yield request)


@pytest.fixture
async def world(store_url: str, namespace: str) -> AsyncIterator[World]:
    wire = AsyncWire(address(store_url))
    found = await drive_async(wire, namespace_plans.create(namespace, birth="b", partitions=2, clock="test"))
    yield World(wire, found)
    await wire.close()


# ---- one coordinator -------------------------------------------------------------------------------------------------


async def test_schedule_fires_at_each_of_its_times(world: World) -> None:
    await world.schedule("s", "*/2 * * * *", overlap="allow")
    for _ in range(11):
        await world.tick()
        world.ms += MINUTE
    assert await world.fired("s") == [2, 4, 6, 8, 10]
    assert ((await world.view("s")).fired, (await world.view("s")).trouble) == (5, "")


async def test_scheduler_rests_until_the_next_fire_time(world: World) -> None:
    keys = world.home("s")
    mine = Scheduler(Partition(world.wire, keys, world.now))
    assert await mine.tick() == SchedulerReport(rest=LONGEST_REST)
    await world.schedule("s", "every 1m")
    assert (await mine.tick()).rest == LONGEST_REST
    world.ms += MINUTE - 250
    assert await mine.tick() == SchedulerReport(rest=0.25)
    world.ms += 250
    assert await mine.tick() == SchedulerReport(fired=1, rest=LONGEST_REST)


@pytest.mark.parametrize(("catch_up", "expected"), [("latest", [180]), ("all", [60, 120, 180]), ("none", [])])
async def test_catch_up_policy_decides_what_fires_after_downtime(
    world: World, catch_up: str, expected: list[int]
) -> None:
    await world.schedule("s", "0 * * * *", overlap="allow", catch_up=catch_up)
    await world.tick()
    world.ms += 3 * HOUR + 30 * MINUTE
    await world.tick()
    assert await world.fired("s") == expected
    world.ms += 30 * MINUTE
    await world.tick()
    assert await world.fired("s") == [*expected, 240]


async def test_fire_time_before_the_first_coordinator_is_caught_up(world: World) -> None:
    await world.schedule("s", "0 * * * *")
    world.ms += HOUR + 10 * MINUTE
    await world.tick()
    assert await world.fired("s") == [60]


async def test_repeated_hour_fires_once_and_skipped_hour_fires_once(world: World) -> None:
    await world.schedule("s", "30 2 * * *", tz="Europe/Berlin", overlap="allow")
    ids = []
    for change in (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)):
        world.ms = round(change.timestamp() * 1000)
        await world.tick()
        before = set(await world.run_ids())
        for _ in range(24 * 6):
            world.ms += 10 * MINUTE
            await world.tick()
        ids.append(set(await world.run_ids()) - before)
    partition = world.home("s").partition
    moments = [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)]
    assert ids == [{run_id("s", round(moment.timestamp() * 1000), partition)} for moment in moments]


async def test_many_schedules_fire_in_batches(world: World) -> None:
    for n in range(250):
        await world.schedule(f"s{n}", "every 1m")
    await world.tick()
    world.ms += MINUTE
    reports = await world.tick()
    assert sum(report.fired for report in reports) == len(await world.run_ids()) == 250


async def test_jitter_spreads_schedules_and_loses_none(world: World) -> None:
    names = [f"s{n}" for n in range(40)]
    for name in names:
        await world.schedule(name, "0 * * * *", jitter=600)
    await world.tick()
    world.ms += HOUR
    seen = []
    for _ in range(11):
        await world.tick()
        seen.append(len(await world.run_ids()))
        world.ms += MINUTE
    assert seen == sorted(seen)
    assert 0 < seen[4] < 40
    assert seen[-1] == 40
    assert [await world.fired(name) for name in names] == [[60]] * 40


# ---- several coordinators --------------------------------------------------------------------------------------------


async def test_one_of_three_coordinators_fires_each_time(world: World) -> None:
    names = [f"s{n}" for n in range(20)]
    for name in names:
        await world.schedule(name, "every 1m", overlap="allow")
    three = [world.schedulers() for _ in range(3)]
    for _ in range(6):
        await world.tick(*three)
        world.ms += MINUTE
    assert [await world.fired(name) for name in names] == [[1, 2, 3, 4, 5]] * 20
    assert [(await world.view(name)).fired for name in names] == [5] * 20
    assert len(await world.run_ids()) == 100


async def test_coordinator_that_dies_while_firing_loses_no_fire_time(world: World) -> None:
    await world.schedule("s", "every 1m", overlap="allow")
    await world.tick()
    keys = world.home("s")
    for _ in range(3):
        world.ms += MINUTE
        # The coordinator dies after this call.
        seen = await world.ask(schedule_plans.upcoming(keys, batch=10, now=world.now()))
        steps, _ = Scheduler(Partition(world.wire, keys, world.now))._decide(seen.entries, seen.now)
        await world.tick()
        # The coordinator was only slow, and fires now.
        late = await world.ask(schedule_plans.fire(keys, steps, grace=1, now=world.now()))
        assert [word for word, _ in late] == ["fired"], "the answer names the existing run"
    assert await world.fired("s") == [1, 2, 3]
    assert (await world.view("s")).fired == 3


async def test_coordinators_with_different_time_zone_data_do_not_fire_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the zone an hour off in one coordinator. The first coordinator to fire sets the next time, so no night fires twice."""
    await world.schedule("s", "0 2 * * *", tz="Europe/Berlin", overlap="allow")
    right, wrong = world.schedulers(), world.schedulers()
    others = rules_for("0 2 * * *", tz="Europe/London", overlap="allow")

    def read_wrongly(_: bytes) -> Rules:
        return others

    for n in range(24 * 4 * 6):
        world.ms += 10 * MINUTE
        order = [right, wrong] if n % 144 % 5 else [wrong, right]
        for services in order:
            with monkeypatch.context() as patched:
                if services is wrong:
                    patched.setattr(scheduler, "rules_from", read_wrongly)
                await world.tick(services)
    fired = await world.fired("s")
    assert (await world.view("s")).fired == len(fired) == len(await world.run_ids())
    assert [minute // 1440 for minute in fired] == [0, 1, 2, 3]
    assert {minute % 1440 for minute in fired} <= {60, 120}


# ---- bad entries -----------------------------------------------------------------------------------------------------


async def test_bad_entries_are_reported_and_do_not_stop_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("good", "garbled", "zone", "never", "spoilt", "empty"):
        await world.schedule(name, "every 1m", overlap="allow")
    unknown = Rules.__new__(Rules)
    for field, value in {"cron": "0 0 * * *", "every": 0.0, "tz": "Mars/Olympus", "jitter": 0.0}.items():
        object.__setattr__(unknown, field, value)
    object.__setattr__(unknown, "overlap", Overlap.SKIP)
    object.__setattr__(unknown, "catch_up", "latest")
    never = Rules.packed(rules_for("0 0 29 2 *")).replace(b"0 0 29 2 *", b"0 0 30 2 *")
    for name, rules in {"garbled": b"\xc1\xc1", "zone": unknown.packed(), "never": never, "empty": b""}.items():
        await world.ask(_one(read(world.home(name).at, "HSET", world.home(name).schedule(name), "rules", rules)))
    spoilt = world.home("spoilt")
    await world.ask(_one(read(spoilt.at, "DEL", spoilt.schedule("spoilt"))))
    await world.ask(_one(read(spoilt.at, "SET", spoilt.schedule("spoilt"), "spoilt")))
    for _ in range(3):
        await world.tick()
        world.ms += MINUTE
    assert await world.fired("good") == [1, 2]
    troubles = {name: (await world.view(name)).trouble for name in ("good", "garbled", "zone", "never", "spoilt")}
    assert troubles["good"] == ""
    assert "can't be read" in troubles["garbled"]
    assert "unknown time zone 'Mars/Olympus'" in troubles["zone"]
    assert "0 0 30 2 *" in troubles["never"]
    assert "can't be read" in troubles["spoilt"]
    said = [record for record in caplog.records if "schedule zone does not fire" in record.getMessage()]
    assert len(said) <= 3, "once for each coordinator"


async def test_coordinator_that_lacks_a_zone_leaves_it_to_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.schedule("s", "* * * * *", tz="Europe/Berlin", overlap="allow")
    blind, able = world.schedulers(), world.schedulers()

    def unknown(_: bytes) -> Rules:
        raise BadOption("unknown time zone 'Europe/Berlin'")

    for _ in range(4):
        with monkeypatch.context() as patched:
            patched.setattr(scheduler, "rules_from", unknown)
            await world.tick(blind)
        await world.tick(able)
        world.ms += MINUTE
    assert await world.fired("s") == [1, 2, 3]
    assert (await world.view("s")).trouble == ""


async def test_schedule_with_a_problem_is_checked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.schedule("s", "* * * * *")

    def unknown(_: bytes) -> Rules:
        raise BadOption("not known here")

    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "rules_from", unknown)
        world.ms += LEFT_TO_OTHERS_MS
        assert sum(report.troubled for report in await world.tick()) == 1
        assert (await world.view("s")).trouble == "not known here"
    world.ms += round(LOOK_AGAIN * 1000)
    await world.tick()
    assert (await world.view("s")).trouble == ""


# ---- whole coordinators, and clients ---------------------------------------------------------------------------------


@pytest.mark.matrix("waits through a timeout")
async def test_three_coordinators_fire_each_second_once(store_url: str, namespace: str) -> None:
    async with AsyncClient(store_url, namespace) as client:
        for n in range(5):
            await client.schedule(f"s{n}", 1, "work", overlap="allow")

        async def done() -> bool:
            return all(view.fired >= 4 for view in await client.schedules())

        async with running(store_url, namespace), running(store_url, namespace):
            async with running(store_url, namespace):
                await eventually(lambda: _some_fired(client), "the first to fire")
            await eventually(done, "four of each")
        for view in await client.schedules():
            times = await _times(client, view.name)
            assert len(times) == view.fired
            assert times == list(range(times[0], times[-1] + 1)), "every second, and each once"


async def _some_fired(client: AsyncClient) -> bool:
    return any(view.fired for view in await client.schedules())


async def _times(client: AsyncClient, name: str) -> list[int]:
    """Return the fire times in seconds, taken from the ids of the runs."""
    digits = "0123456789abcdefghjkmnpqrstvwxyz"
    views = [run for run in await client.list(kind="work", limit=10_000) if run.meta["schedule"] == name]
    return sorted(sum(digits.index(c) * 32**i for i, c in enumerate(reversed(run.id[:10]))) // 1000 for run in views)


async def test_client_sets_lists_pauses_and_removes_schedules(store_url: str, namespace: str) -> None:
    with Client(store_url, namespace) as client:
        client.schedule("b", 30, Inputs("report", {"topic": "tides"}), queue="slow", meta={"caller_id": "u1"})
        client.schedule(
            "a", "0 2 * * *", "work", {"n": 1}, tz="Europe/Berlin", overlap="cancel", catch_up="all", jitter=5
        )
        first, second = client.schedules()
        assert (first.name, first.when, first.tz, first.kind) == ("a", "0 2 * * *", "Europe/Berlin", "work")
        assert (first.overlap, first.catch_up, first.jitter) == ("cancel", "all", 5)
        assert (second.when, second.queue, second.inputs) == ("every 30 s", "slow", {"topic": "tides"})
        assert second.meta == {"caller_id": "u1", "schedule": "b"}
        client.pause_schedule("a")
        client.schedule("a", "0 3 * * *", "work")
        assert [(view.when, view.paused) for view in client.schedules()] == [("0 3 * * *", True), ("every 30 s", False)]
        client.unpause_schedule("a")
        assert not client.schedules()[0].paused
        client.unschedule("a")
        assert [view.name for view in client.schedules()] == ["b"]
        for change in (client.pause_schedule, client.unpause_schedule, client.unschedule):
            with pytest.raises(NotFound, match="there is no schedule a"):
                change("a")


async def test_scheduled_run_inherits_nothing_and_names_its_schedule(store_url: str, namespace: str) -> None:
    async with AsyncClient(store_url, namespace) as client, running(store_url, namespace):
        await client.schedule("s", 1, "work", {"n": 1}, priority=3)
        found = await eventually(lambda: client.list(kind="work"), "the run")
        assert (found[0].inputs, found[0].meta, found[0].parent) == ({"n": 1}, {"schedule": "s"}, None)
        (shown,) = await client.schedules()
        assert shown.last == found[0].id


async def test_bad_record_is_listed_with_its_problem(store_url: str, namespace: str) -> None:
    with Client(store_url, namespace) as client:
        client.schedule("good", 30, "work")
        client.schedule("bad", 30, "work")
        wire = AsyncWire(address(store_url))
        keys = (await drive_async(wire, namespace_plans.create(namespace, birth="x"))).keys(0)
        await drive_async(wire, _one(read(keys.at, "DEL", keys.schedule("bad"))))
        await drive_async(wire, _one(read(keys.at, "SET", keys.schedule("bad"), "spoilt")))
        await wire.close()
        assert [(view.name, "can't be read" in view.trouble) for view in client.schedules()] == [
            ("bad", True), ("good", False),
        ]  # fmt: skip
        client.schedule("bad", 30, "work")
        assert "can't be read" not in client.schedules()[0].trouble


def test_fired_run_is_logged_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    step = schedule_plans.Fire("s", "g", "1", "1", "2", "2", "0", "id")
    scheduler._log_step(step, "fired", "id")
    assert caplog.records == []
    scheduler._log_step(step._replace(expected="0"), "fired", "id")
    assert "missed fire times" in caplog.text


async def test_schedule_that_cannot_fire_because_memory_is_full_says_so_and_fires_later(
    start_server: StartServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server("valkey", {})
    wire = AsyncWire(address(server.url))
    space = await drive_async(wire, namespace_plans.create(namespace, birth="b", partitions=1, clock="test"))
    world = World(wire, space)
    try:
        await world.schedule("s", "*/2 * * * *", catch_up="all", overlap="allow")
        await world.tick()
        server.admin.config_set("maxmemory", "1mb")
        world.ms += 5 * MINUTE
        assert [report.troubled for report in await world.tick()] == [1]
        with Client(server.url, namespace) as client:
            (view,) = client.schedules()
            assert "the memory of " in view.trouble
            assert "is full" in view.trouble
        assert "schedule s does not fire: the memory of" in caplog.text
        server.admin.config_set("maxmemory", "0")
        world.ms += round(scheduler.LOOK_AGAIN_IF_FULL * 1000)
        await world.tick()
        assert await world.fired("s") == [2, 4]
        with Client(server.url, namespace) as client:
            (view,) = client.schedules()
            assert view.trouble == ""
    finally:
        await wire.close()
