"""The spans of attempts are made after their end, in batches, and are the same as spans that are made at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind

from coordinator import AttemptEnding, AttemptInfo
from coordinator.middleware import MiddlewareChain
from coordinator.tracing import Tracing
from coordinator.tracing.late_endings import BATCH
from tests.waiting import eventually


class Names(Sampler):
    """A sampler that the middleware does not know."""

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, kind: SpanKind | None = None, attributes: Any = None,
        links: Sequence[Link] | None = None, trace_state: Any = None,
    ) -> SamplingResult:  # fmt: skip
        return SamplingResult(Decision.RECORD_AND_SAMPLE if name != "save" else Decision.DROP, attributes)

    def get_description(self) -> str:
        return "Names"


class Watching(SpanProcessor):
    """A processor that sees the start of spans, and calls a function then."""

    def __init__(self, seen: Callable[[], None] = lambda: None) -> None:
        self._seen = seen

    def on_start(self, span: Span, parent_context: context.Context | None = None) -> None:
        self._seen()


class Starts(SpanProcessor):
    """A processor that looks at the spans that start."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, span: Span, parent_context: context.Context | None = None) -> None:
        self.names.append(span.name)


class Picky(SpanProcessor):
    """A processor that raises for the spans of one run."""

    def on_end(self, span: ReadableSpan) -> None:
        if (span.attributes or {})["messaging.message.id"] == "run-1-00":
            raise ValueError("a broken processor")


class Traced:
    def __init__(self, sampler: Sampler | None = None, *processors: SpanProcessor, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, **options)
        for one in (*processors, SimpleSpanProcessor(self._exporter)):
            self.provider.add_span_processor(one)
        self.middleware = Tracing(self.provider)
        self.middleware._now = Ticking()
        self.chain = MiddlewareChain([self.middleware])

    def attempt(self, number: int = 0, inside: Callable[[], object] = lambda: None, **fields: Any) -> None:
        """Carry out one attempt at a run."""
        info = attempt_info(number, **fields)
        with self.chain.around(info):
            inside()
        self.chain.on_ending(AttemptEnding(info, "completed", 0.1))

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name.partition(" ")[0]: span for span in self._exporter.get_finished_spans()}


class Ticking:
    """A clock that advances by one second with each call. It shows nanoseconds."""

    def __init__(self) -> None:
        self._seconds = 1000

    def __call__(self) -> int:
        self._seconds += 1
        return self._seconds * 1_000_000_000


def attempt_info(number: int = 0, **fields: Any) -> AttemptInfo:
    given = {"meta": {}, "headers": {}, **fields}
    return AttemptInfo(f"run-{number}-00", "work", "default", 1, 1, "w1", 900.0, 1000.0, "", "", **given)


def write() -> None:
    trace.get_current_span().set_attribute("own", 1)


async def test_spans_are_made_when_there_are_enough_of_them():
    traced = Traced()
    for number in range(BATCH - 1):
        traced.attempt(number)
    assert traced.names == []
    traced.attempt(BATCH)
    assert traced.names == ["process default:work", "run default:work"] * BATCH


async def test_spans_are_made_after_a_short_time():
    traced = Traced()
    for _ in range(2):  # the second time with a timer of its own
        before = len(traced.names)
        traced.attempt()
        assert len(traced.names) == before
        await eventually(lambda now=before: len(traced.names) == now + 2, "the spans")  # type: ignore[misc]


async def test_spans_are_made_when_the_worker_ends():
    traced = Traced()
    traced.attempt()
    traced.middleware.on_worker_end()
    assert traced.names == ["process default:work", "run default:work"]


def test_spans_that_a_loop_has_not_made_before_its_end_are_made_by_the_next_loop():
    traced = Traced()

    async def end_early() -> None:
        traced.attempt()

    async def end_later() -> None:
        traced.attempt()
        await eventually(lambda: len(traced.names) == 4, "the spans")

    asyncio.run(end_early())
    assert traced.names == []
    asyncio.run(end_later())


def test_spans_are_made_at_once_without_an_event_loop():
    traced = Traced()
    traced.attempt()
    assert traced.names == ["process default:work", "run default:work"]


@pytest.mark.parametrize(
    ("sampler", "late"),
    [
        (None, True),
        (ALWAYS_ON, True),
        (TraceIdRatioBased(1.0), True),
        (ParentBased(TraceIdRatioBased(1.0)), True),
        (ParentBasedTraceIdRatio(1.0), True),
        (ParentBased(TraceIdRatioBased(1.0), remote_parent_sampled=Names()), False),
        (ParentBased(Names()), False),
        (Names(), False),
    ],
)
async def test_span_is_made_at_once_if_the_sampler_may_decide_by_anything_but_the_trace_id(
    sampler: Sampler | None, *, late: bool
):
    traced, current = Traced(sampler), []
    traced.attempt(0, lambda: current.append(trace.get_current_span()))
    assert isinstance(current[0], ReadableSpan) != late
    assert traced.names == ([] if late else ["process default:work", "run default:work"])


async def test_processor_that_looks_at_starts_sees_parents_before_their_children():
    starts = Starts()
    traced = Traced(None, starts)
    traced.attempt(0, lambda: traced.provider.get_tracer("program").start_span("inside").end())
    assert starts.names[:2] == ["process default:work", "inside"]


@pytest.mark.parametrize(
    "fields", [{}, {"meta": {"gen_ai.agent.name": "planner", "other": 1}}, {"headers": {"tenant": "acme"}}]
)
@pytest.mark.parametrize("outcome", ["completed", "cancelled", "released", "dead"])
def test_late_spans_are_the_same_as_spans_that_are_made_at_once(fields: dict[str, Any], outcome: str):
    found = []
    for others in (
        Traced(),
        Traced(None, Watching()),
        Traced(Names()),
        Traced(None, span_limits=SpanLimits(16, 16, 16)),
    ):
        info = attempt_info(**fields)
        with others.chain.around(info):
            pass
        others.chain.on_ending(AttemptEnding(info, outcome, 0.1))
        spans = [json.loads(span.to_json()) for span in others.spans.values()]
        for span in spans:
            span["context"].pop("trace_state")
            span.pop("resource")
        found.append(spans)
    assert len(found[0]) == (1 if outcome == "released" else 2)
    assert found[1:] == [found[0]] * 3


async def test_span_that_a_handler_writes_to_has_the_start_of_the_attempt_and_is_reported_once():
    traced, ids = Traced(), []

    def inside() -> None:
        span = trace.get_current_span()
        ids.append(span.get_span_context())
        with traced.provider.get_tracer("user").start_as_current_span("child"):
            pass
        assert span.is_recording()
        span.set_attributes({"own": 1})
        span.add_event("note", {"n": 1})
        span.record_exception(ValueError("no"))
        span.update_name("renamed")
        assert span.name == "renamed"  # type: ignore[attr-defined]  # the span of the SDK has a name
        ids.append(span.get_span_context())

    traced.attempt(0, inside)
    assert traced.names == ["child", "renamed", "run default:work"]
    span, child, root = traced.spans["renamed"], traced.spans["child"], traced.spans["run"]
    assert span.context == ids[0] == ids[1]
    assert child.parent == span.context
    assert span.parent is not None
    assert root.context is not None
    assert span.parent.span_id == root.context.span_id
    assert span.attributes is not None
    assert (span.attributes["own"], span.attributes["runs.outcome"]) == (1, "completed")
    assert [event.name for event in span.events] == ["note", "exception"]
    assert (span.start_time, span.end_time) == (1001 * 10**9, 1002 * 10**9)


def test_span_that_several_threads_write_to_is_made_once():
    traced = Traced()

    def inside() -> None:
        span = trace.get_current_span()
        threads = [threading.Thread(target=span.set_attribute, args=(f"own{n}", n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    traced.attempt(0, inside)
    assert traced.names == ["process default:work", "run default:work"]
    assert {f"own{n}" for n in range(4)} <= set(traced.spans["process"].attributes or {})


async def test_span_of_an_attempt_that_has_ended_takes_no_more_attributes():
    traced, kept = Traced(), []
    traced.attempt(0, lambda: kept.append(trace.get_current_span()))
    assert not kept[0].is_recording()
    kept[0].set_attribute("own", 1)
    kept[0].end()
    traced.middleware.on_worker_end()
    assert traced.names == ["process default:work", "run default:work"]
    assert "own" not in (traced.spans["process"].attributes or {})
    assert kept[0].get_span_context() == traced.spans["process"].context


async def test_failed_attempt_is_reported_at_once():
    traced = Traced()
    info = attempt_info()
    with traced.chain.around(info):
        pass
    traced.chain.on_ending(AttemptEnding(info, "failed", 0.1, ValueError("no")))
    for span in traced.spans.values():
        (event,) = span.events
        assert (event.name, event.timestamp) == ("exception", span.end_time)
        assert span.status.description == "no"


async def test_error_while_the_spans_of_a_run_are_made_does_not_lose_the_others(caplog: pytest.LogCaptureFixture):
    traced = Traced(None, Picky())
    for number in range(3):
        traced.attempt(number)
    traced.middleware.on_worker_end()
    assert len(traced.names) == 4
    assert "the spans of attempt 1 at run run-1-00 are lost" in caplog.text


def test_processor_that_writes_to_the_current_span_while_it_is_made_does_not_hang():
    traced = Traced(None, Watching(write))
    traced.attempt(0, write)
    assert traced.names == ["process default:work", "run default:work"]


def test_processor_that_fails_does_not_fail_a_handler_that_uses_the_current_span(caplog: pytest.LogCaptureFixture):
    def fail() -> None:
        raise ValueError("a broken processor")

    traced = Traced(None, Watching(fail))
    with traced.chain.around(attempt_info()):
        write()
    assert "the span of attempt 1 at run run-0-00 is lost" in caplog.text


def test_processor_that_is_added_later_sees_the_start_of_spans():
    traced, starts = Traced(), []
    traced.attempt()
    traced.provider.add_span_processor(Watching(lambda: starts.append(1)))
    traced.attempt()
    assert len(starts) == 2


def test_baggage_and_the_link_of_the_producer_are_kept():
    traced, seen, headers = Traced(), [], dict[str, str]()
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    with traced.provider.get_tracer("user").start_as_current_span("request") as request:
        propagate.inject(headers)
    context.detach(token)
    traced.attempt(0, lambda: seen.append(baggage.get_baggage("tenant")), headers=headers)
    assert seen == ["acme"]
    assert [link.context.span_id for link in traced.spans["process"].links] == [request.get_span_context().span_id]
