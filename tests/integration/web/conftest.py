from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from coordinator import AsyncClient
from coordinator.clock import SystemClock
from coordinator.config import Settings
from coordinator.web import api
from coordinator.web.problems import HANDLERS
from coordinator.web.server import WebServer
from tests.integration.web.handlers import runs
from tests.servers import Server
from workers import Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker


class Site:
    """The API under /api of an application, served by uvicorn in the event loop of the test."""

    def __init__(self, url: str, namespace: str, client: AsyncClient, http: httpx.AsyncClient, app: Starlette) -> None:
        self.url, self.namespace, self.client, self.http, self.app = url, namespace, client, http, app

    async def enqueue(
        self, kind: str, inputs: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> str:
        answer = await self.http.post("/runs", json={"kind": kind, "inputs": inputs or {}}, headers=headers)
        assert answer.status_code in (200, 201), answer.text
        id: str = answer.json()["id"]
        return id


@asynccontextmanager
async def serving(app: Any, close_streams: Callable[[], None]) -> AsyncIterator[str]:
    """Serve an application at a free port of the loopback address, and return its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = WebServer(app, close_streams)
    task = asyncio.get_running_loop().create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stop()
        await task


@pytest.fixture
async def make_site(valkey_server: Server, namespace: str) -> AsyncIterator[Callable[..., Any]]:
    """Return `make_site(**options)`, which serves the API with these options, beside a client and without workers."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> Site:
            client = await stack.enter_async_context(AsyncClient(valkey_server.url, namespace))
            app = api(client, **options)
            mounted = Starlette(routes=[Mount("/api", app)], exception_handlers=HANDLERS)
            url = await stack.enter_async_context(serving(mounted, app.state.streams.close))
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"{url}/api", timeout=60))
            return Site(f"{url}/api", namespace, client, http, app)

        yield make


@pytest.fixture
async def site(make_site: Callable[..., Any]) -> Site:
    """The API without restrictions."""
    found: Site = await make_site()
    return found


@pytest.fixture
async def worker(valkey_server: Server, namespace: str) -> AsyncIterator[None]:
    """A worker of the handlers in this process."""
    async with working(runs, valkey_server.url, namespace):
        yield


@asynccontextmanager
async def working(registry: Registry[Any], url: str, namespace: str) -> AsyncIterator[Worker]:
    worker = Worker(registry, WorkerOptions(Settings(url, namespace), grace=5.0, concurrency=50), clock=SystemClock())
    task = asyncio.get_running_loop().create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task
