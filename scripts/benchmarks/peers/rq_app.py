"""RQ: SimpleWorker, as its documentation advises for short jobs (the default forks for each job)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import probe
from redis import Redis
from rq import Queue, SimpleWorker


def nothing(began: int, text: str) -> str | None:
    probe.mark(began)
    return text if began == probe.TRIP else None


async def producer(url: str) -> Any:
    queue = Queue(connection=Redis.from_url(url))

    async def one(began: int) -> None:
        queue.enqueue("rq_app.nothing", began, probe.TEXT)

    async def many(count: int) -> None:
        for start in range(0, count, 1000):
            part = min(1000, count - start)
            queue.enqueue_many([Queue.prepare_data("rq_app.nothing", (0, probe.TEXT)) for _ in range(part)])

    async def trip() -> None:
        queue.enqueue("rq_app.nothing", probe.TRIP, probe.TEXT).latest_result(timeout=30)

    return SimpleNamespace(one=one, many=many, trip=trip)


def work(url: str) -> None:
    connection = Redis.from_url(url)
    SimpleWorker([Queue(connection=connection)], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    probe.main(producer, work)
