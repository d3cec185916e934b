"""The current span of an attempt while its handler runs."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from contextvars import Token
from types import TracebackType
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext

from coordinator.middleware import AttemptInfo
from coordinator.tracing.ids import Ids
from coordinator.tracing.run_spans import NO_PRODUCER, RunSpans, producer_context
from coordinator.tracing.tracer import Tracer

logger = logging.getLogger(__name__)
# A plain handler may use its span in several threads. All spans share the lock, because most of them never need it.
_LOCK = threading.RLock()


def _forwarded(name: str) -> Any:
    """Return a method that calls the method of this name of the span of the SDK."""

    def method(self: AttemptSpan, *args: Any, **options: Any) -> Any:
        return getattr(self._used(), name)(*args, **options)

    return method


class AttemptSpan(Span):
    """The span of an attempt. The span of the SDK is made when something is written to it, or after the end of the attempt.

    Most handlers do not write to the span of their attempt. Spans below it need only its ids, which are known before it is made.

    Args:
        tracer: The tracer.
        attempt: The attempt.
        start: The start of the attempt in Unix nanoseconds.

    Attributes:
        producer: The context of the program that enqueued the run.
        made: The span of the SDK; None until it is made.
    """

    def __init__(self, tracer: Tracer, attempt: AttemptInfo, start: int) -> None:
        self.tracer, self.attempt, self.start = tracer, attempt, start
        self.producer = producer_context(attempt) if attempt.headers else NO_PRODUCER
        self.made: Span | None = None
        self._context: SpanContext | None = None
        self._closed = False
        # If processors are added later, `finished` is called again when spans are reported, which is soon enough.
        if not tracer.reports_finished and tracer.finished() is None:
            self._used()

    def close(self) -> None:
        """End the attempt. From now on, only the middleware makes the span of the SDK, and what programs write to it is lost."""
        with _LOCK:
            self._closed = True

    def get_span_context(self) -> SpanContext:
        """Return the ids of the span."""
        if self.made is not None:
            return self.made.get_span_context()
        if self._context is None:
            ids = Ids.of(self.attempt)
            self._context = ids.context(ids.attempt(self.attempt.attempt), remote=False)
        return self._context

    def is_recording(self) -> bool:
        """Return True while the attempt has not ended."""
        return not self._closed if self.made is None else self.made.is_recording()

    def _used(self) -> Span:
        """Return the span of the SDK, which is made now if necessary. An error is logged, because handlers call this method."""
        with _LOCK:
            if self.made is None:
                nothing = NonRecordingSpan(self.get_span_context())
                if self._closed:
                    return nothing
                self.made = nothing  # for a processor of spans that uses the current span while this one is made
                try:
                    run = RunSpans.of(self.tracer, self.attempt, self.producer)
                    self.made = run.start_attempt(self.attempt.attempt, self.start)
                except Exception:
                    logger.exception("the span of attempt %d at run %s is lost", self.attempt.attempt, self.attempt.run)
            return self.made

    set_attribute = _forwarded("set_attribute")
    set_attributes = _forwarded("set_attributes")
    add_event = _forwarded("add_event")
    add_link = _forwarded("add_link")
    update_name = _forwarded("update_name")
    set_status = _forwarded("set_status")
    record_exception = _forwarded("record_exception")
    end = _forwarded("end")
    __exit__ = _forwarded("__exit__")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that only the span of the SDK has, such as its name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._used(), name)


class CurrentSpan(AbstractContextManager[None]):
    """A context manager in which a span is the current span. A generator would take longer.

    Args:
        span: The span.
        context: The other values of the context: the baggage of the producer.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, span: Span, context: Context) -> None:
        self._context = trace.set_span_in_context(span, context)

    def __enter__(self) -> None:
        self._token: Token[Context] = attach(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        detach(self._token)
