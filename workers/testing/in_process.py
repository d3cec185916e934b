"""The whole product in the process of a test: a worker, a coordinator and a store in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from coordinator.client.client import Client
from coordinator.config import Settings
from coordinator.services.daemon import Coordinator
from workers.handlers.registry import Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker

STOP_SECONDS = 30.0


@contextmanager
def worker(registry: Registry[Any], url: str | None = None, **options: Any) -> Iterator[Client]:
    """Run a worker and a coordinator in a thread of this process while the context is open.

    Args:
        registry: The handlers.
        url: The URL of the server. By default a store in memory, which needs the extra `memory`.
        **options: Fields of `WorkerOptions`, such as `concurrency` or `lease`. The grace is 1 second by default.

    Yields:
        A client of the same namespace.
    """
    settings = Settings(url or f"memory://testing-{uuid4().hex}", "testing")
    started: list[Any] = []
    ready = threading.Event()

    async def main() -> None:
        coordinator = Coordinator(settings)
        working = Worker(registry, WorkerOptions(settings, **{"grace": 1.0, **options}))
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(coordinator.run()), asyncio.create_task(working.run())]
        started.extend([loop, coordinator, working])
        announce = asyncio.create_task(working.ready.wait())
        done, _ = await asyncio.wait({announce, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        ready.set()
        for task in done - {announce}:
            task.result()
        await asyncio.gather(*tasks)

    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001  # raised in the thread of the test
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="testing.worker", daemon=True)
    thread.start()
    ready.wait()
    if failed:
        raise failed[0]
    loop, coordinator, working = started
    try:
        with Client(settings.url, settings.namespace) as client:
            yield client
    finally:
        loop.call_soon_threadsafe(working.stop)
        loop.call_soon_threadsafe(coordinator.stop)
        thread.join(STOP_SECONDS)
