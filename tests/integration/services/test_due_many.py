"""Very many runs that are due in the same second: all are enqueued, each once, and no call moves more than a batch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.config import address
from coordinator.services.due import BATCH, BATCHES, DueReport, DueRuns
from coordinator.services.service_loop import Partition
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.script import read
from coordinator.store.transport.wire import AsyncWire, drive_async
from tests.integration.services.test_services import KIND, World

pytestmark = pytest.mark.matrix("large numbers")

MANY = int(os.environ.get("RUNS_TEST_DUE", "20000"))


@dataclass(frozen=True)
class Counted(Partition):
    """A partition that records how many runs each call has moved."""

    moved: list[int] = field(default_factory=list)

    async def ask(self, plan: Any) -> Any:
        part = await Partition.ask(self, plan)
        self.moved.append(part.moved)
        return part


@pytest.fixture
async def world(real_url: str, namespace: str) -> AsyncIterator[World]:
    wire = AsyncWire(address(real_url))
    found = await drive_async(wire, namespace_plans.create(namespace, birth="b", partitions=1, clock="test"))
    yield World(wire, found)
    await wire.close()


async def count(world: World, key: str) -> int:
    (number,) = await world.wire.ask([read(world.keys.at, "ZCARD", key)])
    return int(number)


@pytest.mark.timeout(60 + MANY / 100)
async def test_runs_due_in_the_same_second_are_enqueued_in_batches(world: World) -> None:
    for _ in range(0, MANY, 1000):
        await world.enqueue(min(1000, MANY), due="+1000")
    delayed = await count(world, world.keys.delayed())
    world.seconds += 1
    partitions = [Counted(world.wire, world.keys, world.now) for _ in range(2)]
    services = [DueRuns(partition) for partition in partitions]
    reports: list[DueReport] = []
    while not reports or any(report.rest == 0.0 for report in reports[-2:]):
        reports += await asyncio.gather(*(service.tick() for service in services))
    calls = [moved for partition in partitions for moved in partition.moved]
    assert sum(calls) == sum(report.moved for report in reports) == delayed >= MANY
    assert max(calls) == BATCH, "a call does a batch, and no more"
    assert max(report.moved for report in reports) <= BATCH * BATCHES, "a tick ends, however many are due"
    assert await count(world, world.keys.delayed()) == 0
    assert await count(world, world.keys.ready(KIND)) == delayed
