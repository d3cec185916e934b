"""A worker process with empty runs for scripts/bench observed: `python observed_app.py URL ROUNDS MODE ...`.

The process executes one window of runs after the other, and switches metrics and middleware between them. When it has ended, it
prints for each window its mode, its runs per second, and the processor time of the process for a run in microseconds, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

from coordinator import AttemptEnding, Middleware
from coordinator.config import Settings
from coordinator.middleware import MiddlewareChain
from coordinator.tracing import Tracing
from workers import AsyncRun, Registry
from workers.attempt.measuring import SaveMeter
from workers.metrics.cells import open_shared_file
from workers.metrics.worker_metrics import WorkerMetrics
from workers.process import worker as worker_module
from workers.process.claiming.middleware import ClaimedMiddleware
from workers.process.options import WorkerOptions
from workers.process.runner import Runner
from workers.process.worker import Worker
from workers.program.registries import fast_runner, tune_garbage_collector

WINDOW = 4000  # runs


class BareSpans(Middleware):
    """Make as many spans as `Tracing` for an empty run, for the same share of the runs, and nothing else."""

    def __init__(self, provider: Any) -> None:
        self._tracer = provider.get_tracer("bench")

    def selects(self, run: str) -> bool:
        return crc32(run.encode()) < (1 << 32) // 100

    def on_ending(self, ending: AttemptEnding) -> None:
        self._tracer.start_span("attempt").end()
        self._tracer.start_span("run").end()


class Windows:
    """The windows of the process: counts the runs, measures each window, and switches to the mode of the next one."""

    def __init__(self, order: Iterator[str]) -> None:
        self._order, self._count = order, 0
        self.found: list[tuple[str, float, float]] = []
        self.metrics = WorkerMetrics(["nothing"], open_shared_file())
        self._tracing = Tracing(_provider(ParentBased(TraceIdRatioBased(0.01))))
        bare = BareSpans(_provider(ALWAYS_ON))
        self._chains = {"traces": MiddlewareChain([self._tracing]), "spans": MiddlewareChain([bare])}
        self.runner: Runner | None = None

    def begin(self) -> None:
        """Switch to the next mode, and begin to measure."""
        self._mode = next(self._order)
        self._switch(self._mode)
        self._at, self._busy = time.perf_counter(), time.process_time()

    def count(self) -> None:
        """Count a run. The last run of a window ends it."""
        self._count += 1
        if self._count % WINDOW == 0:
            self._tracing.on_worker_end()  # what this window has left to do belongs to it
            seconds, busy = time.perf_counter() - self._at, time.process_time() - self._busy
            self.found.append((self._mode, WINDOW / seconds, busy / WINDOW * 1e6))
            self.begin()

    def _switch(self, mode: str) -> None:
        runner = self.runner
        assert runner is not None
        metrics = self.metrics if mode == "metrics" else None
        runner._metrics = metrics
        meters = {"nothing": SaveMeter("nothing", metrics)} if metrics else {}
        object.__setattr__(runner._executor.loader, "meters", meters)
        for part in (runner._executor, runner._recorder, runner._executor.loader):
            object.__setattr__(part, "metrics", metrics)  # they are frozen
        chains = {"nothing": self._chains[mode]} if mode in self._chains else {}
        runner._middleware = ClaimedMiddleware(chains, 1)


def _provider(sampler: Any) -> TracerProvider:
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter(), max_queue_size=1_000_000))
    return provider


def turns(rounds: int, modes: list[str]) -> Iterator[str]:
    """Yield the modes in turns, so that each of them is first, last and after every other one. Then yield "rest" for ever."""
    yield "rest"  # the first window is slower, and does not count
    for number in range(rounds):
        first = number % len(modes)
        turn = [*modes[first:], *modes[:first]]
        yield from turn if number % 2 else turn[::-1]
    while True:
        yield "rest"


runs = Registry()
windows = Windows(turns(int(sys.argv[2]), sys.argv[3:]))


@runs.handler
async def nothing(run: AsyncRun, text: str = "") -> None:
    windows.count()


class WatchedRunner(Runner):
    """A runner that the windows can switch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        windows.runner = self


async def main(url: str) -> int:
    worker_module.Runner = WatchedRunner  # type: ignore[misc]
    worker = Worker(runs, WorkerOptions(Settings(url, "runs")), metrics=windows.metrics)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    running = asyncio.create_task(worker.run())
    await worker.ready.wait()
    windows.begin()
    code = await running
    print(json.dumps(windows.found))
    return code


if __name__ == "__main__":
    trace.get_current_span()  # the first use of the API looks for plug-ins, once for each process
    tune_garbage_collector()  # Every worker process does this.
    sys.exit(fast_runner()(main(sys.argv[1])))
