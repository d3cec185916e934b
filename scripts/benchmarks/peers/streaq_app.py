"""streaQ: 100 tasks at once."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import probe
from streaq import Worker

worker: Worker[None] = Worker(redis_url=os.environ["BENCH_URL"], concurrency=100)


@worker.task
async def nothing(began: int, text: str) -> str | None:
    probe.mark(began)
    return text if began == probe.TRIP else None


async def producer(url: str) -> Any:
    await worker.__aenter__()

    async def one(began: int) -> None:
        await nothing.enqueue(began, probe.TEXT)

    async def many(count: int) -> None:
        for start in range(0, count, 1000):
            await worker.enqueue_many([nothing.enqueue(0, probe.TEXT) for _ in range(min(1000, count - start))])

    async def trip() -> None:
        task = await nothing.enqueue(probe.TRIP, probe.TEXT)
        await task.result(30)

    return SimpleNamespace(one=one, many=many, trip=trip)


def work(url: str) -> None:
    worker.run_sync()


if __name__ == "__main__":
    import streaq_app  # Tasks are named after their module.

    probe.main(streaq_app.producer, streaq_app.work)
