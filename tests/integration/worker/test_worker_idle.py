"""The claim of an idle worker waits at the server, after the bell's blocking command, and is executed as soon as there is a run."""

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
from workers.process.claiming.slots import SlotTable
from workers.process.worker import Worker

runs = Registry()


@runs.handler
async def double(run: AsyncRun, number: int = 1) -> int:
    return 2 * number


async def idle(here: Bench, count: int = 1) -> None:
    """Wait until each worker has two blocked connections: one for the bell and one for notifications."""
    await eventually(lambda: here.admin.info("clients")["blocked_clients"] == 2 * count, "the workers are idle")


@runs.handler
async def odd(run: AsyncRun) -> str:
    if run.attempt <= 2:
        raise Stopped("drain")
    return "fine after all"


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the wait long enough that no claim ends empty while a test blocks the event loop that would send the next one."""
    monkeypatch.setattr("workers.process.claiming.claimer.ROUND", 600.0)


@pytest.fixture
def server(start_server: Any) -> Server:
    made: Server = start_server("valkey")  # Only this test's clients use this server.
    return made


async def test_waiting_claim_of_an_idle_worker_takes_a_run_immediately(server: Server, namespace: str) -> None:
    """Block the event loop meanwhile: all calls in this test are synchronous."""
    async with bench(server.url, namespace) as here:
        here.worker(runs)
        await idle(here)
        with Client(server.url, namespace) as client:
            run = client.enqueue("double", {"number": 4})
            wait_until(lambda: run.view().status is Status.RUNNING, "the server has given it away")
        await here.until(run.id, "completed")
        assert here.result(run.id) == 8
        await idle(here)  # The worker waits again.


async def test_stop_at_the_moment_of_the_bell_releases_the_run(server: Server, namespace: str) -> None:
    """Check that there is no strike and no recovery, and that the worker leaves nothing behind."""
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


async def test_lost_answer_to_a_waiting_claim_loses_no_run(server: Server, namespace: str) -> None:
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


async def test_waiting_claim_takes_no_suspect(server: Server, namespace: str) -> None:
    """Leave the suspect in the queue: the process may be lost by then, and its next strike is the last.

    The run would be dead without being at fault.
    """
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
        with contextlib.closing(Wire(here.wire.address)) as wire:  # From here on the event loop is blocked.
            drive(wire, coordinator_plans.due(keys))
            wait_until(lambda: number() != before, "the claim was carried out")
        assert here.status(run) == "queued"
        await here.until(run, "completed")


def claims_of(here: Bench, worker: Worker) -> int:
    """Return the number of the last claim that the server has carried out for a worker."""
    key = here.namespace.keys(0).worker(worker._membership.leases[0].worker)
    return int(here.admin.hget(key, "claim"))


async def test_claim_waits_again_as_soon_as_a_very_short_run_has_ended(server: Server, namespace: str) -> None:
    """Check that no other claim comes between: it would delay the start of the next run."""
    async with bench(server.url, namespace) as here:
        worker, _ = here.worker(runs)
        await idle(here)
        before = claims_of(here, worker)
        for _ in range(5):
            await here.until(await here.enqueue("double"), "completed")
            await idle(here)
        assert claims_of(here, worker) == before + 5


async def test_waiting_claim_that_leaves_runs_is_followed_by_claims_of_many(server: Server, namespace: str) -> None:
    async with bench(server.url, namespace) as here:
        worker, _ = here.worker(runs)
        await idle(here)
        before = claims_of(here, worker)
        with Client(server.url, namespace) as client:  # The event loop is blocked meanwhile.
            handles = client.enqueue_many([("double", {"number": n}) for n in range(40)])
            wait_until(lambda: handles[0].view().status is Status.RUNNING, "the server has given the first one away")
        for handle in handles:
            await here.until(handle.id, "completed")
        assert claims_of(here, worker) - before < 30


async def test_outcome_that_is_late_does_not_delay_the_next_run(server: Server, namespace: str) -> None:
    with contextlib.closing(Proxy(server.port)) as proxy:
        async with bench(server.url, namespace) as here:
            here.worker(runs, url=proxy.url)
            await idle(here)
            late = proxy.delay_next_request(HANG / 4, naming(scripts.COMPLETE.sha.encode()))
            first = await here.enqueue("double")
            await eventually(late.happened.is_set, "the completion is on its way")
            second = await here.enqueue("double")
            await here.until(second, "completed")
            assert here.status(first) == "running"
            await here.until(first, "completed")


async def test_suspect_that_comes_while_an_outcome_is_recorded_is_claimed(server: Server, namespace: str) -> None:
    """The waiting claim takes the token of the suspect's bell. The next claim may not take the suspect either.

    The outcome is recorded while this second claim is under way, so that the process is empty and waits again.
    """
    claim, claims = scripts.CLAIM.sha.encode(), list[bytes]()

    def is_second_claim(request: bytes) -> bool:
        if claim in request and request not in claims:
            claims.append(request)
        return claims[1:2] == [request]

    with contextlib.closing(Proxy(server.port)) as proxy:
        async with bench(server.url, namespace) as here:
            keys = here.namespace.keys(0)
            suspect = await here.enqueue("double", {"number": 3})
            route = here.run(suspect)["route"].decode()
            here.admin.rename(keys.ready(route), keys.suspect(route))
            here.admin.delete(keys.bell(route))
            here.admin.rename(keys.suspect(route), "elsewhere")
            here.worker(runs, url=proxy.url)
            await idle(here)
            recorded = proxy.delay_next_request(HANG, naming(scripts.COMPLETE.sha.encode()))
            first = await here.enqueue("double")
            await eventually(recorded.happened.is_set, "the outcome is on its way")
            await idle(here)
            claimed = proxy.delay_next_request(HANG, is_second_claim)
            here.admin.rename("elsewhere", keys.suspect(route))
            here.admin.rpush(keys.suspect_bell(route), "1")
            await eventually(claimed.happened.is_set, "the second claim is on its way")
            recorded.over.set()
            await here.until(first, "completed")
            claimed.over.set()
            await here.until(suspect, "completed")


async def test_waiting_claim_resends_a_script_that_the_server_has_lost(
    server: Server, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that the run is claimed: the bell's token is already taken, so no other worker is notified."""
    async with bench(server.url, namespace) as here:
        here.worker(runs)
        await idle(here)
        here.admin.script_flush()
        run = await here.enqueue("double")
        await here.until(run, "completed")
        assert "claim failed" not in caplog.text


async def test_idle_worker_withdraws_its_claim_when_newer_code_is_announced(server: Server, namespace: str) -> None:
    """Withdraw the claim, which would otherwise take a run that another worker releases to the newer one.

    That run would move twice.
    """
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
            assert here.status(run) == "queued"  # The event loop is blocked meanwhile.
        await here.until(run, "completed")
        assert here.counters(run).attempt == 1
        worker.outdated = False
        again = await here.enqueue("double")
        await here.until(again, "completed")


async def test_claim_withdrawn_before_it_starts_occupies_no_slot(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Withdraw the claim after the event loop has created it and before the event loop starts it."""
    async with bench(server.url, namespace) as here:
        worker, _ = here.worker(runs)
        reserve = SlotTable.reserve

        async def told_meanwhile(slots: SlotTable, most: int) -> tuple[int, bool]:
            reserved = await reserve(slots, most)
            if most == 1:  # This claim has to wait at the server.
                asyncio.get_running_loop().call_soon(setattr, worker, "outdated", True)
            return reserved

        monkeypatch.setattr(SlotTable, "reserve", told_meanwhile)
        await eventually(lambda: worker.outdated, "the worker knows the newer code")
        await here.until(await here.enqueue("double"), "completed")


async def test_idle_workers_share_many_new_runs(server: Server, namespace: str) -> None:
    """Check that each claim takes one run and rings for the next one: with as many idle workers as runs, each gets one."""
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


async def test_no_claim_waits_if_partitions_share_the_slots(server: Server, namespace: str) -> None:
    """Send no waiting claim, because it would occupy the only slot while another partition has a run."""
    async with bench(server.url, namespace, partitions=2) as here:
        here.worker(runs, concurrency=1)
        await idle(here, 2)
        with Client(server.url, namespace) as client:
            handles = client.enqueue_many([("double", {"number": n}) for n in range(20)])
            # The event loop is blocked meanwhile.
            assert {handle.view().status for handle in handles} == {Status.QUEUED}
        for handle in handles:
            await here.until(handle.id, "completed")
