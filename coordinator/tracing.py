"""Traces of runs through OpenTelemetry. Needs the extra `otel`.

Give `Tracing()` to the clients that enqueue and to the registry:

    client = Client(middleware=[Tracing()])
    runs = Registry(middleware=[Tracing()])

A run is one trace. The ids of the trace, of its root span and of the span of each attempt are computed from the run's id. So all
workers agree on them, and a worker can report the attempts of a worker that was killed before it could report anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any
from zlib import crc32

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from coordinator.clock import Clock, SystemClock
from coordinator.middleware import AttemptEnding, AttemptInfo, EnqueueInfo, Middleware, StepInfo
from coordinator.model.run import AttemptRecord

__all__ = ["Tracing"]

SYSTEM = "run-coordinator"
LONG_SAVE = 0.010  # seconds; shorter saves have no span
MOST_OPEN = 20_000  # spans of attempts whose outcome is not known yet; the oldest are dropped beyond that
LOST = ("recovered", "forced")  # endings of attempts whose worker was lost, so that it could not report them
FAILED = ("failed", "retried", "rejected", "dead")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
CHECKSUMS = 1 << 32  # the number of checksums of run ids, see `_Ids.of`


class Tracing(Middleware):
    """A middleware that reports runs as traces: a run is a trace, with a span for each attempt, phase, wait and slow save.

    Args:
        provider: The TracerProvider; by default the global one of OpenTelemetry when the first span is made.
    """

    reads_history = True

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._provider = provider
        # The first tracer of a provider takes tens of milliseconds, which should not delay the first run.
        self._found: _Tracer | None = None if provider is None else _Tracer(provider)
        self._limit: int | None = None  # see `_find_limit`
        self._open: dict[tuple[str, int], tuple[Span, _Trace]] = {}
        self._clock: Clock = SystemClock()

    # -- Middleware

    def selects(self, run: str) -> bool:
        """Return False if the sampler of the provider leaves out the trace of a run."""
        limit = self._limit if self._limit is not None else self._find_limit()
        return crc32(run.encode()) < limit

    def on_enqueue(self, run: EnqueueInfo) -> None:
        """Report a span for the enqueue, and put its trace context into the headers of the run."""
        destination = f"{run.queue}:{run.kind}"
        attributes = {**_messaging(destination, "enqueue", "send"), "runs.kind": run.kind}
        with self._tracer.tracer.start_as_current_span(
            f"enqueue {destination}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            if span.get_span_context().trace_flags.sampled:
                propagate.inject(run.headers)

    def around_attempt(self, attempt: AttemptInfo) -> AbstractContextManager[None]:
        """Make the span of the attempt the current span while its handler runs."""
        return _CurrentSpan(self, attempt)

    def start_attempt(self, attempt: AttemptInfo) -> Context:
        """Start the span of an attempt, and return the context in which it is the current span."""
        known = _Trace.of(attempt)
        span = self._start(known, attempt.attempt, None)
        if len(self._open) >= MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[attempt.run, attempt.attempt] = span, known
        return trace.set_span_in_context(span, known.context)  # with the baggage of the producer

    def around_step(self, step: StepInfo) -> AbstractContextManager[object]:
        """Report a span for a phase or a wait, and for a save that takes longer than 10 ms."""
        return self._slow_save() if step.what == "save" else self._step(step)

    def on_ending(self, ending: AttemptEnding) -> None:
        """Report the span of the attempt, the spans of lost attempts before it, and the root span if the run has ended."""
        attempt = ending.attempt
        span, known = self._open.pop((attempt.run, attempt.attempt), (None, None))
        if ending.outcome == "lost":
            return  # the next attempt reports it: this worker does not know how the server recorded its end
        if span is None or known is None:  # the handler was not started
            known = _Trace.of(attempt)
            span = self._start(known, attempt.attempt, _ns(self._clock.now() - ending.seconds))
        if attempt.history:
            for lost in _lost_up_to(attempt, attempt.attempt - 1):
                self._report_lost(known, lost)
        span.set_attribute("runs.outcome", ending.outcome)
        _set_error(span, ending)
        span.end()
        if ending.ended:
            self._report_root(known, ending)

    def report_ending(self, run: AttemptInfo, outcome: str, ended: float, reason: str) -> None:
        """Report the root span of a run that ended while no worker executed it, and the spans of lost attempts before that.

        Args:
            run: The run, with the number of its attempts and its history.
            outcome: The status in which it ended.
            ended: When it ended, in Unix seconds.
            reason: Why it ended, in words.
        """
        known = _Trace.of(run)
        for lost in _lost_up_to(run, run.attempt):
            self._report_lost(known, lost)
        links = [] if run.attempt else self._links(known, 0)
        span = self._start_root(known, outcome, links)
        span.set_attribute("runs.reason", reason)
        if outcome in FAILED:
            span.set_status(Status(StatusCode.ERROR, reason))
        span.end(_ns(ended))

    # -- spans

    def _start(self, known: _Trace, number: int, start: int | None) -> Span:
        """Start the span of the attempt with this number. `start` is its start in Unix nanoseconds; None means now."""
        attempt, ids, destination = known.newest, known.ids, known.destination
        attributes = _messaging(destination, "process", "process") | _describe(attempt)
        attributes["runs.attempt"] = number
        if number == attempt.attempt:
            attributes["messaging.client.id"], attributes["runs.cause"] = attempt.worker, attempt.cause
        root = NonRecordingSpan(SpanContext(ids.trace, ids.root, is_remote=True, trace_flags=_SAMPLED))
        context = trace.set_span_in_context(root, known.context)
        name, links = f"process {destination}", self._links(known, number)
        return self._tracer.start(
            name, ids.attempt(number), ids.trace, context, SpanKind.CONSUMER, attributes, links, start
        )

    def _links(self, known: _Trace, number: int) -> list[Link]:
        """Return the links of an attempt: to the attempt before it, and to the span that enqueued the run."""
        ids, links = known.ids, list[Link]()
        if number > 1:
            before = SpanContext(ids.trace, ids.attempt(number - 1), is_remote=True, trace_flags=_SAMPLED)
            links.append(Link(before, {"runs.link": "previous attempt"}))
        if known.context:  # the producer has sent its context
            producer = trace.get_current_span(known.context).get_span_context()
            if producer.is_valid:
                links.append(Link(producer, {"runs.link": "producer"}))
        return links

    def _report_lost(self, known: _Trace, lost: AttemptRecord) -> None:
        span = self._start(known, lost.attempt, _ns(lost.started.timestamp()) if lost.started else None)
        span.set_attributes({"runs.outcome": "lost", "messaging.client.id": lost.worker, "error.type": "worker_lost"})
        span.set_status(Status(StatusCode.ERROR, lost.why or "its worker was lost"))
        span.end(_ns(lost.ended.timestamp()))

    def _report_root(self, known: _Trace, ending: AttemptEnding) -> None:
        span = self._start_root(known, ending.outcome, [])
        _set_error(span, ending)
        span.end()

    def _start_root(self, known: _Trace, outcome: str, links: list[Link]) -> Span:
        attempt, ids = known.newest, known.ids
        name = f"run {known.destination}"
        attributes = {**_describe(attempt), "runs.attempts": attempt.attempt, "runs.outcome": outcome}
        start = _ns(attempt.created)
        return self._tracer.start(name, ids.root, ids.trace, Context(), SpanKind.INTERNAL, attributes, links, start)

    @contextmanager
    def _step(self, step: StepInfo) -> Iterator[None]:
        title = f"{step.what} {step.name}" if step.name else step.what
        attributes = {"runs.step": step.what, "runs.step.name": step.name}
        # An exception that stops the handler, or suspends the run, is not an error of the step.
        with self._tracer.tracer.start_as_current_span(
            title, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except Exception as error:
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise

    @contextmanager
    def _slow_save(self) -> Iterator[None]:
        began = self._clock.now()
        try:
            yield
        finally:
            if self._clock.now() - began > LONG_SAVE:
                self._tracer.tracer.start_span("save", start_time=_ns(began), attributes={"runs.step": "save"}).end()

    def _find_limit(self) -> int:
        """Return the limit of the tracer.

        The number is kept from the time on at which a provider is set. The API of OpenTelemetry sets a provider once.
        """
        found = self._tracer
        if found.has_provider:
            self._limit = found.limit
        return found.limit

    @property
    def _tracer(self) -> _Tracer:
        provider = self._provider or trace.get_tracer_provider()
        if self._found is None or self._found.provider is not provider:
            self._found = _Tracer(provider)
        return self._found


class _CurrentSpan(AbstractContextManager[None]):
    """A context manager in which the span of an attempt is the current span. A generator would take longer."""

    __slots__ = ("_attempt", "_token", "_tracing")

    def __init__(self, tracing: Tracing, attempt: AttemptInfo) -> None:
        self._tracing, self._attempt = tracing, attempt

    def __enter__(self) -> None:
        self._token: Token[Context] = attach(self._tracing.start_attempt(self._attempt))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        detach(self._token)


# ---- ids


@dataclass(frozen=True, slots=True)
class _Ids:
    """The ids of the spans of one life of a run."""

    run: str
    life: int
    trace: int
    root: int

    @classmethod
    def of(cls, attempt: AttemptInfo) -> _Ids:
        """Return the ids of a run.

        The low half of the trace id decides whether the trace is sampled. It begins with a cheap checksum, see `Tracing.selects`.
        """
        digest = blake2b(attempt.run.encode(), digest_size=12).digest()
        low = crc32(attempt.run.encode()) << 32 | int.from_bytes(digest[8:])
        return cls(
            attempt.run, attempt.life, int.from_bytes(digest[:8]) << 64 | low, _span_id(attempt.run, attempt.life, 0)
        )

    def attempt(self, number: int) -> int:
        """Return the id of the span of an attempt. Attempts are numbered over all lives of the run."""
        return _span_id(self.run, 0, number)


def _span_id(run: str, life: int, attempt: int) -> int:
    return int.from_bytes(blake2b(f"{run} {life} {attempt}".encode(), digest_size=8).digest()) or 1


@dataclass(frozen=True, slots=True)
class _Trace:
    """The data that all spans of a run share.

    Attributes:
        newest: The newest attempt.
        ids: The ids of the spans.
        destination: The queue and the kind of the run.
        context: The context of the producer, which travelled with the run.
    """

    newest: AttemptInfo
    ids: _Ids
    destination: str
    context: Context

    @classmethod
    def of(cls, attempt: AttemptInfo) -> _Trace:
        """Return the data for the spans of an attempt's run."""
        context = propagate.extract(attempt.headers, Context()) if attempt.headers else Context()
        return cls(attempt, _Ids.of(attempt), f"{attempt.queue}:{attempt.kind}", context)


_next_ids: ContextVar[tuple[int, int] | None] = ContextVar("coordinator.tracing.next_ids", default=None)


class _FixedIds:
    """An id generator of the SDK that gives the next span the ids that the caller has set, and random ids otherwise."""

    def __init__(self, others: Any) -> None:
        self._others = others

    def generate_trace_id(self) -> int:
        found = _next_ids.get()
        return int(self._others.generate_trace_id()) if found is None else found[0]

    def generate_span_id(self) -> int:
        found = _next_ids.get()
        if found is None:
            return int(self._others.generate_span_id())
        _next_ids.set(None)
        return found[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)


class _Tracer:
    """The tracer of a provider.

    The API of OpenTelemetry does not let a caller choose the id of a span. The tracer of the SDK has an id generator, which is
    replaced for this tracer alone. With another implementation the spans get random ids.

    Attributes:
        provider: The provider.
        tracer: The tracer.
        has_provider: Whether a provider of an SDK is configured.
        limit: A trace can be sampled only if the checksum of its run's id is below this number. Every checksum is below it if the
            sampler is not based on the ids of traces.
    """

    def __init__(self, provider: trace.TracerProvider) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer(SYSTEM)
        generator = getattr(self.tracer, "id_generator", None)
        if generator is not None and not isinstance(generator, _FixedIds):
            self.tracer.id_generator = _FixedIds(generator)  # type: ignore[attr-defined]
        sampler = getattr(provider, "sampler", None)
        sampler = getattr(sampler, "_root", sampler)  # of ParentBased
        bound = getattr(sampler, "bound", None)  # of TraceIdRatioBased
        # The sampler compares the low half of the trace id with its bound. That half begins with the checksum.
        self.limit = -(-bound >> 32) if isinstance(bound, int) else CHECKSUMS
        self.has_provider = not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))
        if not self.has_provider:
            self.limit = 0

    def start(
        self, name: str, span_id: int, trace_id: int, context: Context, kind: SpanKind, attributes: dict[str, Any],
        links: list[Link], start: int | None,
    ) -> Span:  # fmt: skip
        """Start a span with a given span id, and return it. The given trace id is used only if the context has no parent span."""
        _next_ids.set((trace_id, span_id))
        try:
            return self.tracer.start_span(name, context, kind, attributes, links, start, False, False)
        finally:
            _next_ids.set(None)


# ---- attributes


def _messaging(destination: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": destination,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _describe(attempt: AttemptInfo) -> dict[str, Any]:
    """Return the attributes that all spans of a run have. Meta with names that begin with `gen_ai.` are attributes too."""
    own = {
        "messaging.message.id": attempt.run,
        "messaging.destination.partition.id": attempt.run.rpartition("-")[2],
        "runs.kind": attempt.kind,
        "runs.life": attempt.life,
    }
    if not attempt.meta:
        return own
    agents = {name: value for name, value in attempt.meta.items() if name.startswith("gen_ai.") and value is not None}
    return agents | own


def _lost_up_to(attempt: AttemptInfo, last: int) -> list[AttemptRecord]:
    """Return the attempt with the number `last` and the attempts directly before it, as far back as they were lost, oldest first.

    The list is empty if the attempt `last` was not lost. Older lost attempts are already reported: by a later attempt, or at the
    end of an earlier life.
    """
    by_number = {
        entry.attempt: entry for entry in attempt.history if entry.how != "revived" and entry.life == attempt.life
    }
    found, number = list[AttemptRecord](), last
    while (entry := by_number.get(number)) is not None and entry.how in LOST:
        found.insert(0, entry)
        number -= 1
    return found


def _set_error(span: Span, ending: AttemptEnding) -> None:
    if ending.outcome not in FAILED:
        return
    if ending.error is not None:
        span.record_exception(ending.error)
        span.set_attribute("error.type", type(ending.error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(ending.error) if ending.error is not None else ending.outcome))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
