"""A handler whose worker processes export spans to a file, for tests that kill them."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from coordinator.tracing import Tracing
from tests.e2e.app import journal, opened
from tests.e2e.file_exporters import FileSpans
from workers import AsyncRun, Registry

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileSpans()))
trace.set_tracer_provider(provider)
runs = Registry(middleware=[Tracing()])


@runs.handler(throttle=0)
async def traced(run: AsyncRun) -> int:
    """Save progress, and wait until the test kills the process or opens the gate."""
    await run.phase(f"phase {run.attempt}", int)
    journal(run, "start", run.attempt)
    await opened(run, "enough")
    return run.attempt
