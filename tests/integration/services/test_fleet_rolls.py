"""A supervisor reports its part of a roll in the end, whatever the server did meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.config import Settings
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.server_checks import enter
from coordinator.store.transport.wire import AsyncWire, drive_async
from tests.servers import Server
from tests.waiting import eventually
from workers.process.options import WorkerOptions
from workers.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.matrix("waits through a timeout")

HANG = 60.0


@pytest.fixture
def fleet_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Supervisor]:
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))

    def make(url: str, namespace: str, processes: int = 1) -> Supervisor:
        return Supervisor(
            ["tests.e2e.app:runs"], WorkerOptions(Settings(url, namespace, timeout=2.0), processes=processes, grace=1.0)
        )

    return make


def ready(fleet: Supervisor) -> int:
    return sum(child.ready for child in fleet.children.values())


@pytest.mark.timeout(240)
async def test_roll_report_that_failed_in_an_outage_is_sent_after_it(
    start_server: Callable[..., Server], namespace: str, fleet_of: Callable[..., Supervisor]
) -> None:
    server = start_server()
    settings = Settings(server.url, namespace, timeout=2.0)
    fleet = fleet_of(server.url, namespace)
    running = asyncio.create_task(fleet.run())
    await eventually(lambda: ready(fleet) == 1, "it is ready", HANG)
    wire = AsyncWire(settings.address, 5.0)
    keys = (await drive_async(wire, enter(settings))).keys(0)
    await eventually(lambda: server.admin.zcard(keys.supervisors("default")), "the supervisor is seen", HANG)
    assert (await drive_async(wire, fleet_plans.request_roll(keys, "default", "r1", at_once=1, by="me"))).word == "ok"
    await eventually(lambda: len(fleet.children) == 2, "a successor has started", HANG)
    server.kill()
    await eventually(lambda: len(fleet.children) == 1, "the successor has ended", HANG)
    server.restart()
    try:

        async def told() -> bool:
            return not (await drive_async(wire, fleet_plans.read_roll(keys, "default"))).under_way

        await eventually(told, "the report arrives", HANG)
        view = await drive_async(wire, fleet_plans.read_roll(keys, "default"))
        assert [(part.state, part.replaced) for part in view.parts.values()] == [("failed", 0)]
        assert "can't be reached" in next(iter(view.parts.values())).reason
        assert ready(fleet) == 1, "the old process continues"
    finally:
        fleet.stop()
        await asyncio.wait_for(running, HANG)
        await wire.close()


@pytest.mark.timeout(240)
async def test_rolls_requested_at_the_same_time_run_one_after_the_other(
    valkey_server: Server, namespace: str, fleet_of: Callable[..., Supervisor]
) -> None:
    fleet = fleet_of(valkey_server.url, namespace, processes=2)
    assert (await fleet.roll()).problem == "the supervisor has not started yet"
    running = asyncio.create_task(fleet.run())
    await eventually(lambda: ready(fleet) == 2, "both are ready", HANG)
    first = {child.process.pid for child in fleet.children.values()}
    done = await asyncio.gather(fleet.roll(), fleet.roll(at_once=2))
    assert [(one.replaced, one.total, one.problem) for one in done] == [(2, 2, "")] * 2
    assert len(fleet.children) == 2
    assert not first & {child.process.pid for child in fleet.children.values()}
    fleet.stop()
    assert await asyncio.wait_for(running, HANG) == 0
