"""arq with its defaults, except for 100 jobs at once: `arq_app.py work URL`, `arq_app.py enqueue URL COUNT`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker
from marks import mark


async def long(ctx: dict[str, Any]) -> None:
    mark("start", ctx["job_id"], tries=ctx["job_try"] - 1)
    try:
        await asyncio.sleep(250)
    finally:
        mark("stop", ctx["job_id"])


async def enqueue(url: str, count: int) -> None:
    pool = await create_pool(RedisSettings.from_dsn(url))
    for _ in range(count):
        await pool.enqueue_job("long")


if __name__ == "__main__":
    if sys.argv[1] == "work":
        Worker([long], redis_settings=RedisSettings.from_dsn(sys.argv[2]), max_jobs=100).run()
    else:
        asyncio.run(enqueue(sys.argv[2], int(sys.argv[3])))
