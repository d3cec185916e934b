"""A handler whose worker processes export spans to a file, for tests that kill them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from coordinator.tracing import Tracing
from tests.e2e.app import journal, opened
from workers import AsyncRun, Registry


class FileExporter(SpanExporter):
    """Append each span to a file, in one write."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        descriptor = os.open(f"{os.environ['JOURNAL']}.spans", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            for span in spans:
                os.write(descriptor, json.dumps(json.loads(span.to_json())).encode() + b"\n")
        finally:
            os.close(descriptor)
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
trace.set_tracer_provider(provider)
runs = Registry(middleware=[Tracing()])


@runs.handler(throttle=0)
async def traced(run: AsyncRun) -> int:
    """Save progress, and wait until the test kills the process or opens the gate."""
    await run.phase(f"phase {run.attempt}", int)
    journal(run, "start", run.attempt)
    await opened(run, "enough")
    return run.attempt
