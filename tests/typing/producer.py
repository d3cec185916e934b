# pyright: strict
"""Code as a producer writes it, checked by mypy and pyright in their strictest mode. The code is never run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, assert_type

from coordinator import AsyncClient, AsyncHandle, Client, Handle, Overview, RunView, ScheduleView, Status, WorkerView
from workers import AsyncRun, Registry, Run

runs = Registry()


@runs.handler
async def research(run: AsyncRun, topic: str) -> str:
    return topic


@runs.handler(schema=2)
def report(run: Run, topic: str) -> int:
    return len(topic)


def topic_of(inputs: Mapping[str, Any]) -> str:
    return str(inputs["topic"])


def produce(topics: list[str]) -> None:
    with Client() as client:
        handle = client.enqueue(research.inputs("tides"), key="tides-today", meta={"caller_id": "u1"})
        assert_type(handle, Handle[str])
        assert_type(handle.id, str)
        assert_type(handle.created, bool)
        assert_type(handle.result(timeout=600), str)
        for one in client.enqueue_many(research.inputs(topic) for topic in topics):
            assert_type(one.result(), str)
        client.enqueue_many((report.inputs(topic) for topic in topics), key=topic_of, priority=5)
        by_name = client.enqueue("research", {"topic": "tides"})
        assert_type(by_name, Handle[Any])
        client.enqueue_many(("research", {"topic": topic}) for topic in topics)
        for ended in client.wait([handle], timeout=60):
            assert_type(ended.result(), str)
        assert_type(handle.view(), RunView)
        assert_type(handle.wait(), Status)
        assert_type(handle.send("approval", {"ok": True}, key="answer-1"), bool)
        assert_type(handle.cancel(grace=5), Status)
        assert_type(handle.cancel_tree(grace=5), dict[str, Status])
        assert_type([told.how for told in handle.view().story], list[str])
        assert_type(handle.position(), int | None)
        handle.revive(from_start=True)
        assert_type(client.handle("some-id"), Handle[Any])
        assert_type(client.list(status="failed", kind="research", limit=10), list[RunView])
        assert_type(client.workers(), list[WorkerView])
        assert_type(client.status(), Overview)
        client.schedule(
            "nightly", "0 2 * * *", report.inputs("tides"), tz="Europe/Berlin", overlap="skip", catch_up="latest"
        )
        client.schedule("often", timedelta(minutes=5), "research", {"topic": "tides"}, jitter=10)
        assert_type(client.schedules(), list[ScheduleView])
        client.pause_schedule("nightly")


async def produce_async(topics: list[str]) -> None:
    async with AsyncClient() as client:
        handle = await client.enqueue(report.inputs("tides"), priority=5, delay=60, expires=3600)
        assert_type(handle, AsyncHandle[int])
        assert_type(await handle.result(timeout=600), int)
        for one in await client.enqueue_many(report.inputs(topic) for topic in topics):
            assert_type(await one.result(), int)
        assert_type(await client.enqueue("research", {"topic": "tides"}), AsyncHandle[Any])
        async for ended in client.wait([handle], timeout=60):
            assert_type(await ended.result(), int)
        assert_type(await handle.view(), RunView)
        assert_type(await client.list(Status.QUEUED), list[RunView])
        assert_type(await client.status(), Overview)
        await client.schedule("hourly", "every 1h", report.inputs("tides"))
        assert_type(await client.schedules(), list[ScheduleView])
