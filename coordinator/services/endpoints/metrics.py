"""Serve metrics over HTTP (`--metrics`): GET /metrics, in the text form of Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from coordinator.clock import Clock
from coordinator.metrics.samples import CONTENT_TYPE, Samples, render, require_prometheus
from coordinator.services.endpoints.http_server import Answer, serve_http

FRESH_SECONDS = (
    1.0  # scrapes within this time get the same values, so that many scrapers cost the server no more than one
)


@contextlib.asynccontextmanager
async def serve_metrics(
    place: str | None, gather: Callable[[], Awaitable[Samples]], clock: Clock
) -> AsyncGenerator[None, None]:
    """Serve metrics while the context is open.

    Args:
        place: `PORT` or `HOST:PORT`; None serves nothing.
        gather: Returns the present values.
        clock: The clock.

    Raises:
        BadOption: If prometheus_client is not installed, or the place is not valid.
    """
    if place is not None:
        require_prometheus()
    lock, last = asyncio.Lock(), (b"", float("-inf"))

    async def answer(path: bytes) -> Answer:
        nonlocal last
        if path not in (b"/", b"/metrics"):
            return Answer(404, b'{"error": "not found: use /metrics"}\n')
        async with lock:
            if clock.monotonic() - last[1] > FRESH_SECONDS:
                last = render(await gather()), clock.monotonic()
        return Answer(200, last[0], CONTENT_TYPE)

    async with serve_http(place, "--metrics", "metrics: /metrics", answer):
        yield
