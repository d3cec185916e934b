"""Serve the application alone, as `coordinator web` does: the HTTP API under /api, behind a gate."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from coordinator.client.async_client import AsyncClient
from coordinator.config import Settings
from coordinator.errors import BadOption
from coordinator.web.auth import TokenFile
from coordinator.web.gate import LOOPBACK, Gate, role_of_caller
from coordinator.web.problems import HANDLERS
from coordinator.web.rest.app import api

log = logging.getLogger(__name__)
SECONDS_TO_STOP = 5  # for requests that are still open when the process is asked to stop


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Where and to whom the application is served.

    Attributes:
        host: The address to listen at.
        port: The port to listen at; 0 takes a free one.
        tokens: The callers; None allows every caller, and then the host must be a loopback address.
        allow_changes: Whether callers may change runs.
        hosts: Further host names under which browsers may call the server.

    Raises:
        BadOption: There is no token file, and the host is not a loopback address.
    """

    host: str = "127.0.0.1"
    port: int = 8700
    tokens: TokenFile | None = None
    allow_changes: bool = False
    hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.tokens is None and self.host not in LOOPBACK:
            raise BadOption(f"--host {self.host} is open to other machines: give a token file with --auth")


def standalone(client: AsyncClient, settings: WebSettings) -> ASGIApp:
    """Return the application that `coordinator web` serves."""
    rest = api(client, access=role_of_caller)
    app = Starlette(routes=[Mount("/api", rest)], exception_handlers=HANDLERS)
    return Gate(
        app,
        hosts=[settings.host, *settings.hosts],
        tokens=settings.tokens,
        allow_changes=settings.allow_changes,
    )


async def serve(settings: Settings, web: WebSettings) -> None:
    """Serve the application until SIGTERM or SIGINT.

    Raises:
        BadOption: The port is in use, or the host is not one of this machine.
    """
    listener = _open_socket(web.host, web.port)
    async with AsyncClient(settings.url, settings.namespace, settings.timeout) as client:
        config = uvicorn.Config(
            standalone(client, web),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=SECONDS_TO_STOP,
        )
        server = _Server(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        host, port = listener.getsockname()[:2]
        log.info("web server started: http://%s:%d/", f"[{host}]" if ":" in host else host, port)
        await server.serve([listener])


class _Server(uvicorn.Server):
    """A server that leaves signals to the code around it. Uvicorn would raise them again after the server has stopped."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    def stop(self) -> None:
        """Stop accepting requests, let open requests finish, and end."""
        self.should_exit = True


def _open_socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadOption(f"port {port} is in use by another process: choose a free one with --port") from None
        raise BadOption(f"can't listen at {host} port {port}: {error.strerror or error}") from None
