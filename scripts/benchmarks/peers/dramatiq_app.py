"""Dramatiq: one process of 8 threads, its default; messages are kept until they are acknowledged."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import dramatiq
import probe
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

URL = os.environ["BENCH_URL"]
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor
def nothing(began: int, text: str) -> None:
    probe.mark(began)


@dramatiq.actor(store_results=True)
def answer(text: str) -> str:
    return text


async def producer(url: str) -> Any:
    async def one(began: int) -> None:
        nothing.send(began, probe.TEXT)

    async def trip() -> None:
        answer.send(probe.TEXT).get_result(block=True, timeout=30_000)

    return SimpleNamespace(one=one, many=None, trip=trip)  # A group sends its messages one by one.


def work(url: str) -> None:
    worker = dramatiq.Worker(broker, worker_threads=8)
    worker.start()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    worker.stop()


if __name__ == "__main__":
    probe.main(producer, work)
