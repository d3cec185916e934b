"""Make the spans of a run: its attempts, also those that were lost with their worker, and its root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanKind, Status, StatusCode

from coordinator.middleware import AttemptEnding, AttemptInfo
from coordinator.model.run import AttemptRecord
from coordinator.tracing.finished_spans import FinishedSpans
from coordinator.tracing.ids import Ids
from coordinator.tracing.tracer import SYSTEM, Tracer

LOST = ("recovered", "forced")  # endings of attempts whose worker was lost, so that it could not report them
AGENT = "gen_ai."  # meta whose names begin with this are attributes
FAILED = ("failed", "retried", "rejected", "dead")


NO_PRODUCER = Context()  # a context can't be changed


def producer_context(run: AttemptInfo) -> Context:
    """Return the context of the program that enqueued a run, which travelled with the run."""
    return propagate.extract(run.headers, NO_PRODUCER) if run.headers else NO_PRODUCER


@dataclass(frozen=True, slots=True)
class RunSpans:
    """Makes the spans of a run.

    Attributes:
        tracer: The tracer.
        newest: The newest attempt at the run.
        producer: The context of the producer, see `producer_context`.
        ids: The ids of the spans.
        destination: The queue and the kind of the run.
    """

    tracer: Tracer
    newest: AttemptInfo
    producer: Context
    ids: Ids
    destination: str

    @classmethod
    def of(cls, tracer: Tracer, newest: AttemptInfo, producer: Context) -> RunSpans:
        """Return the maker of the spans of the run of an attempt."""
        return cls(tracer, newest, producer, Ids.of(newest), f"{newest.queue}:{newest.kind}")

    def start_attempt(self, number: int, start: int | None) -> Span:
        """Start the span of the attempt with this number. `start` is its start in Unix nanoseconds; None means now."""
        root = NonRecordingSpan(self.ids.context(self.ids.root))
        context = trace.set_span_in_context(root, self.producer)
        return self.tracer.start(
            f"process {self.destination}", self.ids.attempt(number), self.ids.trace, context, SpanKind.CONSUMER,
            self._attempt_attributes(number), self._links(number), start,
        )  # fmt: skip

    def report_ending(self, ending: AttemptEnding, span: Span, ended: int) -> None:
        """Report the end of the newest attempt: lost attempts before it, its own span, and the root if the run has ended.

        Args:
            ending: The end of the attempt.
            span: The span of the attempt.
            ended: The time of the end in Unix nanoseconds.
        """
        if self.newest.history:
            self.report_lost_up_to(self.newest.attempt - 1)
        span.set_attribute("runs.outcome", ending.outcome)
        _set_error(span, ending, ended)
        span.end(ended)
        if ending.ended:
            root = self._start_root(ending.outcome, [])
            _set_error(root, ending, ended)
            root.end(ended)

    def report_plain_ending(self, finished: FinishedSpans, ending: AttemptEnding, start: int, ended: int) -> None:
        """Report the end of an attempt for which `is_plain` is true. The spans are those of `report_ending`.

        Args:
            finished: Reports the spans.
            ending: The end of the attempt.
            start: The time of its start in Unix nanoseconds.
            ended: The time of its end in Unix nanoseconds.
        """
        ids, number = self.ids, self.newest.attempt
        root, own = ids.context(ids.root), ids.context(ids.attempt(number), remote=False)
        attributes = self._attempt_attributes(number)
        attributes["runs.outcome"] = ending.outcome
        finished.report(f"process {self.destination}", own, root, SpanKind.CONSUMER, attributes, start, ended)
        if ending.ended:
            own, attributes = ids.context(ids.root, remote=False), self._root_attributes(ending.outcome)
            created = ns(self.newest.created)
            finished.report(f"run {self.destination}", own, None, SpanKind.INTERNAL, attributes, created, ended)

    def report_lost_up_to(self, last: int) -> None:
        """Report the spans of the attempt with the number `last` and of the attempts directly before it, if they were lost."""
        for lost in _lost_up_to(self.newest, last):
            span = self.start_attempt(lost.attempt, ns(lost.started.timestamp()) if lost.started else None)
            attributes = {"runs.outcome": "lost", "messaging.client.id": lost.worker, "error.type": "worker_lost"}
            span.set_attributes(attributes)
            span.set_status(Status(StatusCode.ERROR, lost.why or "its worker was lost"))
            span.end(ns(lost.ended.timestamp()))

    def report_root(self, outcome: str, ended: int, reason: str) -> None:
        """Report the root span of a run that ended without a worker.

        Args:
            outcome: The status in which the run ended.
            ended: The time of the end in Unix nanoseconds.
            reason: Why it ended, in words.
        """
        span = self._start_root(outcome, [] if self.newest.attempt else self._links(0))
        span.set_attribute("runs.reason", reason)
        if outcome in FAILED:
            span.set_status(Status(StatusCode.ERROR, reason))
        span.end(ended)

    def _start_root(self, outcome: str, links: list[Link]) -> Span:
        return self.tracer.start(
            f"run {self.destination}", self.ids.root, self.ids.trace, Context(), SpanKind.INTERNAL,
            self._root_attributes(outcome), links, ns(self.newest.created),
        )  # fmt: skip

    def _attempt_attributes(self, number: int) -> dict[str, Any]:
        newest = self.newest
        attributes = messaging(self.destination, "process", "process") | _describe(newest)
        attributes["runs.attempt"] = number
        if number == newest.attempt:
            attributes["messaging.client.id"], attributes["runs.cause"] = newest.worker, newest.cause
        return attributes

    def _root_attributes(self, outcome: str) -> dict[str, Any]:
        attributes = _describe(self.newest)
        attributes["runs.attempts"], attributes["runs.outcome"] = self.newest.attempt, outcome
        return attributes

    def _links(self, number: int) -> list[Link]:
        """Return the links of an attempt: to the attempt before it, and to the span that enqueued the run."""
        links = list[Link]()
        if number > 1:
            before = self.ids.context(self.ids.attempt(number - 1))
            links.append(Link(before, {"runs.link": "previous attempt"}))
        if self.producer:  # the producer has sent its context
            producer = trace.get_current_span(self.producer).get_span_context()
            if producer.is_valid:
                links.append(Link(producer, {"runs.link": "producer"}))
        return links


def is_plain(ending: AttemptEnding) -> bool:
    """Return True if the spans of an attempt have no links, no events, no error, and no attributes that users have chosen."""
    attempt = ending.attempt
    return (
        attempt.attempt == 1
        and not attempt.headers
        and ending.outcome not in FAILED
        and not any(name.startswith(AGENT) for name in attempt.meta)
    )


def messaging(destination: str, name: str, kind: str) -> dict[str, Any]:
    """Return the attributes of an operation with a run, by OpenTelemetry's conventions for messaging."""
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
    agents = {name: value for name, value in attempt.meta.items() if name.startswith(AGENT) and value is not None}
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


def _set_error(span: Span, ending: AttemptEnding, ended: int) -> None:
    if ending.outcome not in FAILED:
        return
    if ending.error is not None:
        span.record_exception(ending.error, timestamp=ended)
        span.set_attribute("error.type", type(ending.error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(ending.error) if ending.error is not None else ending.outcome))


def ns(seconds: float) -> int:
    """Return a time in nanoseconds."""
    return int(seconds * 1e9)
