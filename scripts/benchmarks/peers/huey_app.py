"""huey: one worker thread, its default, which blocks on the list. The job of a killed worker is lost."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import probe
from huey import RedisHuey

# With notify_result, a client that waits for a result blocks on a list instead of polling.
huey = RedisHuey("bench", url=os.environ["BENCH_URL"], results=True, store_none=False, notify_result=True)


@huey.task()
def nothing(began: int, text: str) -> None:
    probe.mark(began)


@huey.task()
def answer(text: str) -> str:
    return text


async def producer(url: str) -> Any:
    async def one(began: int) -> None:
        nothing(began, probe.TEXT)

    async def trip() -> None:
        answer(probe.TEXT).get(blocking=True, timeout=30)

    return SimpleNamespace(one=one, many=None, trip=trip)


def work(url: str) -> None:
    huey.create_consumer(workers=1, periodic=False, check_worker_health=False).run()


if __name__ == "__main__":
    import huey_app  # Tasks are named after their module.

    probe.main(huey_app.producer, huey_app.work)
