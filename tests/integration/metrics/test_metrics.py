"""Metrics of real workers and coordinators, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from coordinator import AsyncClient
from coordinator.clock import SystemClock
from coordinator.config import Settings
from coordinator.errors import BadOption
from coordinator.metrics import namespace_gauges, otel
from coordinator.metrics.catalog import CATALOG, MOST_LIMITED, MOST_QUEUES, MOST_RATES, OTHER
from coordinator.metrics.namespace_gauges import read_gauges
from coordinator.metrics.samples import Samples
from coordinator.model.policies.rates import RateLimit
from coordinator.model.run_id import partition_for
from coordinator.services import otel_gauges
from coordinator.services.daemon import Coordinator
from coordinator.services.endpoints.metrics import serve_metrics
from coordinator.services.otel_gauges import report_gauges
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.views.namespace_view import GroupView
from tests.integration.worker_harness import Bench, bench, performing
from tests.servers import Server, free_port
from tests.waiting import eventually
from workers import AsyncRun, Registry, Retry
from workers.metrics.worker_metrics import WorkerMetrics
from workers.process.worker import Worker


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


def measured(here: Bench, registry: Registry[Any], **options: Any) -> tuple[Worker, asyncio.Task[int], WorkerMetrics]:
    """Start a worker that measures. Its task has not run yet when the metrics are set."""
    worker, task = here.worker(registry, **options)
    worker.metrics = WorkerMetrics(list(registry.handlers))
    return worker, task, worker.metrics


def counted(metrics: WorkerMetrics, name: str) -> dict[tuple[str, ...], float]:
    return metrics.cells.read().values.get(name, {})


def distribution(metrics: WorkerMetrics, name: str, *labels: str) -> tuple[float, float]:
    """Return the count and the sum of a histogram."""
    found = metrics.cells.read().distributions.get(name, {}).get(labels)
    return (sum(found.counts), found.total) if found else (0, 0.0)


async def test_outcomes_saves_and_round_trips_are_counted(here):
    runs = Registry()

    @runs.handler(throttle=0)
    async def saves(run: AsyncRun) -> None:
        for turn in range(5):
            run.state["turn"] = "x" * 100 + str(turn)
            await run.flush()

    @runs.handler(throttle=3600)
    async def throttled(run: AsyncRun) -> None:
        async for _ in run.loop(limit=10):
            await asyncio.sleep(0)  # the work of a turn

    @runs.handler(retry=Retry(limit=1, wait=3600))
    async def fails(run: AsyncRun) -> None:
        raise ValueError("no")

    worker, task, metrics = measured(here, runs, lease=1.0)
    for kind, status in (("saves", "completed"), ("throttled", "completed"), ("fails", "delayed")):
        await here.until(await here.enqueue(kind), status)
    await eventually(lambda: distribution(metrics, "runs_server_round_trip_seconds")[0] >= 2, "two heartbeats")
    await here.end(worker, task)
    assert counted(metrics, "runs_attempts") == {
        ("saves", "completed"): 1, ("throttled", "completed"): 1, ("fails", "retried"): 1,
    }  # fmt: skip
    assert distribution(metrics, "runs_save_seconds", "saves")[0] == 5
    assert counted(metrics, "runs_saved_bytes")["saves",] > 500
    assert 7 <= counted(metrics, "runs_saves_throttled")["throttled",] <= 9
    assert ("saves",) not in counted(metrics, "runs_saves_throttled")
    for name in ("runs_queued_seconds", "runs_pickup_seconds", "runs_attempt_seconds"):
        assert distribution(metrics, name, "saves")[0] == 1
    assert counted(metrics, "runs_claims")["runs",] == 3


async def test_loss_of_a_worker_is_measured_by_the_next_one(here):
    runs, go = Registry(), asyncio.Event()

    @runs.handler(throttle=0)
    async def work(run: AsyncRun) -> int:
        if run.attempt == 1:
            run.state["saved"] = True
            await run.flush()
            await go.wait()
        return run.attempt

    first, task, metrics = measured(here, runs)
    id = await here.enqueue("work")
    await eventually(lambda: here.state(id) is not None, "a checkpoint")
    await asyncio.sleep(0.05)  # work that is lost with the process
    await here.abandon(first)
    second, other = here.worker(runs)  # or the first worker takes the run again, when it has joined again
    second.metrics = metrics
    await here.until(id, "completed")
    await eventually(lambda: distribution(metrics, "runs_resume_seconds", "work")[0] == 1, "the resumption is measured")
    go.set()
    await here.end(first, task)
    await here.end(second, other)
    view = await here.view(id)
    (lost,) = view.story
    assert view.started is not None
    assert lost.saved is not None
    assert distribution(metrics, "runs_resume_seconds", "work")[1] == pytest.approx(
        (view.started - lost.ended).total_seconds(), abs=0.002
    )
    assert counted(metrics, "runs_redone_seconds")["work",] == pytest.approx(
        (lost.ended - lost.saved).total_seconds(), abs=0.002
    )
    assert counted(metrics, "runs_redone_seconds")["work",] >= 0.04
    assert counted(metrics, "runs_attempts") == {("work", "lost"): 1, ("work", "completed"): 1}
    assert ("work",) not in counted(metrics, "runs_strikes")  # its checkpoint was progress


async def test_refused_writes_of_an_old_owner_are_counted(here):
    runs = Registry()

    @runs.handler(throttle=0)
    async def work(run: AsyncRun) -> None:
        here.admin.hset(here.namespace.keys_of(run.id).run(run.id), "token", "1-1-other")
        run.state["late"] = True
        await run.flush()

    worker, task, metrics = measured(here, runs)
    await here.enqueue("work")
    await eventually(lambda: counted(metrics, "runs_attempts") == {("work", "lost"): 1}, "the attempt is lost")
    await here.end(worker, task)
    assert counted(metrics, "runs_fenced_writes") == {("work",): 1}


async def test_measured_save_carries_no_events_beside_an_older_worker(here):
    """A worker of a version that does not know outputs would leave them behind for ever."""
    runs, keys = Registry(), here.namespace.keys(0)

    @runs.handler(throttle=0)
    async def work(run: AsyncRun) -> bool:
        run.emit("token")
        run.state["saved"] = True
        await run.flush()
        return bool(here.admin.exists(keys.output(run.id)))

    old = worker_plans.WorkerRecord("w-old", 3_600_000, "host", 7, "", "fleet", "-", 1, (), knows=())
    assert await here.do(worker_plans.join(keys, here.namespace.birth, old)) == "ok"
    worker, task, metrics = measured(here, runs)
    id = await here.enqueue("work")
    await eventually(lambda: distribution(metrics, "runs_save_seconds", "work")[0] > 0, "a save")
    await here.do(worker_plans.leave(keys, "w-old"))
    await here.until(id, "completed")
    await here.end(worker, task)
    assert here.result(id) is False


async def test_loss_by_an_expired_lease_counts_from_the_last_heartbeat(here):
    runs, go = Registry(), asyncio.Event()

    @runs.handler
    async def work(run: AsyncRun) -> int:
        if run.attempt == 1:
            await go.wait()
        return run.attempt

    first, task, metrics = measured(here, runs, lease=10.0)
    id = await here.enqueue("work")
    await performing(first)
    keys, lease = here.namespace.keys(0), first._membership.leases[0]
    first._heartbeat.stop()
    seconds, micro = here.admin.time()
    seen = seconds + micro / 1e6 - 10.1  # as if the last heartbeat had been sent before a lease and a bit
    here.admin.zadd(keys.workers(), {lease.worker: round((seen + 10.0) * 1000)})
    await here.do(coordinator_plans.abandon(keys, lease.worker))
    second, other = here.worker(runs)
    second.metrics = metrics
    await here.until(id, "completed")
    await eventually(lambda: distribution(metrics, "runs_resume_seconds", "work")[0] == 1, "the resumption is measured")
    go.set()
    first._heartbeat.stop = lambda: None  # type: ignore[method-assign]
    await here.end(first, task)
    await here.end(second, other)
    assert distribution(metrics, "runs_resume_seconds", "work")[1] >= 10
    assert counted(metrics, "runs_strikes") == {("work",): 1}


async def test_work_since_the_last_checkpoint_is_at_risk(here):
    runs, go, saved = Registry(), asyncio.Event(), asyncio.Event()

    @runs.handler(throttle=0)
    async def work(run: AsyncRun) -> None:
        await saved.wait()
        run.state["saved"] = True
        await run.flush()
        await go.wait()

    worker, task, metrics = measured(here, runs)
    ids = [await here.enqueue("work") for _ in range(3)]
    await performing(worker, 3)
    await asyncio.sleep(0.2)  # work that would be lost now
    worker.refresh_gauges()
    gauges = metrics.cells.read().values
    assert gauges["runs_work_at_risk_seconds"][()] >= 0.5
    assert (gauges["runs_slots"][()], gauges["runs_slots_busy"][()]) == (10, 3)
    assert gauges["runs_memory_bytes"][()] > 1_000_000
    before = gauges["runs_work_at_risk_seconds"][()]
    saved.set()
    await eventually(lambda: all(here.state(id) for id in ids), "checkpoints")
    await eventually(lambda: _at_risk(worker, metrics) < before, "less work is at risk")
    go.set()
    await here.end(worker, task)
    assert _at_risk(worker, metrics) == 0


def _at_risk(worker: Worker, metrics: WorkerMetrics) -> float:
    worker.refresh_gauges()
    return metrics.cells.read().values["runs_work_at_risk_seconds"][()]


# ---- the namespace


async def test_gauges_of_a_namespace(valkey_server, namespace):
    async with bench(valkey_server.url, namespace, partitions=2) as here, AsyncClient(here.url, namespace) as client:
        await client.enqueue_many([("work", {"n": n}) for n in range(30)])
        await client.enqueue("work", queue="big")
        await client.enqueue("work", delay=3600)
        await client.enqueue("urgent", priority=50)
        await client.schedule("often", "every 1h", "work")
        await client.schedule("paused", "every 1h", "work")
        await client.pause_schedule("paused")
        for keys in here.namespace.everywhere():
            if here.admin.zscore(keys.schedules(), "often") is not None:
                here.admin.zadd(keys.schedules(), {"often": 1000})
        found = (await here.do(read_gauges(here.namespace))).values
    assert found["runs_queue_depth"] == {("default", "work"): 30, ("big", "work"): 1, ("default", "urgent"): 1}
    assert found["runs_in_status"]["queued",] == 32
    assert found["runs_in_status"]["delayed",] == 1
    assert found["runs_schedules"] == {(): 1}
    assert found["runs_schedules_late"] == {(): 1}
    assert found["runs_server_up"] == {(): 1}
    assert found["runs_delayed_overdue_seconds"] == {(): 0}


async def test_groups_are_counted_by_kind_and_are_never_a_label(here):
    async with AsyncClient(here.url, here.namespace.name) as client:
        await client.set_limit("report", at_once=2)
        await client.set_limit("crawl", at_once=0)
        for n in range(9):
            await client.enqueue("report", group=f"g{n % 2}")
        await client.enqueue("crawl", group="secret")
        await client.enqueue("report", group="alone")
    found = (await here.do(read_gauges(here.namespace))).values
    assert found["runs_group_waiting"] == {("report",): 5, ("crawl",): 1}
    assert found["runs_group_admitted"] == {("report",): 4, ("crawl",): 0}
    assert found["runs_groups_full"] == {("report",): 2, ("crawl",): 1}
    assert not any(metric.name.startswith("runs_group") and metric.labels != ("kind",) for metric in CATALOG.values())


async def test_groups_that_wait_for_their_rate_of_starts_and_the_longest_wait_are_read(here):
    async with AsyncClient(here.url, here.namespace.name) as client:
        await client.set_limit("report", at_once=5, rate="1/h", burst=1)
        await client.set_limit("crawl", at_once=1)
        for kind in ("report", "crawl"):
            for _ in range(3):
                await client.enqueue(kind, group="acme")
        line = next(
            k.line("crawl:acme") for k in here.namespace.everywhere() if here.admin.exists(k.line("crawl:acme"))
        )
        (first, score), *_ = here.admin.zrange(line, 0, 0, withscores=True)
        here.admin.zadd(line, {first: score - 100_000})
    found = (await here.do(read_gauges(here.namespace))).values
    assert found["runs_groups_paced"] == {("report",): 1, ("crawl",): 0}
    assert found["runs_groups_full"] == {("report",): 0, ("crawl",): 1}
    assert found["runs_group_oldest_seconds"]["crawl",] == pytest.approx(100, abs=30)
    assert found["runs_group_oldest_seconds"]["report",] < 30


async def test_calls_to_the_outside_are_counted_by_the_name_of_their_limit(here):
    async with AsyncClient(here.url, here.namespace.name) as client:
        await client.set_rate("search", "10/s", burst=2)
        await client.set_rate("model", at_once=1)
    for name, key, members in (("search", "turns", 2), ("model", "holders", 1)):
        keys = here.namespace.keys(partition_for(name, here.namespace.partitions))
        here.admin.zadd(getattr(keys, key)(name), {f"w-{n}": n for n in range(members)})
        here.admin.hset(keys.bucket(name), mapping={"level": 2, "at": (here.admin.time()[0] + 60) * 1000, "ticket": 2})
    found = (await here.do(read_gauges(here.namespace))).values
    assert found["runs_rate_calls"] == {("search",): 0, ("model",): 1}
    assert found["runs_rate_waiting"] == {("search",): 2, ("model",): 0}
    assert found["runs_rate_wait_seconds"] == {("search",): pytest.approx(0.3), ("model",): 0}


def test_rates_beyond_the_limit_are_counted_together() -> None:
    samples = Samples()
    rates = [RateLimit(f"r{n}", "1/s", 1, None, held=1, waiting=n, wait=float(n)) for n in range(MOST_RATES + 30)]
    namespace_gauges._add_rates(samples, rates)
    calls = samples.values["runs_rate_calls"]
    assert len(calls) == MOST_RATES + 1
    assert calls[OTHER,] == 30
    assert samples.values["runs_rate_wait_seconds"][OTHER,] == 29


async def test_wait_of_a_call_for_its_limit_is_measured(here):
    runs: Registry[Any] = Registry()

    @runs.handler
    async def call(run: AsyncRun) -> None:
        async with run.limit("free"):
            pass
        async with run.limit("closed"):
            pass

    async with AsyncClient(here.url, here.namespace.name) as client:
        await client.set_rate("free", "1000/s")
        await client.set_rate("closed", at_once=0)
        await client.enqueue("call")
        *_, metrics = measured(here, runs)
        closed = here.namespace.keys(0).turns("closed")
        await eventually(lambda: here.admin.zcard(closed) == 1, "the call waits")
        await client.set_rate("closed", at_once=1)
        await eventually(
            lambda: distribution(metrics, "runs_limit_wait_seconds", "call")[0] == 1, "the wait was measured"
        )
    assert distribution(metrics, "runs_limit_wait_seconds", "call")[1] > 0


def test_kinds_with_waiting_groups_beyond_the_limit_are_counted_together() -> None:
    samples = Samples()
    groups = [GroupView(f"kind{n}", "g", 2 if n < MOST_LIMITED else 1, 1, 1) for n in range(MOST_LIMITED + 30)]
    namespace_gauges._add_groups(samples, groups)
    waiting = samples.values["runs_group_waiting"]
    assert len(waiting) == MOST_LIMITED + 1
    assert waiting[OTHER,] == 30


async def test_oldest_run_of_a_low_priority_is_found(here):
    keys, now = here.namespace.keys(0), here.admin.time()[0] * 1000
    here.admin.sadd(keys.routes(), "default:work@0")
    step = 2**43
    here.admin.zadd(
        keys.ready("default:work@0"),
        {"a": now - 9 * step, "b": now - 10_000, "c": now - 5_000, "d": now - 500_000 + 7 * step, "e": now + 7 * step},
    )
    found = (await here.do(read_gauges(here.namespace))).values
    assert found["runs_queue_oldest_seconds"]["default", "work"] == pytest.approx(500, abs=30)


async def test_queues_beyond_the_limit_are_counted_together(here):
    keys = here.namespace.keys(0)
    for number in range(MOST_QUEUES + 50):
        route = f"q{number}:work@0"
        here.admin.sadd(keys.routes(), route)
        here.admin.zadd(keys.ready(route), {f"id{n}": 1 for n in range(1 if number < 50 else 2)})
    found = (await here.do(read_gauges(here.namespace))).values["runs_queue_depth"]
    assert len(found) == MOST_QUEUES + 1
    assert found[OTHER, OTHER] == 50
    assert sum(found.values()) == 50 + 2 * MOST_QUEUES


async def test_scrape_asks_the_same_number_of_questions_for_many_runs(here):
    keys = here.namespace.keys(0)
    here.admin.sadd(keys.routes(), "default:work@0")

    async def calls() -> int:
        def count() -> int:
            return sum(int(one["calls"]) for one in here.admin.info("commandstats").values())

        before = count()
        await here.do(read_gauges(here.namespace))
        return count() - before

    few = await calls()
    now = here.admin.time()[0] * 1000
    for start in range(0, 100_000, 10_000):
        here.admin.zadd(keys.ready("default:work@0"), {f"id{n}": now + n for n in range(start, start + 10_000)})
    assert await calls() == few
    found = (await here.do(read_gauges(here.namespace))).values
    assert found["runs_queue_depth"]["default", "work"] == 100_000


# ---- the endpoint


async def _get(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


async def test_coordinator_serves_what_prometheus_can_parse(here):
    settings, port = Settings(here.url, here.namespace.name), free_port()
    coordinator = Coordinator(settings)
    running = asyncio.create_task(coordinator.run())
    await here.enqueue("work")
    async with AsyncClient(here.url, here.namespace.name) as client:
        await client.set_rate("search", "10/s")
        await client.set_limit("limited", at_once=0)
        await client.enqueue("limited", group="acme")
    async with serve_metrics(f"127.0.0.1:{port}", coordinator.metrics, SystemClock()):
        await eventually(lambda: coordinator._open is not None, "the coordinator runs")
        status, body = await _get(port, "/metrics")
        missing, _ = await _get(port, "/other")
    coordinator.stop()
    await running
    families = {family.name: family for family in text_string_to_metric_families(body)}
    assert (status, missing) == (200, 404)
    assert set(families) <= set(CATALOG)
    assert {name for name, one in CATALOG.items() if one.source == "coordinator"} <= set(families)
    assert {sample.value for sample in families["runs_server_up"].samples} == {1}
    assert {sample.value for sample in families["runs_queue_depth"].samples} == {1}


async def test_opentelemetry_sdk_gets_the_gauges_of_a_coordinator(here, monkeypatch, caplog):
    reader = InMemoryMetricReader()
    monkeypatch.setattr(otel, "meter_provider", lambda: MeterProvider([reader]))
    coordinator, broken = Coordinator(Settings(here.url, here.namespace.name), exports_metrics=True), [True]
    running = asyncio.create_task(coordinator.run())
    await here.enqueue("work")

    async def gather():
        if broken:
            broken.clear()
            raise ValueError("a damaged field")
        return await coordinator.metrics()

    def reported() -> Any:
        data = reader.get_metrics_data()
        scopes = data.resource_metrics[0].scope_metrics if data else []
        return {
            one.name: {tuple((point.attributes or {}).values()): point.value for point in one.data.data_points}  # type: ignore[union-attr]
            for scope in scopes
            for one in scope.metrics
        }

    await eventually(lambda: not coordinator.health().not_ready, "the coordinator is ready")
    await here.cancel(await here.enqueue("crawl"))
    monkeypatch.setattr(otel_gauges, "READ_SECONDS", 0.01)
    async with report_gauges(gather, SystemClock()):
        await eventually(lambda: reported().get("runs_queue_depth") == {("default", "work"): 1}, "the depth")
        await eventually(lambda: reported().get("runs_ended") == {("crawl", "cancelled"): 1}, "the cancelled run")
        found = reported()
    coordinator.stop()
    await running
    assert found["runs_server_up"] == {(): 1}
    assert found["runs_recovered"]["queued", "coordinator"] == 0
    assert "runs_slots" not in found  # a metric of worker processes
    assert "a damaged field" in caplog.text
    # A coordinator that has stopped has no present values. Its counters are exported a last time when the process exits.
    assert set(reported()) == {"runs_ended", "runs_recovered"}


async def test_process_without_an_sdk_reads_no_gauges(here):
    async def gather():
        raise AssertionError("nothing asks for them")

    async with report_gauges(gather, SystemClock()):
        assert len(asyncio.all_tasks()) == 1


async def test_coordinator_without_a_server_says_so(here):
    samples = await Coordinator(Settings(here.url, here.namespace.name)).metrics()
    assert samples.values["runs_server_up"] == {(): 0}


async def test_scrapes_at_the_same_time_share_one_answer():
    asked, port = list[int](), free_port()

    async def gather() -> Samples:
        asked.append(1)
        await asyncio.sleep(0.05)  # an answer that takes a while
        return Samples()

    async with serve_metrics(f"127.0.0.1:{port}", gather, SystemClock()):
        found = await asyncio.gather(*(_get(port, "/metrics") for _ in range(20)))
    assert {status for status, _ in found} == {200}
    assert len(asked) == 1


async def test_port_in_use_is_named():
    port = free_port()

    async def gather() -> Samples:
        return Samples()

    async with serve_metrics(f"127.0.0.1:{port}", gather, SystemClock()):
        with pytest.raises(BadOption, match=f"--metrics 127.0.0.1:{port}: the port is in use"):
            async with serve_metrics(f"127.0.0.1:{port}", gather, SystemClock()):
                pass
