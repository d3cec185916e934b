"""Who asks for the health is answered, and can hold up nobody."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from coordinator.config import Settings
from coordinator.errors import BadOption
from coordinator.services import health
from coordinator.services.daemon import Coordinator
from coordinator.services.health import Health, answering, endpoint
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
    async with answering(f"127.0.0.1:{found}", lambda: Health(not_ready=("one", "two"))):
        yield found


async def test_the_answer_says_what_speaks_against_it(port: int) -> None:
    assert await get(port, "/live") == (200, {"live": True, "reasons": []})
    assert await get(port, "/ready?verbose") == (503, {"ready": False, "reasons": ["one", "two"]})


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /live HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nX: " + b"x" * 3 * health.LONGEST_REQUEST + b"\r\n\r\n", 400),
        (b"HEAD /live HTTP/1.1\r\n\r\n", 200),
    ],
    ids=["another-path", "another-method", "no-http", "too-long", "head"],
)
async def test_other_requests_are_answered_too(port: int, request_: bytes, status: int) -> None:
    assert (await ask(port, request_))[0] == status


async def test_who_says_nothing_is_shown_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SECONDS_PER_REQUEST", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /live")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 10)
    writer.close()


async def test_a_crowd_that_says_nothing_is_bounded_and_passes(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond the limit are turned away at once; when the first ones' time is over, others are answered."""
    monkeypatch.setattr(health, "SECONDS_PER_REQUEST", 1.0)
    crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * health.MAX_CONNECTIONS)]

    async def turned_away(reader: asyncio.StreamReader) -> bool:
        try:
            return await reader.read(1) == b""
        except ConnectionResetError:
            return True

    assert all(await asyncio.wait_for(asyncio.gather(*(turned_away(reader) for reader, _ in crowd)), 30))
    assert (await get(port, "/live"))[0] == 200
    for _, writer in crowd:
        writer.close()


async def test_a_port_that_is_taken_is_said_in_a_sentence() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        for place in (str(port), f"127.0.0.1:{port}"):
            with pytest.raises(BadOption, match="another process has this port: choose a free one"):
                async with answering(place, Health):
                    pass


async def test_a_port_alone_is_all_interfaces() -> None:
    port = free_port()
    async with answering(str(port), Health):
        assert (await get(port, "/ready"))[0] == 200
        with socket.create_connection((socket.gethostbyname(socket.gethostname()), port), timeout=5):
            pass


@pytest.mark.parametrize("text", ["", "0", "65536", "http", "127.0.0.1:", ":8080", "::1:8080", "127.0.0.1:80a", "-1"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="is no port: use 8080"):
        endpoint(text)


@pytest.mark.parametrize(
    ("text", "found"), [("8080", ("", 8080)), ("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:8080", ("::1", 8080))]
)
def test_a_host_may_stand_before_the_port(text: str, found: tuple[str, int]) -> None:
    assert endpoint(text) == found


# ---- a coordinator ---------------------------------------------------------------------------------------------------


@pytest.mark.matrix("waits through a timeout")
async def test_a_coordinator_is_ready_when_it_was_answered_and_live_also_without_its_server(
    start_server: Callable[..., Server], namespace: str
) -> None:
    server = start_server()
    coordinator = Coordinator(Settings(server.url, namespace))
    assert coordinator.health() == Health(not_ready=("the coordinator has not been answered by the server yet",))
    running = asyncio.create_task(coordinator.run())
    await eventually(lambda: coordinator.health() == Health(), "it is ready")
    await asyncio.to_thread(server.kill)
    began = [ticking.moved_at for ticking in coordinator._tickings]
    await eventually(
        lambda: all(t.moved_at > at for t, at in zip(coordinator._tickings, began, strict=True)), "all have moved on"
    )
    assert coordinator.health() == Health()
    coordinator.stop()
    assert coordinator.health() == Health(not_ready=("the coordinator is stopping",))
    await running


class Jumping:
    """The machine's clock, and some."""

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
async def test_a_service_that_hangs_is_not_live(valkey_server: Server, namespace: str) -> None:
    clock = Jumping()
    coordinator = Coordinator(Settings(valkey_server.url, namespace), clock)
    running = asyncio.create_task(coordinator.run())
    await eventually(lambda: coordinator.health() == Health(), "it is ready")
    (hanging,) = [t for t in coordinator._tickings if t.service.name.startswith("retention")]
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
    for ticking in coordinator._tickings:
        ticking.ring()
    others = [ticking for ticking in coordinator._tickings if ticking is not hanging]
    await eventually(lambda: all(clock.monotonic() - t.moved_at < 60 for t in others), "the others have moved")
    (reason,) = coordinator.health().not_live
    assert reason.startswith("retention has not moved for 6")
    coordinator.stop()
    await running
