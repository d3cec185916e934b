"""Lost replies and late requests between a worker and its server: no work is lost or repeated, and no run gets a strike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

import workers.process.worker
from coordinator.model.policies.retry import Retry
from coordinator.store import scripts
from coordinator.store.script import Script
from coordinator.store.transport.wire import AsyncWire
from tests.integration.worker_harness import HANG, Bench, bench, performing
from tests.proxy import Matching, Proxy, naming
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry
from workers.handlers.facts import Stopped

# The newest tenacity deprecates how the wire builds its back-off.
pytestmark = pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    made = Proxy(valkey_server.port)
    yield made
    made.close()


@pytest.fixture
async def here(valkey_server: Server, proxy: Proxy, namespace: str) -> AsyncIterator[Bench]:
    """Yield a bench behind the proxy. The proxy outlives the workers, because they leave through it."""
    async with bench(valkey_server.url, namespace) as made:
        for script in scripts.SCRIPTS:
            made.admin.script_load(script.text)  # Each call is then one EVALSHA.
        yield made


def calls(script: Script) -> Matching:
    return naming(b"EVALSHA", script.sha.encode())


def counting(registry: Registry[Any]) -> list[int]:
    """Return a registry with the kind `work`, which saves two messages, and the list of its starts."""
    begun: list[int] = []

    @registry.handler(throttle=0.0, retry=Retry(limit=2, wait=60))
    async def work(run: AsyncRun, end: str = "return") -> int:
        begun.append(run.attempt)
        if run.attempt == 1 or end == "return":
            run.messages.append({"n": 1})
            await run.flush()
            run.messages.append({"n": 2})
            await run.flush()
        if run.attempt == 1 and end == "raise":
            raise ValueError("x")
        if run.attempt == 1 and end == "quit":
            raise Stopped("drain")
        return len(run.messages)

    return begun


@pytest.mark.parametrize(
    "script", [scripts.JOIN, scripts.CLAIM, scripts.CHECKPOINT, scripts.COMPLETE], ids=lambda s: s.name
)
async def test_lost_reply_repeats_no_work(here, proxy, script):
    runs = Registry()
    begun = counting(runs)
    id = await here.enqueue("work")
    cut = proxy.cut_next_reply(calls(script))
    here.worker(runs, url=proxy.url)
    assert await here.outcome(id) == "completed"
    assert cut.happened.is_set()
    assert (here.result(id), begun) == (2, [1])
    counters = here.counters(id)
    assert (counters.attempt, counters.strikes, counters.releases, counters.recoveries) == (1, 0, 0, 0)


@pytest.mark.parametrize("end", ["raise", "quit"])
async def test_lost_reply_to_an_ending_counts_once(here, proxy, end):
    runs = Registry()
    begun = counting(runs)
    cut = proxy.cut_next_reply(calls(scripts.RETRY if end == "raise" else scripts.RELEASE))
    here.worker(runs, url=proxy.url)
    id = await here.enqueue("work", {"end": end})
    assert await here.outcome(id) == "delayed"
    await eventually(cut.happened.is_set, "the cut")
    counters = here.counters(id)
    assert counters.failures == (1 if end == "raise" else 0)
    assert counters.recoveries == (0 if end == "raise" else 1)
    await here.make_due(id)
    await here.until(id, "completed")
    assert (here.result(id), begun) == (2, [1, 2])


async def test_lost_reply_to_a_rejection_counts_once(here, proxy):
    runs = Registry()
    counting(runs)
    cut = proxy.cut_next_reply(calls(scripts.REJECT))
    here.worker(runs, url=proxy.url)
    id = await here.enqueue("work", {"unknown": 1})
    assert await here.outcome(id) == "delayed"
    await eventually(cut.happened.is_set, "the cut")
    assert (here.counters(id).backoffs, here.counters(id).recoveries) == (1, 0)


@pytest.mark.parametrize("script", [scripts.RELEASE, scripts.LEAVE], ids=lambda s: s.name)
async def test_lost_reply_during_a_drain_releases_once(here, proxy, script):
    runs = Registry()

    @runs.handler(grace=0.0)
    async def waits(run: AsyncRun) -> None:
        run.state["x"] = 1
        run.checkpoint()
        await asyncio.Event().wait()

    worker, task = here.worker(runs, url=proxy.url)
    id = await here.enqueue("waits")
    await performing(worker)
    cut = proxy.cut_next_reply(calls(script))
    assert await here.end(worker, task) == 0
    assert cut.happened.is_set()
    assert here.status(id) == "queued"
    assert here.counters(id).releases == 1
    assert here.state(id) == {"x": 1}


async def test_stop_between_a_claim_and_its_answer_releases_the_run(here, proxy):
    runs = Registry()
    begun = counting(runs)
    worker, task = here.worker(runs, url=proxy.url)
    await worker.ready.wait()
    proxy.hold_requests(calls(scripts.CLAIM))
    id = await here.enqueue("work")
    await eventually(lambda: proxy.held, "the claim to be on its way")
    worker.stop()
    await eventually(lambda: worker._shutdown.deadline is not None, "the drain to begin")
    proxy.release_requests()
    assert await asyncio.wait_for(task, 60) == 0
    assert here.status(id) == "queued"
    assert not begun
    counters = here.counters(id)
    assert (counters.strikes, counters.recoveries) == (0, 0)


async def test_heartbeat_between_a_claim_and_its_answer_releases_nothing(here, proxy):
    runs = Registry()
    begun = counting(runs)
    worker, _ = here.worker(runs, url=proxy.url, lease=600.0)  # Only the heartbeats that the test asks for are sent.
    await worker.ready.wait()
    lease = worker._membership.leases[0]

    def beaten_since(before: float) -> bool:
        return bool(lease._beat_at > before)

    answer = proxy.hold_next_reply(calls(scripts.CLAIM))
    id = await here.enqueue("work")
    await eventually(answer.happened.is_set, "the claim to be carried out")
    for _ in range(2):  # When the second answer is there, a release because of the first one has been sent.
        before = lease._beat_at
        worker._heartbeat.poke(lease)
        await eventually(partial(beaten_since, before), "the answer of a heartbeat that compares the runs")
    assert not worker.attempts
    assert here.status(id) == "running"
    answer.over.set()
    assert await here.outcome(id) == "completed"
    assert len(begun) == 1
    assert here.counters(id).releases == 0


@pytest.fixture
def short_claim_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a claim time out after a second or so."""
    monkeypatch.setattr(workers.process.worker, "AsyncWire", partial(AsyncWire, trip_seconds=0.5))
    monkeypatch.setattr("workers.process.claiming.claimer.CLAIM_SECONDS", 0.1)


@pytest.mark.matrix("waits through a timeout")
@pytest.mark.usefixtures("short_claim_timeout")
@pytest.mark.parametrize("told", [True, False], ids=["floor told", "floor not told"])
async def test_timed_out_claim_that_arrives_late_loses_no_run(here, proxy, told):
    runs = Registry()
    begun = counting(runs)
    worker, _ = here.worker(runs, url=proxy.url, lease=600.0)  # After the first heartbeat, the test asks for each one.
    await worker.ready.wait()
    lease = worker._membership.leases[0]
    record = here.namespace.keys(0).worker(lease.worker)
    # The first heartbeat opens the connection of all heartbeats, and the proxy soon refuses new connections.
    await eventually(lambda: here.admin.hget(record, "memory"), "the first heartbeat")
    proxy.hold_requests(calls(scripts.CLAIM))
    id = await here.enqueue("work")
    await eventually(lambda: proxy.held, "the claim to be on its way")
    proxy.refuse()
    number = lease.number
    await eventually(lambda: lease.floor >= number, "the claim to time out")
    if told:
        worker._heartbeat.poke(lease)
        await eventually(lambda: int(here.admin.hget(record, "floor")) >= number, "the floor to reach the server")
    proxy.release_requests()
    await eventually(lambda: proxy.late_replies, "the late claim")
    if told:
        assert here.status(id) == "queued"
        assert any(b"old" in reply for reply in proxy.late_replies)
    else:
        await here.until(id, "running")
        assert not begun
    proxy.accept()

    async def compared_and_done() -> bool:
        worker._heartbeat.poke(lease)
        return bool(here.status(id) == "completed")

    await eventually(compared_and_done, "the run to complete")
    counters = here.counters(id)
    assert (counters.strikes, counters.recoveries) == (0, 0)
    assert counters.releases == (0 if told else 1)
    assert len(begun) == 1


@pytest.mark.matrix("waits through a timeout")
@pytest.mark.usefixtures("short_claim_timeout")
async def test_runs_of_a_timed_out_claim_are_released_after_the_next_claim(here, proxy):
    """Check that a claim releases the runs, and not a later heartbeat: a crash in between would be a strike for a run that never
    started here.
    """
    runs = Registry()
    begun = counting(runs)
    worker, _ = here.worker(runs, url=proxy.url, lease=600.0)  # Only the heartbeats that the test asks for are sent.
    await worker.ready.wait()
    proxy.hold_requests(calls(scripts.CLAIM))
    id = await here.enqueue("work")
    await eventually(lambda: proxy.held, "the claim to be on its way")
    proxy.refuse()
    lease = worker._membership.leases[0]
    number = lease.number
    await eventually(lambda: lease.floor >= number, "the claim to time out")
    proxy.release_requests()
    assert await here.until(id, "running") == "running"
    assert not begun
    proxy.accept()
    assert await here.outcome(id) == "completed"
    assert begun == [2]
    counters = here.counters(id)
    assert (counters.strikes, counters.recoveries, counters.releases) == (0, 0, 1)


@pytest.mark.usefixtures("short_claim_timeout")
async def test_late_save_changes_nothing(here, proxy):
    runs, saved = Registry(), asyncio.Event()

    @runs.handler(throttle=0.0)
    async def writes(run: AsyncRun) -> list[Any]:
        for n in range(4):
            run.messages.append({"n": n})
            run.state["n"] = n
            await run.flush()
            saved.set()
        return list(run.messages)

    late = proxy.delay_next_request(HANG, calls(scripts.CHECKPOINT))
    here.worker(runs, url=proxy.url)
    id = await here.enqueue("writes")
    assert await here.outcome(id) == "completed"
    assert late.happened.is_set()
    assert here.result(id) == [{"n": n} for n in range(4)]
    late.over.set()
    await eventually(lambda: proxy.late_replies, "the late save")
    assert b"fenced" in proxy.late_replies[0]
    assert not here.admin.exists(here.namespace.keys(0).ckpt(id))
