"""A small HTTP server for health checks and metrics.

The server reads one request from each connection, answers the request, and closes the connection.

No HTTP client can block the process: the size of a request, its time and the number of connections are limited. When there are
too many connections, the server closes the oldest connection that has sent no request, because a probe sends its request as soon
as it has connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from coordinator.errors import BadOption

log = logging.getLogger(__name__)
LONGEST_REQUEST = 8192
SECONDS_PER_REQUEST = 5.0
SECONDS_FOR_FIRST_BYTE = 1.0
MAX_CONNECTIONS = 32
JSON = "application/json"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Answer(NamedTuple):
    """The answer to a request: its HTTP status, its content and the type of the content."""

    status: int
    content: bytes
    content_type: str = JSON


AnswerPath = Callable[[bytes], Awaitable[Answer]]  # answers a GET of a path


def parse_endpoint(text: str, option: str = "--health") -> tuple[str, int]:
    """Return host and port of `PORT`, `HOST:PORT` or `[HOST]:PORT`. The host of a bare port is empty: all interfaces.

    Args:
        text: The text.
        option: The option that the text was given for, for error messages.

    Raises:
        BadOption: The text has another form, or the port is not within 1 to 65535.
    """
    found = re.fullmatch(r"(?:(?:\[([^\]]+)\]|([^:\[\]]+)):)?(\d{1,5})", text)
    if found is None or not 1 <= int(found[3]) <= 65535:
        raise BadOption(f"{option} {text!r} is not a port: use 8080 for all interfaces, or 127.0.0.1:8080 for one")
    return found[1] or found[2] or "", int(found[3])


def open_socket(text: str, option: str) -> socket.socket:
    """Return a socket that listens on `PORT` or `HOST:PORT`.

    Args:
        text: The text.
        option: The option that the text was given for, for error messages.

    Raises:
        BadOption: The text has another form, the port is in use, or the host is not an address of this machine.
    """
    host, port = parse_endpoint(text, option)
    try:
        if host:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        with contextlib.suppress(OSError):  # the machine may have no IPv6; a port that is in use fails again below
            if socket.has_dualstack_ipv6():
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, backlog=MAX_CONNECTIONS, dualstack_ipv6=True
                )
        return socket.create_server(("", port), backlog=MAX_CONNECTIONS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadOption(f"{option} {text}: the port is in use by another process: choose a free one") from None
        raise BadOption(f"{option} {text}: can't listen on this address: {error.strerror or error}") from None


@contextlib.asynccontextmanager
async def serve_http(place: str | None, option: str, purpose: str, answer: AnswerPath) -> AsyncGenerator[None, None]:
    """Answer HTTP requests while the context is open.

    Args:
        place: `PORT` or `HOST:PORT`; None serves nothing.
        option: The option that the place was given for, for error messages.
        purpose: The service and its paths, for the log, as in "health checks: /live and /ready".
        answer: Answers a GET of a path.

    Raises:
        BadOption: The port is in use, or the place is not valid.
    """
    if place is None:
        yield
        return
    listening = open_socket(place, option)
    answers = _HttpServer(answer)
    server = await asyncio.start_server(answers.serve, sock=listening, limit=LONGEST_REQUEST)
    what, _, paths = purpose.partition(": ")
    log.info("serving %s at http://%s: %s", what, place if ":" in place else f"0.0.0.0:{place}", paths)
    try:
        yield
    finally:
        server.close()
        answers.close()


class _HttpServer:
    """A server that reads one request from each connection, answers it, and closes the connection."""

    def __init__(self, answer: AnswerPath) -> None:
        self._answer_path = answer
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first
        self._silent: dict[asyncio.Task[None], None] = {}  # the connections that have sent nothing yet

    def close(self) -> None:
        while self._open:
            self._close_oldest()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            self._close_oldest()
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open[task], self._silent[task] = writer, None
        task.add_done_callback(self._forget)

    def _close_oldest(self) -> None:
        """Close the oldest connection that has sent no request, or else the oldest connection, to make room for a new one."""
        oldest = next(iter(self._silent or self._open))
        self._open[
            oldest
        ].transport.abort()  # removed here too, because a task that is cancelled before it begins never runs its clean-up
        oldest.cancel()
        self._forget(oldest)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._silent.pop(task, None)

    async def _read_first_byte(self, reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(SECONDS_FOR_FIRST_BYTE):
            first = await reader.read(1)
        task = asyncio.current_task()
        assert task is not None
        self._silent.pop(task, None)
        return first

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECONDS_PER_REQUEST):
                first = await self._read_first_byte(reader)
                try:
                    head = first + await reader.readuntil(b"\r\n\r\n")
                except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
                    head = b""
                writer.write(await self._answer(head.partition(b"\r\n")[0].split()))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError):
            pass  # the client is slow or gone
        except Exception:
            log.exception("an HTTP request could not be answered")
        finally:
            writer.transport.abort()

    async def _answer(self, request: list[bytes]) -> bytes:
        match request:
            case [b"GET" | b"HEAD", target, _]:
                status, content, kind = await self._answer_path(target.partition(b"?")[0])
            case [_, _, _]:
                status, content, kind = Answer(405, b'{"error": "only GET and HEAD are allowed"}\n')
            case _:
                status, content, kind = Answer(400, b'{"error": "this is not a valid HTTP request"}\n')
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nCache-Control: no-store\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if request[:1] == [b"HEAD"] else content)
