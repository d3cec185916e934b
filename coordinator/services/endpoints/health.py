"""Serve health checks over HTTP (`--health`): GET /live and GET /ready, for Kubernetes, systemd or a load balancer.

A process is live while it makes progress, even while the Redis server can't be reached, because a restart would not help then. A
process is ready from the first answer of the Redis server until the process stops.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from coordinator.services.endpoints.http_server import Answer, serve_http


@dataclass(frozen=True, slots=True)
class Health:
    """The reasons why a process is not live, and why it is not ready. Without such reasons, it is live or ready."""

    not_live: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()

    def __add__(self, other: Health) -> Health:
        return Health(self.not_live + other.not_live, self.not_ready + other.not_ready)


@contextlib.asynccontextmanager
async def serve_health(place: str | None, look: Callable[[], Health]) -> AsyncGenerator[None, None]:
    """Serve health checks while the context is open.

    Args:
        place: `PORT` or `HOST:PORT`; None serves nothing.
        look: Returns the present health.
    """

    async def answer(path: bytes) -> Answer:
        status, body = _found(path, look)
        return Answer(status, json.dumps(body).encode() + b"\n")

    async with serve_http(place, "--health", "health checks: /live and /ready", answer):
        yield


def _found(path: bytes, look: Callable[[], Health]) -> tuple[int, dict[str, object]]:
    if path not in (b"/live", b"/ready"):
        return 404, {"error": "not found: use /live or /ready"}
    health, word = look(), path[1:].decode()
    reasons = health.not_live if word == "live" else health.not_ready
    return (503 if reasons else 200), {word: not reasons, "reasons": list(reasons)}
