"""A server that does not answer for longer than a lease: no run gets a strike, and all work continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from coordinator.config import Settings
from coordinator.services.daemon import Coordinator
from coordinator.store import scripts
from tests.conftest import StartServer
from tests.integration.worker_harness import HANG, Bench, bench, performing
from tests.proxy import Proxy, naming
from tests.servers import Server
from tests.waiting import eventually, work_for
from workers import AsyncRun, Registry
from workers.handlers.facts import Stopped

# The newest tenacity deprecates how the wire builds its back-off.
pytestmark = pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server()


@pytest.fixture
async def here(server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(server.url, namespace) as made:
        coordinator = Coordinator(Settings(server.url, namespace))
        task = asyncio.create_task(coordinator.run())
        try:
            yield made
        finally:
            server.resume()
            coordinator.stop()
            async with asyncio.timeout(HANG):
                await task


async def test_server_pause_longer_than_a_lease_gives_no_strike(here, server):
    runs, turns, go = Registry(), [], asyncio.Event()

    @runs.handler(throttle=0.0)
    async def loops(run: AsyncRun) -> int:
        async for turn in run.loop(limit=100_000):
            turns.append(turn)
            if go.is_set() and turn > 5:
                return turn
            await work_for(0.01)
        return -1

    worker, _ = here.worker(runs, lease=1.0)
    id = await here.enqueue("loops")
    await eventually(lambda: len(turns) > 5, "some turns")
    server.pause()
    lease = worker._membership.leases[0]
    await eventually(lambda: lease.in_doubt, "the lease to be in doubt")
    await eventually(lambda: _same(turns), "the loop to wait")
    server.resume()
    count = len(turns)
    await eventually(lambda: len(turns) > count + 3, "the loop to continue")
    assert worker._membership.leases[0] is lease, "the worker keeps its lease"
    go.set()
    assert await here.outcome(id) == "completed"
    counters = here.counters(id)
    assert (counters.attempt, counters.recoveries, counters.strikes, counters.releases) == (1, 0, 0, 0)


async def _same(turns: Sequence[object]) -> bool:
    """Return True if the value does not change while the event loop runs."""
    before = len(turns)
    await asyncio.sleep(0.2)  # Only a wait can show that nothing happens.
    return len(turns) == before


async def test_kind_that_must_stop_in_doubt_is_stopped_and_resumed(here, server):
    runs = Registry()
    ends: list[tuple[BaseException | None, Stopped | None]] = []

    @runs.handler(on_lost_lease="stop")
    async def careful(run: AsyncRun) -> str:
        if run.attempt > 1:
            return f"attempt {run.attempt}"
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            ends.append((error, run.stopping))
            await work_for(0.5)  # The handler cleans up, and must not be interrupted.
            ends.append((None, None))
            raise
        return ""

    worker, _ = here.worker(runs, lease=1.0)
    id = await here.enqueue("careful")
    await performing(worker)
    server.pause()
    await eventually(lambda: len(ends) > 1, "the handler to be stopped, and to have cleaned up")
    server.resume()
    assert isinstance(ends[0][0], asyncio.CancelledError)
    assert ends[0][1] is not None
    assert ends[0][1].why == "lost"
    assert await here.outcome(id) == "completed"
    assert here.result(id) == "attempt 2"
    assert here.counters(id).strikes == 0


@pytest.mark.matrix("waits through a timeout")
async def test_result_returned_in_doubt_is_recorded_afterwards(here, server):
    """Stop only handlers during a doubt. A handler that has returned is not repeated because the server was gone."""
    runs, go, attempts, stopped = Registry(), asyncio.Event(), [], []

    @runs.handler(on_lost_lease="stop")
    async def returns(run: AsyncRun) -> str:
        attempts.append(run.attempt)
        await go.wait()
        return "paid for"

    @runs.handler(on_lost_lease="stop")
    async def waits(run: AsyncRun) -> None:
        if run.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(run.id)

    worker, _ = here.worker(runs, lease=1.0)
    id, other = await here.enqueue("returns"), await here.enqueue("waits")
    await performing(worker, 2)
    await asyncio.to_thread(server.kill)
    go.set()
    await eventually(lambda: stopped == [other], "the doubt to stop the running handler")
    tries = worker._wire.trips
    await eventually(lambda: worker._wire.trips > tries + 2, "the ending of the other to be tried again and again")
    await asyncio.to_thread(server.start)
    assert await here.outcome(id) == "completed"
    assert (attempts, here.result(id)) == ([1], "paid for")


@pytest.mark.matrix("waits through a timeout")
async def test_drain_ends_while_the_server_does_not_answer(here, server):
    runs = Registry()

    @runs.handler(grace=0.0)
    async def loops(run: AsyncRun) -> None:
        async for _ in run.loop(limit=100_000):
            await work_for(0.01)

    worker, task = here.worker(runs, lease=1.0)
    id = await here.enqueue("loops")
    await performing(worker)
    server.pause()
    await eventually(lambda: worker._membership.leases[0].in_doubt, "the lease to be in doubt")
    worker.stop()
    async with asyncio.timeout(HANG):
        assert await task == 1
    assert worker.left_to_recovery == [id]
    server.resume()
    assert await here.until(id, "queued") == "queued"
    assert here.counters(id).strikes == 0


async def test_server_restart_gives_no_strike(here, server):
    runs, go = Registry(), asyncio.Event()

    @runs.handler(throttle=0.0)
    async def counts(run: AsyncRun) -> int:
        async for _ in run.loop(limit=100_000):
            run.messages.append({"turn": run.iteration})
            await work_for(0.01)
            if go.is_set():
                await run.flush()
                return len(run.messages) - run.iteration
        return -1

    worker, _ = here.worker(runs, lease=15.0)
    id = await here.enqueue("counts")
    await performing(worker)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    go.set()
    assert await here.outcome(id) == "completed"
    assert here.result(id) == 1
    counters = here.counters(id)
    assert (counters.attempt, counters.recoveries, counters.strikes) == (1, 0, 0)


async def test_run_claimed_in_doubt_starts_only_after_the_doubt(valkey_server: Server, namespace: str):
    """Receive the answer after the process was paused: by then the run may have another owner."""
    runs, begun = Registry(), []

    @runs.handler
    async def has_an_effect(run: AsyncRun) -> str:
        begun.append(run.token)
        return "done"

    proxy = Proxy(valkey_server.port)
    try:
        async with bench(valkey_server.url, namespace) as here:
            worker, _ = here.worker(runs, url=proxy.url, lease=1.0)
            async with asyncio.timeout(HANG):
                await worker.ready.wait()
            answer = proxy.hold_next_reply(naming(scripts.CLAIM.sha.encode()))
            id = await here.enqueue("has_an_effect")
            await eventually(answer.happened.is_set, "a claim to be carried out")
            proxy.hold_requests(naming(scripts.HEARTBEAT.sha.encode()))
            await eventually(lambda: worker._membership.leases[0].in_doubt, "the lease to be in doubt")
            answer.over.set()
            await eventually(lambda: worker.attempts, "the answer to be there")
            assert await _same(begun), "nothing may begin in a doubt"
            assert begun == []
            proxy.release_requests()
            assert await here.outcome(id) == "completed"
            assert len(begun) == 1
    finally:
        proxy.close()
