"""The feed on real servers: changes of runs reach it as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from coordinator import AsyncClient, Refused
from coordinator.client.operations import lists as list_operations
from coordinator.config import address
from coordinator.feed import feed as feed_module
from coordinator.feed.events import RunEvent
from coordinator.feed.feed import Batch, Feed
from coordinator.feed.looks import look_at
from coordinator.feed.watcher import Watcher
from coordinator.store.rights import acl
from coordinator.store.transport.wire import watch_keys
from tests.conftest import StartServer
from tests.waiting import eventually
from workers import Registry, Run
from workers.testing import worker

HANG = 30.0


def registry() -> Registry[None]:
    runs: Registry[None] = Registry()

    @runs.handler
    def greet(run: Run[None]) -> str:
        return "hello"

    @runs.handler
    def breaks(run: Run[None]) -> str:
        raise ValueError("out of tides")

    return runs


@asynccontextmanager
async def following(client: AsyncClient) -> AsyncGenerator[list[Batch], None]:
    """Collect the batches of a feed in a list, which has the first batch already."""
    found: list[Batch] = []

    async def collect() -> None:
        async with aclosing(Feed(client).batches()) as batches:
            async for batch in batches:
                found.append(batch)  # noqa: PERF401  # the test looks at it meanwhile

    task = asyncio.create_task(collect())
    try:
        await eventually(lambda: found or task.done(), "the first batch", HANG)
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def events(batches: list[Batch]) -> list[RunEvent]:
    return [event for batch in batches for event in batch.events]


def statuses(batches: list[Batch], run: str) -> list[str]:
    return [str(event.status) for event in events(batches) if event.run == run]


async def test_feed_tells_each_change_of_a_run(real_url: str, namespace: str) -> None:
    async with AsyncClient(real_url, namespace) as client, following(client) as batches:
        later = await client.enqueue("greet", delay=3600)
        await eventually(lambda: statuses(batches, later.id) == ["delayed"], "the delayed run", HANG)
        await later.cancel()
        await eventually(lambda: statuses(batches, later.id) == ["delayed", "cancelled"], "its cancel", HANG)
        await later.revive()
        await eventually(lambda: statuses(batches, later.id)[2:] == ["queued"], "its revival", HANG)
        assert events(batches)[-1].cause == "revive"


def test_feed_tells_the_attempts_of_a_worker(real_url: str) -> None:
    with worker(registry(), real_url) as plain:

        async def main() -> None:
            async with AsyncClient(real_url, "testing") as client, following(client) as batches:
                good, bad = plain.enqueue("greet"), plain.enqueue("breaks")
                await eventually(lambda: statuses(batches, good.id)[-1:] == ["completed"], "completed", HANG)
                await eventually(lambda: statuses(batches, bad.id)[-1:] == ["failed"], "failed", HANG)
                assert statuses(batches, good.id) == ["queued", "running", "completed"]
                (running,) = (e for e in events(batches) if e.run == good.id and e.status == "running")
                assert running.worker
                assert running.attempt == 1

        asyncio.run(main())


async def test_feed_that_is_followed_again_reports_the_changes_in_between(real_url: str, namespace: str) -> None:
    """The watcher follows its feed again after an error that nobody expected."""
    async with AsyncClient(real_url, namespace) as client, asyncio.timeout(HANG):
        feed = Feed(client)
        async with aclosing(feed.batches()) as batches:
            assert not (await anext(batches)).gap
            run = await client.enqueue("greet")
            while run.id not in feed.looks:
                await anext(batches)
        await run.cancel()
        async with aclosing(feed.batches()) as batches:
            batch = await anext(batches)
    assert batch.gap
    assert [(event.run, event.status) for event in batch.events] == [(run.id, "cancelled")]


async def test_feed_goes_on_after_a_restart_of_the_server(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    async with AsyncClient(server.url, namespace, timeout=1.0) as client, following(client) as batches:
        before = await client.enqueue("greet")
        await eventually(lambda: statuses(batches, before.id) == ["queued"], "the run before", HANG)
        server.kill()
        await eventually(lambda: any(batch.error for batch in batches), "the outage", HANG)
        server.restart()
        await eventually(lambda: batches[-1].gap and not batches[-1].error, "the next connection", HANG)
        after = await client.enqueue("greet")
        await eventually(lambda: statuses(batches, after.id) == ["queued"], "the run after", HANG)


async def test_feed_polls_where_the_server_reports_nothing(
    real_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> AsyncGenerator[list[str], None]:
        if real_url:
            raise Refused("not here")
        yield []

    monkeypatch.setattr(feed_module, "watch_keys", refuse)
    with worker(registry(), real_url, concurrency=2):
        async with AsyncClient(real_url, "testing") as client, following(client) as batches:
            await eventually(lambda: len(batches) > 2, "several polls", HANG)
            assert not any(batch.error for batch in batches)


async def test_read_only_user_gets_the_feed_and_a_user_without_the_right_is_refused(
    start_server: StartServer, namespace: str
) -> None:
    server = start_server()
    async with AsyncClient(server.url, namespace) as producer:
        before = await producer.enqueue("greet")
        name, *rules = acl("read-only", namespace)
        server.admin.execute_command("ACL", "SETUSER", name, *rules)
        url = server.url.replace("redis://", f"redis://{name}:PASSWORD@")
        async with AsyncClient(url, namespace) as reader, following(reader) as batches:
            run = await producer.enqueue("greet")
            await eventually(lambda: statuses(batches, run.id) == ["queued"], "the run", HANG)
            assert statuses(batches, before.id) == []
        server.admin.execute_command("ACL", "SETUSER", name, "-client|tracking")
        with pytest.raises(Refused, match="does not report changes"):
            await anext(watch_keys(address(url), ["{" + namespace + ":0}:run:"]))


async def test_store_in_memory_reports_no_keys() -> None:
    with pytest.raises(Refused, match="in memory"):
        await anext(watch_keys(address("memory://x"), ["a"]))


async def test_silent_connection_is_tested_and_kept(real_url: str, namespace: str) -> None:
    prefix = "{" + namespace + ":0}:run:"
    async with (
        AsyncClient(real_url, namespace) as client,
        aclosing(watch_keys(address(real_url), [prefix], 0.05)) as keys,
    ):
        await anext(keys)
        pause = asyncio.create_task(client.handle((await client.enqueue("greet")).id).view())
        await pause
        (key,) = await anext(keys)
        assert key.startswith(prefix)
        waiting = asyncio.ensure_future(anext(keys))
        done, _ = await asyncio.wait([waiting], timeout=0.3)  # several pings
        assert not done
        id = (await client.enqueue("greet")).id
        assert (await waiting) == [prefix + id]


async def test_many_viewers_share_one_watcher(real_url: str, namespace: str) -> None:
    async with AsyncClient(real_url, namespace) as client:
        watcher = Watcher(client)
        calls = 0
        do = client._do

        async def counted(operation: Callable[..., object], *arguments: object) -> object:
            nonlocal calls
            calls += 1
            return await do(operation, *arguments)  # type: ignore[arg-type]

        client._do = counted  # type: ignore[method-assign,assignment]
        viewers = [watcher.boards() for _ in range(50)]
        boards = await asyncio.gather(*(anext(viewer) for viewer in viewers))
        assert all(board is boards[0] for board in boards)
        assert watcher.viewers == 50
        assert calls < 25
        run = await client.enqueue("greet")

        async def sees() -> bool:
            board = await anext(viewers[7])
            return any(event.run == run.id for event in board.events)

        await eventually(sees, "the run on the board", HANG)
        for viewer in viewers:
            await viewer.aclose()
        assert watcher.viewers == 0
        assert watcher._task is None


@pytest.mark.matrix("waits through a timeout")
@pytest.mark.parametrize("broken", [list_operations.count, look_at])
async def test_watcher_continues_after_an_error_that_nobody_expected(
    real_url: str, namespace: str, caplog: pytest.LogCaptureFixture, broken: Callable[..., object]
) -> None:
    """A value that the code can't read must not leave all later viewers with an old board."""
    async with AsyncClient(real_url, namespace) as client:
        do, failures = client._do, 0

        async def failing(operation: Callable[..., object], *arguments: object) -> object:
            nonlocal failures
            if operation is broken and failures < 2:
                failures += 1
                raise ValueError("a damaged field")
            return await do(operation, *arguments)  # type: ignore[arg-type]

        client._do = failing  # type: ignore[method-assign,assignment]
        watcher, errors = Watcher(client), set[str]()
        show = watcher._show

        def shown() -> None:  # a viewer may miss an error, because it gets only the newest board
            errors.add(watcher.board.error)
            show()

        watcher._show = shown  # type: ignore[method-assign]
        async with aclosing(watcher.boards()) as boards:

            async def recovers() -> bool:
                async with asyncio.timeout(HANG):
                    board = await anext(boards)
                return failures == 2 and board.overview is not None and not board.error

            await eventually(recovers, "a board without an error", HANG)
            ids = set[str]()

            async def sees() -> bool:
                ids.add(
                    (await client.enqueue("greet")).id
                )  # the feed may not have begun again when the first one is enqueued
                async with asyncio.timeout(HANG):
                    board = await anext(boards)
                return any(event.run in ids for event in board.events)

            await eventually(sees, "a run on the board", HANG)
        assert any("ValueError" in error for error in errors)
        assert "a damaged field" in caplog.text
