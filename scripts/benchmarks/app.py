"""Handlers that do nothing, and the process that runs them: `python app.py URL NAMESPACE asyncio|uvloop`."""

from __future__ import annotations

import asyncio
import signal
import sys
import time

from coordinator.config import Settings
from workers import AsyncRun, Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker
from workers.program.registries import tune_garbage_collector

runs = Registry()


@runs.handler
async def nothing(run: AsyncRun, text: str = "") -> None:
    return None


@runs.handler
async def first_line(run: AsyncRun) -> int:
    """Return the time of the call. All processes share the host's clock."""
    return time.monotonic_ns()


async def main(url: str, namespace: str) -> int:
    worker = Worker(runs, WorkerOptions(Settings(url, namespace)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    return await worker.run()


if __name__ == "__main__":
    tune_garbage_collector()  # Every worker process does this.
    if sys.argv[3] == "uvloop":
        import uvloop

        sys.exit(uvloop.run(main(*sys.argv[1:3])))
    sys.exit(asyncio.run(main(*sys.argv[1:3])))
