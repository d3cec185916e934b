"""arq: a job is kept until its worker is done. 100 jobs at once, and it polls every 10 ms instead of every 500 ms."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import probe
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker


async def nothing(ctx: Any, began: int, text: str) -> str | None:
    probe.mark(began)
    return text if began == probe.TRIP else None


async def producer(url: str) -> Any:
    pool = await create_pool(RedisSettings.from_dsn(url))

    async def one(began: int) -> None:
        await pool.enqueue_job("nothing", began, probe.TEXT)

    async def many(count: int) -> None:
        for start in range(0, count, 100):
            await asyncio.gather(*(one(0) for _ in range(min(100, count - start))))

    async def trip() -> None:
        job = await pool.enqueue_job("nothing", probe.TRIP, probe.TEXT)
        assert job is not None
        await job.result(timeout=30, poll_delay=0.005)

    return SimpleNamespace(one=one, many=many, trip=trip)


def work(url: str) -> None:
    async def serve() -> None:
        worker = Worker(
            [nothing],
            redis_settings=RedisSettings.from_dsn(url),
            max_jobs=100,
            poll_delay=0.01,
            log_results=False,
            handle_signals=False,
        )
        await worker.main()

    probe.runner()(serve())


if __name__ == "__main__":
    probe.main(producer, work)
