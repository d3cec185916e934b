"""pydocket: 50 tasks at once. With 100 its connection pool runs out and tasks wait for the redelivery."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Annotated, Any

import probe
from docket import ConcurrencyLimit, Docket, Worker

GROUPS, AT_ONCE = (int(os.environ.get(name, "0")) for name in ("BENCH_GROUPS", "BENCH_AT_ONCE"))


async def nothing(began: int, text: str) -> str | None:
    probe.mark(began)
    return text if began == probe.TRIP else None


async def limited(began: int, text: str, customer: Annotated[int, ConcurrencyLimit(AT_ONCE)]) -> None:
    probe.mark(began)


async def producer(url: str) -> Any:
    docket = await Docket(url=url).__aenter__()
    docket.register(nothing)
    docket.register(limited)

    async def one(began: int) -> None:
        await docket.add(nothing)(began, probe.TEXT)

    async def many(count: int) -> None:
        for start in range(0, count, 500):
            part = min(500, count - start)
            if GROUPS:
                calls = [docket.call(limited)(0, probe.TEXT, n % GROUPS) for n in range(start, start + part)]
            else:
                calls = [docket.call(nothing)(0, probe.TEXT) for _ in range(part)]
            await docket.add_many(calls)

    async def trip() -> None:
        execution = await docket.add(nothing)(probe.TRIP, probe.TEXT)
        await execution.get_result(timeout=timedelta(seconds=30))

    return SimpleNamespace(one=one, many=many, trip=trip)


def work(url: str) -> None:
    async def serve() -> None:
        async with Docket(url=url) as docket:
            docket.register(nothing)
            docket.register(limited)
            async with Worker(docket, concurrency=50) as worker:
                await worker.run_forever()

    probe.runner()(serve())


if __name__ == "__main__":
    probe.main(producer, work)
