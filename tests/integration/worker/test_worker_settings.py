"""Inside a worker, a client without arguments uses the worker's server and namespace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator import AsyncClient, Client
from coordinator.config import current_settings
from coordinator.store.transport.wire import detach
from tests.integration.worker_harness import Bench, bench
from tests.servers import Server
from workers import AsyncRun, Registry, Run, testing
from workers.durable import RedisStore

WRONG = "redis://127.0.0.1:1/0"  # no server listens there


@pytest.fixture
async def here(valkey_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """Return a bench whose environment names another server and another namespace."""
    monkeypatch.setenv("RUNS_URL", WRONG)
    monkeypatch.setenv("RUNS_NAMESPACE", "elsewhere")
    async with bench(valkey_server.url, namespace) as made:
        yield made


def enqueue_leaf(**arguments: Any) -> str:
    with Client(**arguments, timeout=1.0) as client:
        return client.enqueue("leaf").id


async def enqueue_leaf_async() -> str:
    async with AsyncClient(timeout=1.0) as client:
        return (await client.enqueue("leaf")).id


def registry() -> Registry[None]:
    """Return handlers that enqueue a child in all the places where a handler's code runs."""
    runs = Registry()

    @runs.handler
    async def leaf(run: AsyncRun) -> str:
        return "ok"

    @runs.handler(kind="async-handler")
    async def in_handler(run: AsyncRun) -> str:
        return await enqueue_leaf_async()

    @runs.handler(kind="plain-handler")
    def in_plain_handler(run: Run) -> str:
        return enqueue_leaf()

    @runs.handler(kind="async-phase")
    async def in_phase(run: AsyncRun) -> str:
        return await run.phase("child", enqueue_leaf_async)

    @runs.handler(kind="phase-in-a-thread")
    async def in_plain_phase(run: AsyncRun) -> str:
        return await run.phase("child", enqueue_leaf)

    @runs.handler(kind="phase-of-a-plain-handler")
    def in_phase_of_plain_handler(run: Run) -> str:
        return run.phase("child", enqueue_leaf)

    @runs.handler(kind="task-of-its-own")
    async def in_task(run: AsyncRun) -> str:
        return await asyncio.create_task(enqueue_leaf_async())

    return runs


@pytest.mark.parametrize(
    "kind",
    [
        "async-handler",
        "plain-handler",
        "async-phase",
        "phase-in-a-thread",
        "phase-of-a-plain-handler",
        "task-of-its-own",
    ],
)
async def test_client_in_a_handler_uses_the_workers_server(here: Bench, kind: str) -> None:
    here.worker(registry())
    id = await here.enqueue(kind)
    assert await here.outcome(id) == "completed", here.error(id)
    assert await here.outcome(here.result(id)) == "completed"
    assert current_settings.get() is None


async def test_client_in_a_lifespan_uses_the_workers_server(here: Bench) -> None:
    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[AsyncClient]:
        async with AsyncClient(timeout=1.0) as made:
            yield made

    runs = Registry(lifespan=client)

    @runs.handler
    async def leaf(run: AsyncRun) -> str:
        return "ok"

    @runs.handler
    async def parent(run: AsyncRun[AsyncClient]) -> str:
        return (await run.resources.enqueue("leaf")).id

    here.worker(runs)
    id = await here.enqueue("parent")
    assert await here.outcome(id) == "completed", here.error(id)
    assert await here.outcome(here.result(id)) == "completed"


async def test_argument_of_a_client_wins_over_the_worker(here: Bench) -> None:
    runs = Registry()

    @runs.handler
    async def asks(run: AsyncRun) -> list[str]:
        async with AsyncClient(namespace="other") as one, AsyncClient("redis://127.0.0.1:2/0") as two:
            return [f"{each._settings.address} {each._settings.namespace}" for each in (one, two)]

    here.worker(runs)
    id = await here.enqueue("asks")
    assert await here.outcome(id) == "completed", here.error(id)
    worker = here.workers[0][0].options.settings
    assert here.result(id) == [f"{worker.address} other", f"redis://127.0.0.1:2/0 {here.namespace.name}"]


async def test_two_workers_of_one_process_use_each_its_own_namespace(here: Bench, valkey_server: Server) -> None:
    async with bench(valkey_server.url, f"{here.namespace.name}-2") as there:
        for each in (here, there):
            each.worker(registry())
        ids = [(each, await each.enqueue("phase-in-a-thread")) for each in (here, there)]
        for each, id in ids:
            assert await each.outcome(id) == "completed", each.error(id)
            assert await each.outcome(each.result(id)) == "completed"


async def test_store_of_checkpoints_in_a_handler_uses_the_workers_server(here: Bench) -> None:
    runs = Registry()

    @runs.handler
    def opens(run: Run) -> str:
        with RedisStore(timeout=1.0) as store:
            return f"{store._settings.address} {store._settings.namespace}"

    here.worker(runs)
    id = await here.enqueue("opens")
    assert await here.outcome(id) == "completed", here.error(id)
    assert here.result(id) == f"{here.workers[0][0].options.settings.address} {here.namespace.name}"


def test_handler_of_a_testing_worker_uses_its_store_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS_URL", WRONG)
    with testing.worker(registry()) as client:
        for kind in ("async-handler", "phase-of-a-plain-handler"):
            child = client.enqueue(kind).result(timeout=20)
            assert client.handle(child).result(timeout=20) == "ok"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    detach()


def test_handler_that_changed_the_folder_attaches_to_the_workers_embedded_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = registry()

    @runs.handler
    def moves(run: Run) -> str:
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        return enqueue_leaf()

    with testing.worker(runs, "embedded://./data") as client:
        child = client.enqueue("moves").result(timeout=20)
        assert client.handle(child).result(timeout=20) == "ok"
    assert not (folder / "elsewhere" / "data").exists()
