"""SAQ: 100 jobs at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import probe
from saq import Queue
from saq.worker import Worker


async def nothing(ctx: Any, *, began: int, text: str) -> str | None:
    probe.mark(began)
    return text if began == probe.TRIP else None


async def producer(url: str) -> Any:
    queue = Queue.from_url(url)
    await queue.connect()

    async def one(began: int) -> None:
        await queue.enqueue("nothing", began=began, text=probe.TEXT)

    async def many(count: int) -> None:
        for start in range(0, count, 100):
            await asyncio.gather(*(one(0) for _ in range(min(100, count - start))))

    async def trip() -> None:
        await queue.apply("nothing", began=probe.TRIP, text=probe.TEXT, timeout=30, poll_interval=0.005)

    return SimpleNamespace(one=one, many=many, trip=trip)


def work(url: str) -> None:
    async def serve() -> None:
        queue = Queue.from_url(url)
        await queue.connect()
        await Worker(queue, [nothing], concurrency=100).start()

    probe.runner()(serve())


if __name__ == "__main__":
    probe.main(producer, work)
