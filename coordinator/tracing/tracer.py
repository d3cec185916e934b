"""The tracer of a provider, with which a caller chooses the ids of spans."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind

from coordinator.middleware import CHECKSUMS
from coordinator.tracing.finished_spans import FinishedSpans, can_report, processors_of

SYSTEM = "run-coordinator"

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

    def is_trace_id_random(self) -> bool:
        return _next_ids.get() is None and bool(self._others.is_trace_id_random())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)


class Tracer:
    """The tracer of a provider.

    The API of OpenTelemetry does not let a caller choose the id of a span. The tracer of the SDK has an id generator, which is
    replaced for this tracer alone. With another implementation the spans get random ids.

    Attributes:
        provider: The provider.
        tracer: The tracer.
        has_provider: Whether a provider of an SDK is configured.
        limit: A trace can be sampled only if the checksum of its run's id is below this number. Every checksum is below it if the
            sampler is not based on the ids of traces.
        reports_finished: Whether finished spans could be reported when `finished` was last called.
        can_wait: Whether the spans of a run may be made after its end: their ids are fixed, and the sampler samples all runs that
            are below the limit.
    """

    def __init__(self, provider: trace.TracerProvider) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer(SYSTEM)
        generator = getattr(self.tracer, "id_generator", None)
        if generator is not None and not isinstance(generator, _FixedIds):
            self.tracer.id_generator = _FixedIds(generator)  # type: ignore[attr-defined]
        sampler = getattr(provider, "sampler", None)
        self.can_wait = generator is not None and _samples_all_below_limit(sampler)
        sampler = getattr(sampler, "_root", sampler)  # of ParentBased
        bound = getattr(sampler, "bound", None)  # of TraceIdRatioBased
        # The sampler compares the low half of the trace id with its bound. That half begins with the checksum.
        self.limit = -(-bound >> 32) if isinstance(bound, int) else CHECKSUMS
        self.has_provider = not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))
        if not self.has_provider or _samples_nothing(sampler):
            self.limit = 0
        self._processors: object = None
        self._finished: FinishedSpans | None = None
        self.reports_finished = False

    def finished(self) -> FinishedSpans | None:
        """Return what reports finished spans; None if spans have to be started and ended."""
        processors = processors_of(self.tracer)
        if processors is not self._processors:  # also after a processor was added
            self._processors = processors
            usable = self.can_wait and can_report(self.tracer, processors)
            self._finished, self.reports_finished = FinishedSpans(self.tracer) if usable else None, usable
        return self._finished

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


def _samples_all_below_limit(sampler: Any) -> bool:
    """Return True if a sampler is known to sample the roots and attempts of all runs that are below the limit of its tracer.

    A sampler of another class may decide by the name or the attributes of a span, or count spans. Subclasses that only choose
    parameters are known.
    """
    try:
        from opentelemetry.sdk.trace import sampling
    except ImportError:
        return False
    if _decides_as(sampler, sampling.ParentBased):
        if not _samples_all(sampler._remote_parent_sampled):  # it decides about attempts, which have such a parent
            return False
        sampler = sampler._root
    return _decides_as(sampler, sampling.TraceIdRatioBased) or _samples_all(sampler)


def _samples_all(sampler: Any) -> bool:
    from opentelemetry.sdk.trace import sampling

    return _decides_as(sampler, sampling.StaticSampler) and sampler._decision is sampling.Decision.RECORD_AND_SAMPLE


def _samples_nothing(sampler: Any) -> bool:
    try:
        from opentelemetry.sdk.trace import sampling
    except ImportError:
        return False
    return _decides_as(sampler, sampling.StaticSampler) and sampler._decision is sampling.Decision.DROP


def _decides_as(sampler: Any, known: type) -> bool:
    return getattr(type(sampler), "should_sample", None) is known.should_sample  # type: ignore[attr-defined]
