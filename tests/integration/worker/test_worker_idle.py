"""The claim of an idle worker waits at the server, behind the bell: there it is carried out as soon as there is a run."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from coordinator import Client, Status
from coordinator.store import scripts
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.transport.wire import Wire, drive
from tests.integration.worker_harness import HANG, Bench, bench
from tests.proxy import Proxy, naming
from tests.servers import Server
from tests.waiting import eventually, wait_until
from workers import AsyncRun, Registry, Stopped
from workers.process.slots import SlotTable

runs = Registry()


@runs.handler
async def double(run: AsyncRun, number: int = 1) -> int:
    return 2 * number


async def idle(here: Bench, count: int = 1) -> None:
    """Each worker has two connections that are blocked: at the bell, and for what it is told."""
    await eventually(lambda: here.admin.info("clients")["blocked_clients"] == 2 * count, "the workers are idle")


@runs.handler
async def odd(run: AsyncRun) -> str:
    if run.attempt <= 2:
        raise Stopped("drain")
    return "fine after all"


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim waits in vain while a test blocks the loop that would send the next one."""
    monkeypatch.setattr("workers.process.claimer.ROUND", 600.0)


@pytest.fixture
def server(start_server: Any) -> Server:
    made: Server = start_server("valkey")  # whose only clients are ours
    return made


async def test_an_idle_worker_is_given_a_run_before_it_hears_of_it(server: Server, namespace: str) -> None:
    """Its event loop stands still meanwhile: all calls here block it."""
    async with bench(server.url, namespace) as here:
        here.worker(runs)
        await idle(here)
        with Client(server.url, namespace) as client:
            run = client.enqueue("double", {"number": 4})
            wait_until(lambda: run.view().status is Status.RUNNING, "the server has given it away")
        await here.until(run.id, "completed")
        assert here.result(run.id) == 8
        await idle(here)  # and again


async def test_a_stop_at_the_moment_of_the_bell_gives_the_run_back(server: Server, namespace: str) -> None:
    """No strike, no recovery, and the worker leaves nothing behind."""
    async with bench(server.url, namespace) as here:
        worker, task = here.worker(runs)
        await idle(here)
        with Client(server.url, namespace) as client:
            run = client.enqueue("double").id
            wait_until(lambda: here.status(run) == "running", "the server has given it away")
        worker.stop()
        async with asyncio.timeout(HANG):
            assert await task == 0
        assert here.status(run) == "queued"
        counters = here.counters(run)
        assert (counters.strikes, counters.recoveries) == (0, 0)
        assert here.admin.zcard(here.namespace.keys(0).workers()) == 0


async def test_a_lost_answer_to_a_claim_that_waited_costs_nothing(server: Server, namespace: str) -> None:
    with contextlib.closing(Proxy(server.port)) as proxy:
        async with bench(server.url, namespace) as here:
            here.worker(runs, url=proxy.url)
            await idle(here)
            cut = proxy.cut_next_reply(naming(scripts.CLAIM.sha.encode()))
            run = await here.enqueue("double")
            await here.until(run, "completed")
            assert cut.happened.is_set()
            counters = here.counters(run)
            assert (counters.strikes, counters.recoveries, counters.releases) == (0, 0, 1)


async def test_a_claim_that_waits_takes_no_suspect_along(server: Server, namespace: str) -> None:
    """Its process may be lost since then, and the next strike is the last: the run would die of what it had no part in."""
    async with bench(server.url, namespace) as here:
        worker, _ = here.worker(runs)
        run = await here.enqueue("odd")
        await here.outcome(run)
        await here.make_due(run)
        await eventually(lambda: here.counters(run).strikes == 2 and here.status(run) == "delayed", "the second strike")
        await idle(here)
        keys = here.namespace.keys(0)

        def number() -> bytes:
            known: bytes = here.admin.hget(keys.worker(worker._membership.leases[0].worker), "claim")
            return known

        before = number()
        here.admin.zadd(keys.delayed(), {run: 1}, xx=True)
        with contextlib.closing(Wire(here.wire.address)) as wire:  # from here on the event loop stands still
            drive(wire, coordinator_plans.due(keys))
            wait_until(lambda: number() != before, "the claim was carried out")
        assert here.status(run) == "queued"
        await here.until(run, "completed")


async def test_a_server_that_forgot_the_script_of_a_waiting_claim_is_sent_it_whole(
    server: Server, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The token is taken by then: nobody else is told of the run."""
    async with bench(server.url, namespace) as here:
        here.worker(runs)
        await idle(here)
        here.admin.script_flush()
        run = await here.enqueue("double")
        await here.until(run, "completed")
        assert "claim failed" not in caplog.text


async def test_an_idle_worker_that_is_told_of_newer_code_takes_its_claim_back(server: Server, namespace: str) -> None:
    """Else it would take what the worker beside it releases to the newer one, and the run would move twice."""
    async with bench(server.url, namespace) as here:
        worker, _ = here.worker(runs)
        await idle(here)

        def listeners() -> set[str]:
            return {client["id"] for client in here.admin.client_list() if client["cmd"] == "blpop"}

        before = listeners()
        worker.outdated = True
        await eventually(lambda: len(listeners()) == 2 and listeners() != before, "it listens on another connection")
        with Client(server.url, namespace) as client:
            run = client.enqueue("double").id
            assert here.status(run) == "queued"  # while the event loop stands still
        await here.until(run, "completed")
        assert here.counters(run).attempt == 1
        worker.outdated = False
        again = await here.enqueue("double")
        await here.until(again, "completed")


async def test_a_claim_that_is_taken_back_before_it_has_begun_keeps_no_place(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the turn of the event loop that makes the claim and the one in which it begins."""
    async with bench(server.url, namespace) as here:
        worker, _ = here.worker(runs)
        reserve = SlotTable.reserve

        async def told_meanwhile(slots: SlotTable, most: int) -> tuple[int, bool]:
            reserved = await reserve(slots, most)
            if most == 1:  # this one is to wait at the server
                asyncio.get_running_loop().call_soon(setattr, worker, "outdated", True)
            return reserved

        monkeypatch.setattr(SlotTable, "reserve", told_meanwhile)
        await eventually(lambda: worker.outdated, "the worker was told")
        await here.until(await here.enqueue("double"), "completed")


async def test_many_runs_at_once_are_shared_by_those_who_wait(server: Server, namespace: str) -> None:
    """Each claim takes one and rings for the next: with as many idle workers as runs, each has one."""
    async with bench(server.url, namespace) as here:
        for _ in range(4):
            here.worker(runs)
        await idle(here, 4)
        with Client(server.url, namespace) as client:
            handles = client.enqueue_many([("double", {"number": n}) for n in range(4)])
            wait_until(lambda: all(h.view().status is Status.RUNNING for h in handles), "the server has given all away")
            assert len({handle.view().owner for handle in handles}) == 4
        for handle in handles:
            await here.until(handle.id, "completed")


async def test_where_places_are_shared_by_partitions_no_claim_waits(server: Server, namespace: str) -> None:
    """It would hold the only place while another partition has a run."""
    async with bench(server.url, namespace, partitions=2) as here:
        here.worker(runs, concurrency=1)
        await idle(here, 2)
        with Client(server.url, namespace) as client:
            handles = client.enqueue_many([("double", {"number": n}) for n in range(20)])
            assert {handle.view().status for handle in handles} == {Status.QUEUED}  # while the event loop stands still
        for handle in handles:
            await here.until(handle.id, "completed")
