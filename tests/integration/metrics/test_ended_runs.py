"""Runs that end while no worker executes them are counted by kind and status, on a real server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from coordinator import AsyncClient, AttemptEnding, Middleware
from coordinator.clock import SystemClock
from coordinator.config import Settings
from coordinator.metrics import otel
from coordinator.metrics.catalog import OTHER
from coordinator.metrics.ending_counts import EndingCounts
from coordinator.metrics.samples import Samples
from coordinator.model.names import route
from coordinator.services import daemon, ending_reporter
from coordinator.services.daemon import Coordinator, exports_metrics
from coordinator.services.ending_reporter import EndingReporter
from coordinator.services.service_loop import Partition
from coordinator.store import scripts
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.transport.wire import AsyncWire
from coordinator.tracing import Tracing
from tests.integration.worker_harness import Bench, bench, performing
from tests.proxy import Proxy, naming
from tests.servers import Server, free_port
from tests.waiting import eventually
from workers import AsyncRun, Registry
from workers.attempt.executor import Executor
from workers.attempt.recorder import Recorder
from workers.metrics.worker_metrics import WorkerMetrics
from workers.supervisor.sidecars import EmbeddedCoordinator


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


class Counting:
    """The service of a coordinator that exports metrics, and its counts."""

    def __init__(self, here: Bench, tracing: Tracing | None = None) -> None:
        self.counts = EndingCounts()
        self.service = EndingReporter(Partition(here.wire, here.namespace.keys(0)), tracing, self.counts)

    @property
    def ended(self) -> dict[tuple[str, ...], float]:
        return ended_runs(self.counts)

    async def tick(self) -> ending_reporter.EndingsReport:
        return await self.service.tick()


def ended_runs(counts: EndingCounts) -> dict[tuple[str, ...], float]:
    samples = Samples()
    counts.add_to(samples)
    return samples.values.get("runs_ended", {})


async def expire(here: Bench, kind: str) -> str:
    """Enqueue a run that expires after a millisecond, and return its id when it has expired."""
    id = here.ids.make(time.time(), 0)
    new = client_plans.NewRun(id, route("default", kind, 0), b"\x93\x80\x80\x80", expires="1")
    assert await here.do(client_plans.enqueue(here.namespace, [new])) == [("created", id)]

    async def has_ended() -> bool:
        await here.do(coordinator_plans.due(here.namespace.keys(0)))
        return here.status(id) == "cancelled"

    await eventually(has_ended, "the run to expire")
    return id


# ---- each way to end without a worker


async def test_run_that_is_cancelled_while_it_is_queued_is_counted_once(here):
    counting = Counting(here)
    await counting.tick()  # from now on such endings are noted
    for _ in range(2):
        await here.cancel(await here.enqueue("crawl"))
    await here.cancel(await here.enqueue("report"))
    assert (await counting.tick()).counted == 3
    assert (await counting.tick()).counted == 0
    assert counting.ended == {("crawl", "cancelled"): 2, ("report", "cancelled"): 1}


async def test_run_that_expires_while_it_is_queued_is_counted_once(here):
    counting = Counting(here)
    await counting.tick()
    await expire(here, "crawl")
    await counting.tick()
    await counting.tick()
    assert counting.ended == {("crawl", "cancelled"): 1}


async def test_run_that_is_cancelled_while_it_waits_is_counted_once(here):
    runs = Registry()

    @runs.handler(linger=0)
    async def ask(run: AsyncRun) -> None:
        await run.receive("answer")

    counting = Counting(here)
    await counting.tick()
    worker, task = here.worker(runs)
    worker.metrics = WorkerMetrics(list(runs.handlers))
    id = await here.enqueue("ask")
    await here.until(id, "waiting")
    await here.cancel(id)
    await here.end(worker, task)
    await counting.tick()
    await counting.tick()
    assert counting.ended == {("ask", "cancelled"): 1}
    assert "runs_ended" not in worker.metrics.cells.read().values


async def test_run_that_dies_with_its_workers_is_counted_once(here):
    runs, go = Registry(), asyncio.Event()

    @runs.handler
    async def crash(run: AsyncRun) -> None:
        await go.wait()

    counting = Counting(here)
    await counting.tick()
    id = await here.enqueue("crash")
    lost = []
    for number in (1, 2, 3):
        worker, task = here.worker(runs, concurrency=1)
        worker.metrics = WorkerMetrics(list(runs.handlers))
        await eventually(lambda: here.status(id) == "running", f"attempt {number}")
        await performing(worker)
        lost.append((worker, task))
        worker._intake.claimers[0].draining = True  # so that the lost worker does not take the run again
        await here.abandon(worker)
        if number == 2:
            await here.make_due(id)
    assert here.status(id) == "dead"
    go.set()
    for worker, task in lost:
        await here.end(worker, task)
    await counting.tick()
    await counting.tick()
    assert counting.ended == {("crash", "dead"): 1}
    for worker, _ in lost:  # the attempts are lost, so no worker counts the end of the run
        assert worker.metrics is not None
        assert "runs_ended" not in worker.metrics.cells.read().values


async def test_run_that_its_worker_ends_is_counted_by_the_worker_only(here):
    runs = Registry()

    @runs.handler
    async def work(run: AsyncRun, how: str) -> None:
        if how == "failed":
            raise ValueError("no")
        if how == "cancelled":
            await here.cancel(run.id)
            async for _ in run.loop(limit=1_000_000):
                await asyncio.sleep(0.01)  # the work of a turn, until the cancel arrives

    counting = Counting(here)
    await counting.tick()
    worker, task = here.worker(runs)
    worker.metrics = WorkerMetrics(list(runs.handlers))
    for how in ("completed", "failed", "cancelled"):
        assert await here.outcome(await here.enqueue("work", {"how": how})) == how
    await here.end(worker, task)
    assert (await counting.tick()).counted == 0
    assert worker.metrics.cells.read().values["runs_ended"] == {
        ("work", "completed"): 1, ("work", "failed"): 1, ("work", "cancelled"): 1,
    }  # fmt: skip


class Endings(Middleware):
    """Record the outcomes of attempts."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def on_ending(self, ending: AttemptEnding) -> None:
        self.outcomes.append(ending.outcome)


async def fail_unexpectedly(*_: Any) -> str:
    raise RuntimeError("an error that no code expects")


async def strike_out(here: Bench, id: str) -> None:
    """Return when each of three attempts at the run was released with a strike."""
    for number in (1, 2):
        await here.attempted(id, number)
        await here.until(id, "delayed")
        await here.make_due(id)
    await here.until(id, "dead")


async def test_run_that_is_dead_because_its_outcome_cannot_be_recorded_is_counted_by_its_worker(here, monkeypatch):
    monkeypatch.setattr(Recorder, "_record", fail_unexpectedly)
    seen = Endings()
    runs = Registry(middleware=[seen])

    @runs.handler
    async def work(run: AsyncRun) -> None:
        pass

    counting = Counting(here)
    await counting.tick()
    worker, task = here.worker(runs, concurrency=1)
    worker.metrics = WorkerMetrics(list(runs.handlers))
    await strike_out(here, await here.enqueue("work"))
    await here.end(worker, task)
    values = worker.metrics.cells.read().values
    assert values["runs_ended"] == {("work", "dead"): 1}
    assert values["runs_attempts"] == {("work", "released"): 2, ("work", "dead"): 1}
    assert seen.outcomes == ["released", "released", "dead"]
    assert (await counting.tick()).counted == 0


async def test_run_that_is_dead_because_the_worker_cannot_execute_it_is_counted_by_the_worker(here, monkeypatch):
    monkeypatch.setattr(Executor, "execute", fail_unexpectedly)
    runs = Registry()

    @runs.handler
    async def work(run: AsyncRun) -> None:
        pass

    worker, task = here.worker(runs, concurrency=1)
    worker.metrics = WorkerMetrics(list(runs.handlers))
    await strike_out(here, await here.enqueue("work"))
    await here.end(worker, task)
    assert worker.metrics.cells.read().values["runs_ended"] == {("work", "dead"): 1}


async def test_run_that_a_cancel_ends_when_its_outcome_cannot_be_recorded_is_counted_by_its_worker(here, monkeypatch):
    monkeypatch.setattr(Recorder, "_record", fail_unexpectedly)
    seen = Endings()
    runs = Registry(middleware=[seen])

    @runs.handler
    async def work(run: AsyncRun) -> None:
        await here.cancel(run.id)

    counting = Counting(here)
    await counting.tick()
    worker, task = here.worker(runs)
    worker.metrics = WorkerMetrics(list(runs.handlers))
    assert await here.outcome(await here.enqueue("work")) == "cancelled"
    await here.end(worker, task)
    assert worker.metrics.cells.read().values["runs_ended"] == {("work", "cancelled"): 1}
    assert seen.outcomes == ["cancelled"]
    assert (await counting.tick()).counted == 0


async def test_run_that_is_removed_before_its_end_is_counted_keeps_its_kind(here):
    counting = Counting(here)
    await counting.tick()
    async with AsyncClient(here.url, here.namespace.name) as client:
        handle = await client.enqueue("crawl")
        await handle.cancel()
        await handle.discard()
    here.admin.delete(here.namespace.keys(0).run(handle.id))
    await counting.tick()
    assert counting.ended == {("crawl", "cancelled"): 1}


async def test_more_endings_than_a_batch_are_taken_without_a_rest(here, monkeypatch):
    monkeypatch.setattr(ending_reporter, "BATCH", 3)
    counting = Counting(here)
    await counting.tick()
    for _ in range(5):
        await here.cancel(await here.enqueue("crawl"))
    assert (await counting.tick()).rest == 0.0
    while (await counting.tick()).rest == 0.0:
        pass
    assert counting.ended == {("crawl", "cancelled"): 5}


async def test_ending_that_an_older_version_noted_is_counted_as_another_kind(here):
    counting = Counting(here, Tracing(TracerProvider()))
    await counting.tick()
    id = await here.enqueue("crawl")
    await here.cancel(id)
    key = here.namespace.keys(0).unreported()
    here.admin.rpush(key, here.admin.rpop(key).rpartition(b" ")[0])  # without the route
    report = await counting.tick()
    assert (report.counted, report.traced) == (1, 1)
    assert counting.ended == {(OTHER, "cancelled"): 1}


@pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")  # the newest tenacity
async def test_endings_of_a_lost_reply_are_not_counted_and_later_ones_are(here, valkey_server):
    here.admin.script_load(scripts.TAKE_ENDINGS.text)  # each call is then one EVALSHA
    with closing(Proxy(valkey_server.port)) as proxy:
        wire, counts = AsyncWire(Settings(proxy.url, here.namespace.name).address), EndingCounts()
        service = EndingReporter(Partition(wire, here.namespace.keys(0)), None, counts)
        try:
            await service.tick()
            await here.cancel(await here.enqueue("crawl"))
            cut = proxy.cut_next_reply(naming(scripts.TAKE_ENDINGS.sha.encode()))
            assert (await service.tick()).counted == 0
            assert cut.happened.is_set()
            await here.cancel(await here.enqueue("report"))
            await service.tick()
        finally:
            await wire.close()
    assert ended_runs(counts) == {("report", "cancelled"): 1}


# ---- several coordinators


async def test_two_coordinators_count_each_ending_once(here):
    both = [Counting(here), Counting(here)]
    await both[0].tick()
    expected: Counter[tuple[str, ...]] = Counter()
    for number in range(20):
        await here.cancel(await here.enqueue(f"kind{number % 3}"))
        expected[f"kind{number % 3}", "cancelled"] += 1
        await both[number % 2].tick()
    assert Counter(both[0].ended) + Counter(both[1].ended) == expected
    assert all(one.ended for one in both)


async def test_coordinator_that_only_reports_traces_leaves_the_counts_to_the_other_one(here):
    counting = Counting(here)
    traces = EndingReporter(Partition(here.wire, here.namespace.keys(0)), Tracing(TracerProvider()), None)
    both = Counting(here, Tracing(TracerProvider()))
    await counting.tick()
    await traces.tick()
    traced = 0
    for number in range(9):
        await here.cancel(await here.enqueue("crawl"))
        if number % 3 == 0:
            traced += (await traces.tick()).traced
        else:
            traced += (await (counting if number % 3 == 1 else both).tick()).traced
    await counting.tick()
    traced += (await traces.tick()).traced
    assert sum(counting.ended.values()) + sum(both.ended.values()) == 9
    assert traced == 9


# ---- an idle coordinator


@pytest.mark.parametrize("jobs", ["counts", "spans", "both", "two coordinators"])
async def test_idle_ticks_write_nothing(here, jobs):
    tracing, counts = Tracing(TracerProvider()), EndingCounts()
    partition = Partition(here.wire, here.namespace.keys(0))
    made = {
        "counts": [EndingReporter(partition, None, counts)],
        "spans": [EndingReporter(partition, tracing, None)],
        "both": [EndingReporter(partition, tracing, counts)],
        "two coordinators": [EndingReporter(partition, None, counts), EndingReporter(partition, tracing, None)],
    }[jobs]

    def changes() -> int:
        found: int = here.admin.info("persistence")["rdb_changes_since_last_save"]
        return found

    for service in made:
        await service.tick()
    await here.cancel(await here.enqueue("crawl"))
    for service in (*made, *made):  # each list is emptied
        await service.tick()
    before = changes()
    for service in made * 5:
        await service.tick()
    assert changes() == before
    await here.cancel(await here.enqueue("crawl"))
    assert sum([(await service.tick()).counted for service in (*made, *made)]) == (0 if jobs == "spans" else 1)


# ---- whole coordinators


@asynccontextmanager
async def running(here: Bench, *, exports_metrics: bool) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(Settings(here.url, here.namespace.name), exports_metrics=exports_metrics)
    task = asyncio.create_task(coordinator.run())
    try:
        await eventually(lambda: not coordinator.health().not_ready, "the coordinator is ready")
        yield coordinator
    finally:
        coordinator.stop()
        async with asyncio.timeout(10):
            await task


async def exported(coordinator: Coordinator) -> dict[tuple[str, ...], float]:
    return (await coordinator.metrics()).values.get("runs_ended", {})


async def test_coordinators_with_metrics_export_the_counts_of_all_partitions(valkey_server, namespace):
    async with (
        bench(valkey_server.url, namespace, partitions=2) as here,
        running(here, exports_metrics=True) as one,
        running(here, exports_metrics=True) as two,
    ):
        for number in range(10):
            await here.cancel(await here.enqueue("crawl", partition=number % 2))

        async def all_are_counted() -> bool:
            return sum((*(await exported(one)).values(), *(await exported(two)).values())) >= 10

        await eventually(all_are_counted, "all endings are counted")
        assert Counter(await exported(one)) + Counter(await exported(two)) == {("crawl", "cancelled"): 10}


async def test_no_list_is_kept_without_metrics_and_traces(here, monkeypatch):
    monkeypatch.setattr(
        daemon, "configured_tracing", lambda: None
    )  # other tests of the process may have set a provider
    keys = here.namespace.keys(0)
    async with running(here, exports_metrics=False) as coordinator:
        assert not any(isinstance(loop.service, EndingReporter) for loop in coordinator._loops)
        await here.cancel(await here.enqueue("crawl"))
        assert await exported(coordinator) == {}
    assert not here.admin.exists(keys.unreported(), keys.uncounted(), keys.untraced())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Coordinator]:
    """The coordinators that `serve` starts. They end at once."""
    made: list[Coordinator] = []

    async def note(coordinator: Coordinator) -> None:
        made.append(coordinator)

    monkeypatch.setattr(daemon, "_until_signalled", note)
    return made


async def test_endpoint_or_sdk_for_metrics_makes_a_coordinator_count_endings(here, started, monkeypatch):
    settings = Settings(here.url, here.namespace.name)
    await daemon.serve(settings)
    await daemon.serve(settings, metrics=f"127.0.0.1:{free_port()}")
    assert [one._endings is not None for one in started] == [False, True]
    monkeypatch.setattr(otel, "meter_provider", MeterProvider)
    assert exports_metrics(None)


async def test_coordinator_of_a_supervisor_counts_endings_after_it_was_started_again(here):
    embedded = EmbeddedCoordinator(Settings(here.url, here.namespace.name), SystemClock(), exports_metrics=True)
    assert embedded._make()._endings is not None
    async with embedded.running():

        async def is_counted() -> Any:
            await here.cancel(await here.enqueue("crawl"))
            return (await embedded.metrics()).values.get("runs_ended", {}).get(("crawl", "cancelled"))

        await eventually(is_counted, "an ending is counted")
