"""Traces of runs: enqueue, kills, a release, a retry, a child, phases, waits and saves. The spans are read in memory."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from coordinator import AsyncClient
from coordinator.services.ending_reporter import EndingReporter
from coordinator.services.service_loop import Partition
from coordinator.tracing import Tracing
from tests.integration.worker_harness import Bench, bench, performing
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry, Retry, Run
from workers.handlers.operations.children import Step


class Traced:
    """A provider whose spans are kept in memory."""

    def __init__(self, sampler: Any = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.middleware = Tracing(self.provider)

    def named(self, start: str) -> list[ReadableSpan]:
        """Return the finished spans whose name begins with a text, in the order of their start."""
        found = [span for span in self.exporter.get_finished_spans() if span.name.startswith(start)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def registry(self) -> Registry[None]:
        return Registry(middleware=[self.middleware])


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


def context_of(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def links(span: ReadableSpan) -> dict[str, int]:
    """Return the ids of the linked spans, by the kind of link."""
    return {str((link.attributes or {})["runs.link"]): link.context.span_id for link in span.links}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def check_tree(traced: Traced, attempts: int) -> list[ReadableSpan]:
    """Check that there is one root with linked attempts below it. Return the attempts."""
    (root,) = traced.named("run ")
    found = traced.named("process ")
    assert len(found) == attempts
    assert root.parent is None
    for span in found:
        assert span.parent is not None
        assert span.parent.span_id == context_of(root).span_id
        assert context_of(span).trace_id == context_of(root).trace_id
    assert [attributes(span)["runs.attempt"] for span in found] == list(range(1, attempts + 1))
    for before, after in itertools.pairwise(found):
        assert links(after)["previous attempt"] == context_of(before).span_id
    assert "previous attempt" not in links(found[0])
    return found


async def test_enqueue_and_attempt_are_linked(here):
    traced = Traced()
    runs = traced.registry()

    @runs.handler
    async def work(run: AsyncRun, n: int) -> str:
        trace.get_current_span().set_attribute("gen_ai.usage.output_tokens", 7)
        return str(baggage.get_baggage("tenant"))

    worker, task = here.worker(runs)
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    tracer = traced.provider.get_tracer("test")
    async with AsyncClient(here.url, here.namespace.name, middleware=[traced.middleware]) as client:
        with tracer.start_as_current_span("request") as request:
            handle = await client.enqueue("work", {"n": 1}, meta={"gen_ai.agent.name": "planner", "other": 1})
        assert await handle.result() == "acme"
    context.detach(token)
    await here.end(worker, task)
    (producer,) = traced.named("enqueue default:work")
    assert producer.kind is SpanKind.PRODUCER
    assert producer.parent is not None
    assert producer.parent.span_id == request.get_span_context().span_id
    (attempt,) = check_tree(traced, 1)
    (root,) = traced.named("run default:work")
    assert links(attempt) == {"producer": context_of(producer).span_id}
    assert context_of(root).trace_id != context_of(producer).trace_id
    assert attempt.kind is SpanKind.CONSUMER
    found = attributes(attempt)
    assert {name: found[name] for name in found if name.startswith(("messaging", "gen_ai"))} == {
        "messaging.system": "run-coordinator",
        "messaging.destination.name": "default:work",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": handle.id,
        "messaging.destination.partition.id": "00",
        "messaging.client.id": found["messaging.client.id"],
        "gen_ai.agent.name": "planner",
        "gen_ai.usage.output_tokens": 7,
    }
    assert found["runs.outcome"] == attributes(root)["runs.outcome"] == "completed"
    assert attempt.status.status_code is StatusCode.UNSET


def reached(here: Bench, id: str, number: int) -> bool:
    """Return True if the attempt of this number has saved a checkpoint."""
    return bool((here.state(id) or {}).get("attempt") == number)


async def test_run_that_lost_its_worker_three_times_has_one_root_and_four_attempts(here):
    """Abandon the worker three times, and never let the lost attempts report: a killed process reports nothing."""
    traced = Traced()
    go = asyncio.Event()

    def registry(traced: Traced) -> Registry[None]:
        runs = traced.registry()

        @runs.handler(throttle=0)
        async def work(run: AsyncRun) -> int:
            run.state["attempt"] = run.attempt  # progress, so that the run gets no strike
            await run.flush()
            if run.attempt <= 3:
                await go.wait()
            return run.attempt

        return runs

    id = await here.enqueue("work")
    lost = []
    for number in (1, 2, 3):
        silent = Traced()  # the spans of this process are never exported
        worker, task = here.worker(registry(silent), concurrency=1)
        await eventually(partial(reached, here, id, number), f"attempt {number}")
        lost.append((worker, task, silent))
        worker._intake.claimers[0].draining = True  # so that the lost worker does not take the run again
        await here.abandon(worker)
    last, task = here.worker(registry(traced))
    await here.until(id, "completed")
    go.set()
    for one, running, _ in lost:
        await here.end(one, running)
    await here.end(last, task)
    attempts = check_tree(traced, 4)
    assert [attributes(span)["runs.outcome"] for span in attempts] == ["lost", "lost", "lost", "completed"]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR] * 3 + [StatusCode.UNSET]
    story = (await here.view(id)).story
    assert [attributes(span)["messaging.client.id"] for span in attempts[:3]] == [entry.worker for entry in story]
    assert [span.end_time for span in attempts[:3]] == [int(entry.ended.timestamp() * 1e9) for entry in story]
    for _, _, silent in lost:  # a worker that is alive, but lost the run, reports neither its attempt nor a root
        assert silent.named("process ") == silent.named("run ") == []


async def test_release_and_retry_are_attempts_of_one_trace(here):
    traced = Traced()
    runs = traced.registry()

    @runs.handler(retry=Retry(limit=1, wait=3600))
    async def work(run: AsyncRun) -> int:
        if run.attempt == 1:
            async for _ in run.loop(limit=1_000_000):
                await asyncio.sleep(0.01)  # the work of an attempt
        if run.attempt == 2:
            raise ValueError("once")
        return run.attempt

    worker, task = here.worker(runs)
    id = await here.enqueue("work")
    await performing(worker)
    await here.end(worker, task)  # releases the run
    worker, task = here.worker(runs)
    await here.until(id, "delayed")
    await here.make_due(id)
    await here.until(id, "completed")
    await here.end(worker, task)
    attempts = check_tree(traced, 3)
    assert [attributes(span)["runs.outcome"] for span in attempts] == ["released", "retried", "completed"]
    assert [attributes(span)["runs.cause"] for span in attempts] == ["", "release", "retry"]
    assert attempts[0].status.status_code is StatusCode.UNSET
    assert attempts[1].status.status_code is StatusCode.ERROR
    assert attributes(attempts[1])["error.type"] == "ValueError"
    assert [event.name for event in attempts[1].events] == ["exception"]


async def test_child_is_a_trace_of_its_own_that_is_linked_to_its_parent(here):
    traced = Traced()
    runs = traced.registry()

    @runs.handler
    def leaf(run: Run) -> int:
        return run.phase("count", lambda: 1)

    @runs.handler
    async def parent(run: AsyncRun) -> int:
        return sum(await run.gather("leaves", [leaf.inputs(), leaf.inputs()]))

    worker, task = here.worker(runs)
    id = await here.enqueue("parent")
    await here.until(id, "completed")
    await here.end(worker, task)
    (above,) = traced.named("process default:parent")
    leaves = traced.named("process default:leaf")
    producers = {context_of(span).span_id: span for span in traced.named("enqueue default:leaf")}
    assert len(leaves) == 2
    for span in leaves:
        producer = producers.pop(links(span)["producer"])
        assert producer.parent is not None
        assert producer.parent.span_id == context_of(above).span_id
        assert context_of(span).trace_id != context_of(above).trace_id
    (waiting,) = traced.named("gather leaves")
    assert waiting.parent is not None
    assert waiting.parent.span_id == context_of(above).span_id
    for phase in traced.named("phase count"):
        assert phase.parent is not None
        assert phase.parent.span_id in {context_of(span).span_id for span in leaves}


async def test_phases_waits_and_slow_saves_are_spans_below_the_attempt(here, monkeypatch):
    traced = Traced()
    runs = traced.registry()

    @runs.handler(throttle=0)
    async def work(run: AsyncRun) -> None:
        async def inner() -> int:
            with traced.provider.get_tracer("user").start_as_current_span("model call"):
                return 1

        await run.phase("think", inner)
        with pytest.raises(ValueError, match="no"):
            await run.phase("fail", fail)
        await run.sleep(0.01)
        await run.receive("answer", timeout=0.01, default=None)

    def fail() -> None:
        raise ValueError("no")

    monkeypatch.setattr("coordinator.tracing.middleware.LONG_SAVE", -1.0)  # every save counts as slow
    worker, task = here.worker(runs)
    await here.until(await here.enqueue("work"), "completed")
    await here.end(worker, task)
    (attempt,) = check_tree(traced, 1)
    inside = ("phase think", "phase fail", "sleep", "receive answer")
    for name in inside:
        (span,) = traced.named(name)
        assert span.parent is not None, name
        assert span.parent.span_id == context_of(attempt).span_id
    (call,) = traced.named("model call")
    assert call.parent is not None
    assert call.parent.span_id == context_of(traced.named("phase think")[0]).span_id
    assert traced.named("phase fail")[0].status.status_code is StatusCode.ERROR
    assert traced.named("sleep")[0].status.status_code is StatusCode.UNSET
    saves = traced.named("save")
    assert saves
    assert {context_of(span).trace_id for span in saves} == {context_of(attempt).trace_id}


@pytest.mark.parametrize("plain", [False, True])
async def test_waits_between_children_are_spans_below_the_attempt(here, monkeypatch, plain):
    traced = Traced()
    runs = traced.registry()
    waited, wait = asyncio.Event(), Step._wait

    async def tell(step: Step, need: int) -> None:
        waited.set()
        await wait(step, need)

    monkeypatch.setattr(Step, "_wait", tell)

    @runs.handler
    async def leaf(run: AsyncRun) -> int:
        await waited.wait()
        return 1

    if plain:

        @runs.handler
        def root(run: Run) -> int:
            return sum(done.result for done in run.as_completed("leaves", [leaf.inputs(), leaf.inputs()]))
    else:

        @runs.handler
        async def root(run: AsyncRun) -> int:
            return sum([done.result async for done in run.as_completed("leaves", [leaf.inputs(), leaf.inputs()])])

    worker, task = here.worker(runs)
    await here.until(await here.enqueue("root"), "completed")
    await here.end(worker, task)
    waits = traced.named("as_completed leaves")
    assert waits
    attempts = {context_of(span).span_id for span in traced.named("process default:root")}
    for span in waits:
        assert span.parent is not None
        assert span.parent.span_id in attempts


async def test_plain_handler_writes_to_the_span_of_its_attempt(here):
    traced = Traced()
    runs = traced.registry()

    @runs.handler
    def work(run: Run) -> None:
        run.phase("think", int)
        trace.get_current_span().record_exception(ValueError("handled"))

    worker, task = here.worker(runs)
    await here.until(await here.enqueue("work"), "completed")
    await here.end(worker, task)
    (attempt,) = check_tree(traced, 1)
    (phase,) = traced.named("phase ")
    assert phase.parent == context_of(attempt)
    assert attempt.start_time is not None
    assert phase.start_time is not None
    assert attempt.start_time <= phase.start_time
    assert [event.name for event in attempt.events] == ["exception"]
    assert attempt.status.status_code is StatusCode.UNSET


async def test_suspended_run_continues_in_the_same_trace(here):
    traced = Traced()
    runs = traced.registry()

    @runs.handler(linger=0)
    async def work(run: AsyncRun) -> str:
        return str((await run.receive("go")).payload)

    worker, task = here.worker(runs)
    id = await here.enqueue("work")
    await here.until(id, "waiting")
    async with AsyncClient(here.url, here.namespace.name) as client:
        await client.handle(id).send("go", "now")
    await here.until(id, "completed")
    await here.end(worker, task)
    attempts = check_tree(traced, 2)
    assert [attributes(span)["runs.outcome"] for span in attempts] == ["waiting", "completed"]
    assert traced.named("receive go")[0].status.status_code is StatusCode.UNSET


async def test_run_that_cannot_be_started_is_reported(here):
    traced = Traced()
    runs = traced.registry()

    @runs.handler
    async def needs(run: AsyncRun, what: str) -> None: ...

    worker, task = here.worker(runs)
    await here.until(await here.enqueue("needs"), "delayed")
    await here.end(worker, task)
    (attempt,) = traced.named("process ")
    assert attributes(attempt)["runs.outcome"] == "rejected"
    assert traced.named("run ") == []


async def test_sampled_runs_are_whole_and_others_report_nothing(here):
    ratio = 0.3
    traced = Traced(ParentBased(TraceIdRatioBased(ratio)))
    runs = traced.registry()

    @runs.handler
    async def work(run: AsyncRun) -> None:
        await run.phase("think", int)

    worker, task = here.worker(runs)
    ids = [await here.enqueue("work") for _ in range(60)]
    for id in ids:
        await here.until(id, "completed")
    await here.end(worker, task)
    chosen = {id for id in ids if zlib.crc32(id.encode()) < ratio * 2**32}
    assert 0 < len(chosen) < 60
    for name in ("run ", "process "):
        assert {attributes(span)["messaging.message.id"] for span in traced.named(name)} == chosen
    assert len(traced.named("phase ")) == len(chosen)


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)], ids=["alone", "below a parent"])
async def test_sampler_that_is_off_reports_no_attempts(here, sampler):
    traced = Traced(sampler)
    runs = traced.registry()

    @runs.handler
    async def work(run: AsyncRun) -> None:
        await run.phase("think", int)

    worker, task = here.worker(runs)
    await here.until(await here.enqueue("work"), "completed")
    await here.end(worker, task)
    assert traced.named("") == []


LATE_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

from coordinator.tracing import Tracing

tracing = Tracing()
assert not any(tracing.selects(f"run-{i}") for i in range(100)), "selected without an SDK"
trace.set_tracer_provider(TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.3))))
for _ in range(2):  # the second time with the limit that was kept
    print(sum(tracing.selects(f"run-{i}") for i in range(1000)))
print(sum(Tracing(TracerProvider(sampler=ALWAYS_ON)).selects(f"run-{i}") for i in range(1000)))
"""


def test_provider_that_is_set_after_the_first_run_decides_about_later_runs():
    # A process sets its global provider once, so the program is a process of its own.
    done = subprocess.run([sys.executable, "-c", LATE_PROVIDER], capture_output=True, text=True, timeout=60, check=True)
    chosen = sum(zlib.crc32(f"run-{i}".encode()) < 0.3 * 2**32 for i in range(1000))
    assert 0 < chosen < 1000
    assert [int(line) for line in done.stdout.split()] == [chosen, chosen, 1000]


async def test_program_without_an_sdk_reports_nothing(here):
    runs = Registry(middleware=[Tracing(trace.NoOpTracerProvider())])

    @runs.handler
    async def work(run: AsyncRun) -> None:
        assert not trace.get_current_span().get_span_context().is_valid

    worker, task = here.worker(runs)
    await here.until(await here.enqueue("work"), "completed")
    await here.end(worker, task)


# ---- runs that end while no worker executes them


def reporter(here: Bench, traced: Traced) -> EndingReporter:
    return EndingReporter(Partition(here.wire, here.namespace.keys(0)), traced.middleware, None)


async def test_run_that_is_cancelled_before_its_first_attempt_has_a_root(here):
    traced = Traced()
    service = reporter(here, traced)
    await service.tick()  # from now on such endings are noted
    async with AsyncClient(here.url, here.namespace.name, middleware=[traced.middleware]) as client:
        handle = await client.enqueue("work", meta={"gen_ai.agent.name": "planner"})
        await handle.cancel()
    report = await service.tick()
    assert report.traced == 1
    (root,) = traced.named("run default:work")
    (producer,) = traced.named("enqueue default:work")
    found, view = attributes(root), await here.view(handle.id)
    assert links(root) == {"producer": context_of(producer).span_id}
    assert (found["runs.outcome"], found["runs.attempts"], found["runs.reason"]) == ("cancelled", 0, view.why)
    assert found["gen_ai.agent.name"] == "planner"
    assert view.ended is not None
    assert root.end_time == int(view.ended.timestamp() * 1e9)
    assert root.status.status_code is StatusCode.UNSET
    assert (await service.tick()).traced == 0
    assert len(traced.named("run ")) == 1


async def test_run_that_is_cancelled_while_it_waits_has_a_root_above_its_attempt(here):
    traced = Traced()
    runs = traced.registry()

    @runs.handler(linger=0)
    async def work(run: AsyncRun) -> None:
        await run.receive("go")

    service = reporter(here, traced)
    await service.tick()
    worker, task = here.worker(runs)
    id = await here.enqueue("work")
    await here.until(id, "waiting")
    await here.cancel(id)
    await here.end(worker, task)
    await service.tick()
    (attempt,) = check_tree(traced, 1)
    assert attributes(attempt)["runs.outcome"] == "waiting"
    assert attributes(traced.named("run ")[0])["runs.outcome"] == "cancelled"


async def test_run_that_dies_with_its_workers_has_a_root_above_its_lost_attempts(here):
    """Abandon the worker until the run is dead, revive the run, and let another worker complete it."""
    traced, silent, go = Traced(), Traced(), asyncio.Event()

    def registry(traced: Traced) -> Registry[None]:
        runs = traced.registry()

        @runs.handler
        async def work(run: AsyncRun) -> None:
            if run.attempt <= 3:
                await go.wait()

        return runs

    service = reporter(here, traced)
    await service.tick()
    id = await here.enqueue("work")
    lost = []
    for number in (1, 2, 3):
        worker, task = here.worker(registry(silent), concurrency=1)
        await eventually(lambda: here.status(id) == "running", f"attempt {number}")
        await performing(worker)
        lost.append((worker, task))
        worker._intake.claimers[0].draining = True
        await here.abandon(worker)
        if number == 2:
            await here.make_due(id)
    assert here.status(id) == "dead"
    await service.tick()
    attempts = check_tree(traced, 3)
    assert [attributes(span)["runs.outcome"] for span in attempts] == ["lost"] * 3
    (root,) = traced.named("run ")
    assert root.status.status_code is StatusCode.ERROR
    assert "3 strikes" in str(attributes(root)["runs.reason"])
    async with AsyncClient(here.url, here.namespace.name) as client:
        await client.handle(id).revive()
    worker, task = here.worker(registry(traced))
    await here.until(id, "completed")
    go.set()
    for one, running in [*lost, (worker, task)]:
        await here.end(one, running)
    assert len(traced.named("process ")) == 4, "the lost attempts of the first life are not reported again"
    roots = traced.named("run ")
    assert [attributes(span)["runs.life"] for span in sorted(roots, key=lambda span: span.end_time or 0)] == [1, 2]
    assert len({context_of(span).trace_id for span in roots}) == 1


async def test_run_that_is_not_sampled_or_is_gone_has_no_root(here):
    traced = Traced(ParentBased(TraceIdRatioBased(0.3)))
    service = reporter(here, traced)
    await service.tick()
    ids = [await here.enqueue("work") for _ in range(40)]
    for id in ids:
        await here.cancel(id)
    chosen = [id for id in ids if zlib.crc32(id.encode()) < 0.3 * 2**32]
    here.admin.delete(here.namespace.keys(0).run(chosen[0]))
    assert (await service.tick()).traced == len(chosen) - 1
    assert [attributes(span)["messaging.message.id"] for span in traced.named("run ")] == chosen[1:]


async def test_run_that_was_revived_before_its_end_is_reported_has_a_root_of_the_ended_life(here):
    traced = Traced()
    service = reporter(here, traced)
    await service.tick()
    async with AsyncClient(here.url, here.namespace.name) as client:
        handle = await client.enqueue("work")
        await handle.cancel()
        await handle.revive()
    await service.tick()
    (root,) = traced.named("run ")
    found = attributes(root)
    assert (found["runs.life"], found["runs.outcome"], found["runs.reason"]) == (1, "cancelled", "")
