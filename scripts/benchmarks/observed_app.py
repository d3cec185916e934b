"""A worker process with empty runs for scripts/bench observed: `python observed_app.py URL MODE`.

When it has ended, it prints the processor time in seconds that it used since it was ready.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import Any
from zlib import crc32

from coordinator import AttemptEnding, Middleware
from coordinator.config import Settings
from workers import AsyncRun, Registry
from workers.metrics.cells import open_shared_file
from workers.metrics.worker_metrics import WorkerMetrics
from workers.process.options import WorkerOptions
from workers.process.worker import Worker
from workers.program.registries import fast_runner, tune_garbage_collector


def middleware(mode: str) -> list[Middleware]:
    """Return the middleware that makes spans, or none."""
    if mode not in ("spans", "traces"):
        return []
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

    from coordinator.tracing import Tracing

    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.01)) if mode == "traces" else ALWAYS_ON)
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.get_current_span()  # the first use of the API looks for plug-ins, once for each process
    return [Tracing(provider)] if mode == "traces" else [BareSpans(provider)]


class BareSpans(Middleware):
    """Make as many spans as `Tracing` for an empty run, for the same share of the runs, and nothing else."""

    def __init__(self, provider: Any) -> None:
        self._tracer = provider.get_tracer("bench")

    def selects(self, run: str) -> bool:
        return crc32(run.encode()) < (1 << 32) // 100

    def on_ending(self, ending: AttemptEnding) -> None:
        self._tracer.start_span("attempt").end()
        self._tracer.start_span("run").end()


runs = Registry(middleware=middleware(sys.argv[2]))


@runs.handler
async def nothing(run: AsyncRun, text: str = "") -> None:
    return None


async def main(url: str, mode: str) -> int:
    metrics = WorkerMetrics(list(runs.handlers), open_shared_file()) if mode == "metrics" else None
    worker = Worker(runs, WorkerOptions(Settings(url, "runs")), metrics=metrics)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    running = asyncio.create_task(worker.run())
    await worker.ready.wait()
    began = time.process_time()
    code = await running
    print(time.process_time() - began)
    return code


if __name__ == "__main__":
    tune_garbage_collector()  # Every worker process does this.
    sys.exit(fast_runner()(main(*sys.argv[1:3])))
