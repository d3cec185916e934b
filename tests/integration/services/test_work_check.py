"""An idle coordinator sends one command a second for four services, and each of them works as soon as its keys exist."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from coordinator import AsyncClient
from coordinator.config import Settings
from coordinator.services import daemon
from coordinator.services.admission import Admission
from coordinator.services.bell_ringer import BellRinger
from coordinator.services.daemon import Coordinator
from coordinator.services.due import DueRuns
from coordinator.services.scheduler import Scheduler
from coordinator.services.work_check import WorkCheck
from tests.waiting import eventually

SERVICES = (Admission, BellRinger, DueRuns, Scheduler, WorkCheck)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the ticks of each service."""
    counts: Counter[str] = Counter()

    def counting(service: type[Any]) -> None:
        tick = service.tick

        async def counted(self: Any) -> Any:
            counts[service.__name__] += 1
            return await tick(self)

        monkeypatch.setattr(service, "tick", counted)

    for service in SERVICES:
        counting(service)
    return counts


@pytest.fixture
async def coordinator(store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Coordinator]:
    """Run a coordinator that hears no bell: each push of a bell is lost."""

    async def deaf(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(daemon, "listen_to_bell", deaf)
    made = Coordinator(Settings(store_url, namespace))
    task = asyncio.create_task(made.run())
    yield made
    made.stop()
    async with asyncio.timeout(10):
        await task


async def idle(ticks: Counter[str]) -> None:
    """Wait until the work check has looked some more times."""
    looks = ticks["WorkCheck"]
    await eventually(lambda: ticks["WorkCheck"] >= looks + 3, "the coordinator to look three times")


@pytest.mark.matrix("waits through a timeout")
async def test_services_without_work_send_nothing(coordinator: Coordinator, ticks: Counter[str]) -> None:
    await idle(ticks)
    before = Counter(ticks)
    await idle(ticks)
    after = ticks - before
    assert set(after) == {"WorkCheck"}
    assert coordinator.health().not_live == ()


@pytest.mark.usefixtures("coordinator")
async def test_delayed_run_is_queued_although_the_bell_was_lost(
    store_url: str, namespace: str, ticks: Counter[str]
) -> None:
    await idle(ticks)
    async with AsyncClient(store_url, namespace) as client:
        run = await client.enqueue("work", {}, delay=0.1)

        async def queued() -> bool:
            return (await run.view()).status == "queued"

        await eventually(queued, "the delayed run to be queued")


@pytest.mark.matrix("waits through a timeout")
@pytest.mark.usefixtures("coordinator")
async def test_only_the_service_that_has_work_ticks(store_url: str, namespace: str, ticks: Counter[str]) -> None:
    await idle(ticks)
    async with AsyncClient(store_url, namespace) as client:
        await client.schedule("nightly", timedelta(days=1), "work")
        before = Counter(ticks)
        await eventually(lambda: ticks["Scheduler"] >= before["Scheduler"] + 2, "the scheduler to tick")
        await client.enqueue("work", {})
        await eventually(lambda: ticks["BellRinger"] >= before["BellRinger"] + 2, "the bell ringer to tick")
    assert (ticks["Admission"], ticks["DueRuns"]) == (before["Admission"], before["DueRuns"])
