"""Celery: acknowledges late and rejects the tasks of a lost worker, so that it loses none; prefetch as advised for short tasks."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import probe
from celery import Celery

URL = os.environ["BENCH_URL"]
app = Celery("celery_app", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=128,
    broker_connection_retry_on_startup=True,
)


@app.task(ignore_result=True)
def nothing(began: int, text: str) -> None:
    probe.mark(began)


@app.task
def answer(text: str) -> str:
    return text


async def producer(url: str) -> Any:
    async def one(began: int) -> None:
        nothing.delay(began, probe.TEXT)

    async def many(count: int) -> None:
        with app.pool.acquire(block=True) as connection, app.amqp.Producer(connection) as sender:
            for _ in range(count):
                nothing.apply_async((0, probe.TEXT), producer=sender)

    async def trip() -> None:
        answer.delay(probe.TEXT).get(timeout=30)

    return SimpleNamespace(one=one, many=many, trip=trip)


def work(url: str) -> None:
    app.worker_main(["worker", "--concurrency=1", "--loglevel=ERROR", "--without-gossip", "--without-mingle"])


if __name__ == "__main__":
    import celery_app  # Tasks are named after their module.

    probe.main(celery_app.producer, celery_app.work)
