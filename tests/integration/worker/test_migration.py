"""A change from schema 1 to schema 2 with unfinished runs: they are migrated on resume, stay migrated, and wait if no worker can
migrate them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from coordinator import AsyncClient, Status
from coordinator.config import Settings
from coordinator.model.run import Counters
from tests.waiting import eventually
from workers import AsyncRun, Left, Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker


def first_version(parked: asyncio.Event) -> Registry[None]:
    """Return code that reports when all its data is saved. The end of its phase is saved before."""
    runs = Registry()

    @runs.handler(throttle=0)
    async def grow(run: AsyncRun, word: str) -> str:
        await run.phase("outline", lambda: [word])
        run.messages.append({"text": word})
        run.state["count"] = 1
        await run.flush()
        parked.set()
        await asyncio.Event().wait()
        return "never"

    return runs


def second_version(*, migrating: bool, stay: bool = False) -> Registry[None]:
    runs = Registry()

    @runs.handler(schema=2, throttle=0)
    async def grow(run: AsyncRun, words: list[str]) -> list[Any]:
        outline = await run.phase("outline", lambda: ["made anew"])
        run.state["seen"] = run.state.get("seen", 0) + 1
        await run.flush()
        if stay:
            await asyncio.Event().wait()
        return [
            words,
            outline,
            run.state["amount"],
            [message["content"] for message in run.messages],
            run.state["seen"],
        ]

    if migrating:

        @grow.migration(1)
        def _(left: Left) -> None:
            left.inputs = {"words": [left.inputs["word"]]}
            left.state["amount"] = left.state.pop("count") * 10
            left.messages = [{"content": message["text"]} for message in left.messages]
            left.phases["outline"] = [*left.phases["outline"], "migrated"]

    return runs


async def worked(runs: Registry[None], url: str, namespace: str, until: Any) -> None:
    worker = Worker(runs, WorkerOptions(Settings(url, namespace), grace=0.1))
    task = asyncio.create_task(worker.run())
    try:
        await eventually(until, "the worker has done its part")
    finally:
        worker.stop()
        await task


async def test_run_of_an_older_schema_is_migrated_once(real_url: str, namespace: str) -> None:
    async with AsyncClient(real_url, namespace) as client:
        handle, parked = await client.enqueue("grow", {"word": "tide"}), asyncio.Event()

        async def saved_at_two() -> bool:
            return (await handle.view()).schema == 2

        await worked(first_version(parked), real_url, namespace, parked.is_set)
        await worked(second_version(migrating=True, stay=True), real_url, namespace, saved_at_two)
        # The run is saved at schema 2. A process without the migration continues it, and the changed inputs are still
        # there.
        await worked(second_version(migrating=False), real_url, namespace, handle.result)
        assert await handle.result() == [["tide"], ["tide", "migrated"], 10, ["tide"], 2]


async def test_run_that_no_worker_can_migrate_waits_with_a_reason(real_url: str, namespace: str) -> None:
    async with AsyncClient(real_url, namespace) as client:
        handle, parked = await client.enqueue("grow", {"word": "tide"}), asyncio.Event()

        async def told() -> bool:
            return "schema 1" in (await handle.view()).why

        await worked(first_version(parked), real_url, namespace, parked.is_set)
        await worked(second_version(migrating=False), real_url, namespace, told)
        view = await handle.view()
        assert (view.status, view.counters.strikes, view.attempt) == (Status.QUEUED, 0, 1)
        assert isinstance(view.counters, Counters)


async def test_failing_migration_rejects_the_attempt(real_url: str, namespace: str) -> None:
    broken = second_version(migrating=False)

    @broken.handlers["grow"].migration(1)
    def _(left: Left) -> None:
        raise KeyError("count")

    async with AsyncClient(real_url, namespace) as client:
        handle, parked = await client.enqueue("grow", {"word": "tide"}), asyncio.Event()

        async def rejected() -> bool:
            return (await handle.view()).status is Status.DELAYED

        await worked(first_version(parked), real_url, namespace, parked.is_set)
        await worked(broken, real_url, namespace, rejected)
        view = await handle.view()
        assert view.error is not None
        assert view.error.type == "KeyError"
        assert view.counters.strikes == 0, "no run of the kind has reached its first line here: the deploy is at fault"
