"""The middleware that reports runs as traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from coordinator.clock import SystemClock
from coordinator.middleware import AttemptEnding, AttemptInfo, EnqueueInfo, SamplingMiddleware, StepInfo
from coordinator.tracing.attempt_span import AttemptSpan, CurrentSpan
from coordinator.tracing.late_endings import LateEndings
from coordinator.tracing.run_spans import RunSpans, is_plain, messaging, ns, producer_context
from coordinator.tracing.tracer import Tracer

LONG_SAVE = 10_000_000  # nanoseconds; shorter saves have no span
MOST_OPEN = 20_000  # attempts whose outcome is not known yet; the oldest are forgotten beyond that


class Tracing(SamplingMiddleware):
    """A middleware that reports runs as traces: a run is a trace, with a span for each attempt, phase, wait and slow save.

    Args:
        provider: The TracerProvider; by default the global one of OpenTelemetry when the first span is made.
    """

    reads_history = True

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._provider = provider
        # The first tracer of a provider takes tens of milliseconds, which should not delay the first run.
        self._found: Tracer | None = None if provider is None else Tracer(provider)
        self._open: dict[tuple[str, int], AttemptSpan] = {}
        self._late = LateEndings(self._report)
        self._now: Callable[[], int] = SystemClock.now_ns

    # -- Middleware

    def find_limit(self) -> int:
        """Return the limit of the sampler of the provider.

        The number is kept from the time on at which a provider is set. The API of OpenTelemetry sets a provider once.
        """
        found = self._tracer
        if found.has_provider:
            self.limit = found.limit
        return found.limit

    def on_enqueue(self, run: EnqueueInfo) -> None:
        """Report a span for the enqueue, and put its trace context into the headers of the run."""
        destination = f"{run.queue}:{run.kind}"
        attributes = {**messaging(destination, "enqueue", "send"), "runs.kind": run.kind}
        with self._tracer.tracer.start_as_current_span(
            f"enqueue {destination}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            if span.get_span_context().trace_flags.sampled:
                propagate.inject(run.headers)

    def around_attempt(self, attempt: AttemptInfo) -> AbstractContextManager[None]:
        """Make the span of the attempt the current span while its handler runs."""
        span = AttemptSpan(self._tracer, attempt, self._now())
        if len(self._open) >= MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[attempt.run, attempt.attempt] = span
        return CurrentSpan(span.made or span, span.producer)

    def around_step(self, step: StepInfo) -> AbstractContextManager[object]:
        """Report a span for a phase or a wait, and for a save that takes longer than 10 ms."""
        return self._slow_save() if step.what == "save" else self._step(step)

    def on_ending(self, ending: AttemptEnding) -> None:
        """Report the span of the attempt, the spans of lost attempts before it, and the root span if the run has ended."""
        attempt, ended = ending.attempt, self._now()
        span = self._open.pop((attempt.run, attempt.attempt), None)
        if span is None:  # the handler was not started
            span = AttemptSpan(self._tracer, attempt, ended - ns(ending.seconds))
        span.close()
        if ending.outcome == "lost":
            return  # the next attempt reports it: this worker does not know how the server recorded its end
        # An error holds the variables of the handler, so it is not kept. Earlier attempts make an ending rare and important.
        if span.made is not None or ending.error is not None or attempt.history:
            self._report(ending, span, ended)
        else:
            self._late.add(ending, span, ended)

    def on_worker_end(self) -> None:
        """Report the endings that are held."""
        self._late.flush()

    def report_ending(self, run: AttemptInfo, outcome: str, ended: float, reason: str) -> None:
        """Report the root span of a run that ended while no worker executed it, and the spans of lost attempts before that.

        Args:
            run: The run, with the number of its attempts and its history.
            outcome: The status in which it ended.
            ended: When it ended, in Unix seconds.
            reason: Why it ended, in words.
        """
        spans = RunSpans.of(self._tracer, run, producer_context(run))
        spans.report_lost_up_to(run.attempt)
        spans.report_root(outcome, ns(ended), reason)

    # -- spans

    def _report(self, ending: AttemptEnding, span: AttemptSpan, ended: int) -> None:
        run = RunSpans.of(span.tracer, span.attempt, span.producer)
        finished = span.tracer.finished() if span.made is None and is_plain(ending) else None
        if finished is not None:
            run.report_plain_ending(finished, ending, span.start, ended)
        else:
            run.report_ending(ending, span.made or run.start_attempt(span.attempt.attempt, span.start), ended)

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
        began = self._now()
        try:
            yield
        finally:
            if self._now() - began > LONG_SAVE:
                self._tracer.tracer.start_span("save", start_time=began, attributes={"runs.step": "save"}).end()

    @property
    def _tracer(self) -> Tracer:
        found = self._found
        if found is None or not found.has_provider:  # the API of OpenTelemetry sets the global provider once
            provider = self._provider or trace.get_tracer_provider()
            if found is None or found.provider is not provider:
                found = self._found = Tracer(provider)
        return found
