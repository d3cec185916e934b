"""SAQ with its defaults, except for 100 jobs at once: `saq_app.py work URL`, `saq_app.py enqueue URL COUNT`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from marks import mark
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue
from saq.worker import Worker


async def long(ctx: dict[str, Any]) -> None:
    job = ctx["job"]
    mark("start", job.key, tries=job.attempts - 1)
    try:
        await asyncio.sleep(250)
    finally:
        mark("stop", job.key)


async def work(url: str) -> None:
    queue = RedisQueue(Redis.from_url(url))
    await queue.connect()
    await Worker(queue, [long], concurrency=100).start()


async def enqueue(url: str, count: int) -> None:
    queue = RedisQueue(Redis.from_url(url))
    await queue.connect()
    for _ in range(count):
        await queue.enqueue("long", timeout=300, retries=10)
    await queue.disconnect()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[2]) if sys.argv[1] == "work" else enqueue(sys.argv[2], int(sys.argv[3])))
