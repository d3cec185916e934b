"""The health endpoint answers every request, and no request can block the process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from coordinator.config import Settings
from coordinator.errors import BadOption
from coordinator.services.daemon import Coordinator
from coordinator.services.endpoints import http_server
from coordinator.services.endpoints.health import Health, serve_health
from coordinator.services.endpoints.http_server import parse_endpoint
from tests.servers import Server, free_port
from tests.waiting import eventually


async def ask(port: int, request: bytes) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body) if body else None
    finally:
        writer.close()


async def get(port: int, path: str) -> tuple[int, Any]:
    return await ask(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
async def port() -> AsyncIterator[int]:
    found = free_port()
    async with serve_health(f"127.0.0.1:{found}", lambda: Health(not_ready=("one", "two"))):
        yield found


async def test_answer_lists_the_reasons(port: int) -> None:
    assert await get(port, "/live") == (200, {"live": True, "reasons": []})
    assert await get(port, "/ready?verbose") == (503, {"ready": False, "reasons": ["one", "two"]})


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /live HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nX: " + b"x" * 3 * http_server.LONGEST_REQUEST + b"\r\n\r\n", 400),
        (b"HEAD /live HTTP/1.1\r\n\r\n", 200),
    ],
    ids=["another-path", "another-method", "no-http", "too-long", "head"],
)
async def test_other_requests_get_an_http_status(port: int, request_: bytes, status: int) -> None:
    assert (await ask(port, request_))[0] == status


async def test_silent_connection_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SECONDS_PER_REQUEST", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /live")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 10)
    writer.close()


async def test_number_of_silent_connections_is_limited(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reject connections beyond the limit immediately. When the first connections have timed out, others are answered."""
    monkeypatch.setattr(http_server, "SECONDS_PER_REQUEST", 1.0)
    crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * http_server.MAX_CONNECTIONS)]

    async def turned_away(reader: asyncio.StreamReader) -> bool:
        try:
            return await reader.read(1) == b""
        except ConnectionResetError:
            return True

    assert all(await asyncio.wait_for(asyncio.gather(*(turned_away(reader) for reader, _ in crowd)), 30))
    assert (await get(port, "/live"))[0] == 200
    for _, writer in crowd:
        writer.close()


async def test_silent_connections_do_not_starve_a_probe(port: int) -> None:
    """Each probe is answered while three times as many connections as are allowed say nothing."""
    crowd = []
    try:
        for _ in range(6):
            crowd += [await asyncio.open_connection("127.0.0.1", port) for _ in range(http_server.MAX_CONNECTIONS // 2)]
            async with asyncio.timeout(http_server.SECONDS_FOR_FIRST_BYTE * 10):
                assert (await get(port, "/live"))[0] == 200
        oldest, _ = crowd[0]
        assert await oldest.read() == b"", "the oldest silent connection was closed"
    finally:
        for _, writer in crowd:
            writer.transport.abort()


async def test_a_connection_that_begins_a_request_is_kept_while_silent_ones_are_closed(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    crowd = []
    try:
        writer.write(b"GET /live HTT")
        for _ in range(http_server.MAX_CONNECTIONS + 5):
            crowd.append(await asyncio.open_connection("127.0.0.1", port))  # noqa: PERF401  # aborted also after an error
        writer.write(b"P/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    finally:
        for _, one in (*crowd, (reader, writer)):
            one.transport.abort()


async def test_a_connection_without_a_first_byte_is_closed_early(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SECONDS_PER_REQUEST", 3600.0)
    monkeypatch.setattr(http_server, "SECONDS_FOR_FIRST_BYTE", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            assert await reader.read() == b""
    finally:
        writer.close()


async def test_used_port_is_reported_in_one_sentence() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        for place in (str(port), f"127.0.0.1:{port}"):
            with pytest.raises(BadOption, match="the port is in use by another process: choose a free one"):
                async with serve_health(place, Health):
                    pass


async def test_port_without_a_host_listens_on_all_interfaces() -> None:
    port = free_port()
    async with serve_health(str(port), Health):
        assert (await get(port, "/ready"))[0] == 200
        with socket.create_connection((socket.gethostbyname(socket.gethostname()), port), timeout=5):
            pass


@pytest.mark.parametrize("text", ["", "0", "65536", "http", "127.0.0.1:", ":8080", "::1:8080", "127.0.0.1:80a", "-1"])
def test_invalid_port_is_rejected(text: str) -> None:
    with pytest.raises(BadOption, match="is not a port: use 8080"):
        parse_endpoint(text)


@pytest.mark.parametrize(
    ("text", "found"), [("8080", ("", 8080)), ("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:8080", ("::1", 8080))]
)
def test_endpoint_accepts_a_host_before_the_port(text: str, found: tuple[str, int]) -> None:
    assert parse_endpoint(text) == found


# ---- a coordinator ---------------------------------------------------------------------------------------------------


@pytest.mark.matrix("waits through a timeout")
async def test_coordinator_is_ready_after_the_first_answer_and_live_without_a_server(
    start_server: Callable[..., Server], namespace: str
) -> None:
    server = start_server()
    coordinator = Coordinator(Settings(server.url, namespace))
    assert coordinator.health() == Health(not_ready=("the coordinator has not had an answer from the server yet",))
    running = asyncio.create_task(coordinator.run())
    await eventually(lambda: coordinator.health() == Health(), "it is ready")
    await asyncio.to_thread(server.kill)
    began = [ticking.last_tick_at for ticking in coordinator._loops]
    await eventually(
        lambda: all(t.last_tick_at > at for t, at in zip(coordinator._loops, began, strict=True)), "all have moved on"
    )
    assert coordinator.health() == Health()
    coordinator.stop()
    assert coordinator.health() == Health(not_ready=("the coordinator is stopping",))
    await running


class OffsetClock:
    """The machine's clock plus an offset."""

    ahead = 0.0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead

    def now(self) -> float:
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def asleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # A clock's own sleep.


@pytest.mark.matrix("waits through a timeout")
async def test_coordinator_with_a_hanging_service_is_not_live(valkey_server: Server, namespace: str) -> None:
    clock = OffsetClock()
    coordinator = Coordinator(Settings(valkey_server.url, namespace), clock)
    running = asyncio.create_task(coordinator.run())
    await eventually(lambda: coordinator.health() == Health(), "it is ready")
    (hanging,) = [t for t in coordinator._loops if t.service.name.startswith("retention")]
    entered = asyncio.Event()

    class Hangs:
        name = "retention"

        async def tick(self) -> Any:
            entered.set()
            await asyncio.Event().wait()

    hanging.service = Hangs()
    hanging.ring()
    await entered.wait()
    clock.ahead = 61.0
    for ticking in coordinator._loops:
        ticking.ring()
    others = [ticking for ticking in coordinator._loops if ticking is not hanging]
    await eventually(lambda: all(clock.monotonic() - t.last_tick_at < 60 for t in others), "the others have moved")
    (reason,) = coordinator.health().not_live
    assert reason.startswith("retention has not ticked for 6")
    coordinator.stop()
    await running
