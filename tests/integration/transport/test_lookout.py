"""A replaced master of a Sentinel group that does not know it answers as before. Clients that only read or wait leave it, too.

The tests use two servers that are both masters, and a sentinel that names first one and then the other, as after a network
partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.model.address import Address, address
from coordinator.store.script import Command, read
from coordinator.store.transport.topology import sentinel
from coordinator.store.transport.wire import AsyncBell, AsyncWire, Bell, Wire
from tests.clusters import SERVICE, Sentinel
from tests.servers import Server
from tests.waiting import eventually, wait_until

NAME, BELL = "{x:0}:name", "{x:0}:bell"
WHO: Command = read("{x:0}", "GET", NAME)


class Masters:
    """Two masters: `old`, which the sentinel names first, and `new`."""

    def __init__(self, start_server: Callable[[], Server], directory: Path) -> None:
        self.old, self.new = start_server(), start_server()
        self.old.admin.set(NAME, "old")
        self.new.admin.set(NAME, "new")
        self.sentinel = Sentinel("valkey", directory, f"127.0.0.1 {self.old.port}")

    @property
    def address(self) -> Address:
        return address(f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{SERVICE}")

    def replace(self) -> None:
        self.sentinel.admin.execute_command("SENTINEL", "REMOVE", SERVICE)
        self.sentinel.admin.execute_command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", self.new.port, 1)


@pytest.fixture
def masters(start_server: Callable[[], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Masters]:
    monkeypatch.setattr(sentinel, "MASTER_CHECK_SECONDS", 0.1)
    made = Masters(start_server, tmp_path)
    yield made
    made.sentinel.close()


async def test_async_wire_finds_the_new_master_without_an_error(masters: Masters) -> None:
    wire = AsyncWire(masters.address)

    async def asked() -> bool:
        return await wire.ask([WHO]) == [b"new"]

    try:
        assert not await asked()
        masters.replace()
        await eventually(asked, "it asks the new one")
    finally:
        await wire.close()


def test_sync_wire_finds_the_new_master_without_an_error(masters: Masters) -> None:
    wire = Wire(masters.address)
    try:
        assert wire.ask([WHO]) == [b"old"]
        masters.replace()
        wait_until(lambda: wire.ask([WHO]) == [b"new"], "it asks the new one")
    finally:
        wire.close()


async def test_async_bell_moves_to_the_new_master(masters: Masters) -> None:
    bell = AsyncBell(masters.address)
    try:
        assert await bell.wait([BELL], 0.05) is None
        masters.replace()
        masters.new.admin.lpush(BELL, "1")

        async def rung() -> bool:
            return await bell.wait([BELL], 0.05) is not None

        await eventually(rung, "the bell rings")
    finally:
        await bell.close()


def test_sync_bell_moves_to_the_new_master(masters: Masters) -> None:
    bell = Bell(masters.address)
    try:
        assert bell.wait([BELL], 0.05) is None
        masters.replace()
        masters.new.admin.lpush(BELL, "1")
        wait_until(lambda: bell.wait([BELL], 0.05), "the bell rings")
    finally:
        bell.close()
