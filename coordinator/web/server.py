"""Serve the stand-alone application of `coordinator web`: the page, and the HTTP API under /api, behind a gate."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from coordinator.client.async_client import AsyncClient
from coordinator.config import Settings
from coordinator.errors import BadOption
from coordinator.web.auth import TokenFile
from coordinator.web.gate import LOOPBACK, Gate, role_of_caller
from coordinator.web.mounted import app

log = logging.getLogger(__name__)
SECONDS_TO_STOP = 5  # for requests that are still open when the process is asked to stop


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The settings of `coordinator web`: the address to listen on, and the callers that may use the application.

    Attributes:
        host: The address to listen on.
        port: The port to listen on; 0 picks a free port.
        tokens: The callers; None allows every caller, and then the host must be a loopback address.
        allow_changes: True if callers may change runs.
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


@dataclass(frozen=True, slots=True)
class Standalone:
    """The application that `coordinator web` serves.

    Attributes:
        app: The application, behind its gate.
        close_streams: Ends all streams and waiting requests. Call it when the server stops, because they do not end on their own.
    """

    app: ASGIApp
    close_streams: Callable[[], None]


def standalone(client: AsyncClient, settings: WebSettings) -> Standalone:
    """Return the application that `coordinator web` serves.

    Args:
        client: The client that carries out the requests.
        settings: The settings of the command.
    """
    served = app(client, access=role_of_caller)
    hosts = [settings.host, *settings.hosts]
    gate = Gate(served, hosts=hosts, tokens=settings.tokens, allow_changes=settings.allow_changes)
    return Standalone(gate, served.state.close_streams)


async def serve(settings: Settings, web: WebSettings) -> None:
    """Serve the application until SIGTERM or SIGINT.

    Raises:
        BadOption: The port is in use, or the host is not an address of this machine.
    """
    listener = _open_socket(web.host, web.port)
    async with AsyncClient(settings.url, settings.namespace, settings.timeout) as client:
        site = standalone(client, web)
        server = WebServer(site.app, site.close_streams)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        host, port = listener.getsockname()[:2]
        log.info("web server started: http://%s:%d/", f"[{host}]" if ":" in host else host, port)
        await server.serve([listener])
    log.info("web server stopped")


class WebServer(uvicorn.Server):
    """A uvicorn server without signal handlers. Those of uvicorn would raise the signal again after the server has stopped."""

    def __init__(self, app: ASGIApp, close_streams: Callable[[], None]) -> None:
        """Make a server.

        Args:
            app: The application.
            close_streams: Called when the server stops, to end the requests that would not end on their own.
        """
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=SECONDS_TO_STOP,
            )
        )
        self._close_streams = close_streams

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    def stop(self) -> None:
        """Stop accepting requests, end streams, let other open requests finish, and return from `serve`."""
        self.should_exit = True
        self._close_streams()


def _open_socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadOption(f"port {port} is in use by another process: choose a free one with --port") from None
        raise BadOption(f"can't listen on {host} port {port}: {error.strerror or error}") from None
