"""taskiq with its stream broker, which acknowledges messages: 100 tasks at once."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import probe
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

URL = os.environ["BENCH_URL"]
broker = RedisStreamBroker(URL).with_result_backend(RedisAsyncResultBackend(URL, result_ex_time=60))


@broker.task
async def nothing(began: int, text: str) -> str | None:
    probe.mark(began)
    return text if began == probe.TRIP else None


async def producer(url: str) -> Any:
    await broker.startup()

    async def one(began: int) -> None:
        await nothing.kiq(began, probe.TEXT)

    async def many(count: int) -> None:
        for start in range(0, count, 100):
            await asyncio.gather(*(one(0) for _ in range(min(100, count - start))))

    async def trip() -> None:
        task = await nothing.kiq(probe.TRIP, probe.TEXT)
        await task.wait_result(check_interval=0.002, timeout=30)

    return SimpleNamespace(one=one, many=many, trip=trip)


def work(url: str) -> None:
    async def serve() -> None:
        broker.is_worker_process = True
        await run_receiver_task(broker, run_startup=True, max_async_tasks=100)

    probe.runner()(serve())


if __name__ == "__main__":
    probe.main(producer, work)
