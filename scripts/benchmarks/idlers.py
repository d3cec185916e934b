"""A process with many idle workers: `python idlers.py URL NAMESPACE COUNT`. Each behaves like a worker alone in its process."""

from __future__ import annotations

import asyncio
import signal
import sys

from coordinator.config import Settings
from workers import AsyncRun, Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker

runs = Registry()


@runs.handler
async def nothing(run: AsyncRun) -> None:
    return None


async def main(url: str, namespace: str, count: int) -> None:
    workers = [Worker(runs, WorkerOptions(Settings(url, namespace))) for _ in range(count)]

    def stop() -> None:
        for worker in workers:
            worker.stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await asyncio.gather(*(worker.run() for worker in workers))


if __name__ == "__main__":
    import logging

    import uvloop

    logging.disable(logging.WARNING)  # Many workers in one process slow each other down while they start.
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
