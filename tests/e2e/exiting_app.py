"""Handlers of processes that hold spans, metrics and a file line until they exit, for tests of the exit."""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from pathlib import Path

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from coordinator.tracing import Tracing
from tests.e2e.app import journal
from tests.e2e.file_exporters import FileMetrics, FileSpans
from tests.waiting import work_for
from workers import AsyncRun, Registry

NEVER = 3_600_000  # milliseconds; nothing is exported before the exit


@atexit.register
def say_goodbye() -> None:
    """Append the process id to a file, or wait for longer than any exit may take."""
    if os.environ.get("HANGS"):
        time.sleep(600)  # stands for an exporter whose collector does not answer
    with Path(f"{os.environ['JOURNAL']}.goodbyes").open("a") as file:
        file.write(f"{os.getpid()}\n")


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(FileSpans(), schedule_delay_millis=NEVER))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(FileMetrics(), NEVER)]))
runs = Registry(middleware=[Tracing()])


@runs.handler
async def quick(run: AsyncRun) -> int:
    return 1


@runs.handler
async def slow(run: AsyncRun) -> None:
    """Work until the worker stops the run at a turn."""
    journal(run, "start")
    async for _ in run.loop(limit=1_000_000):
        await work_for(0.01)


@runs.handler
async def stubborn(run: AsyncRun) -> None:
    """Work until the worker cancels the handler."""
    journal(run, "start")
    await asyncio.Event().wait()
