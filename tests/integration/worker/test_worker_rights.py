"""A worker whose rights or password are refused for a while, as during a rotation, keeps the outcomes of its runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator.model.policies.retry import Retry
from tests.integration.worker_harness import Bench, bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry

USER = ("ACL", "SETUSER", "rotating", "reset", "on", ">secret", "~*", "&*", "+@all")
REFUSALS = {
    "an ACL reload that takes the right to run scripts": [("ACL", "SETUSER", "rotating", "-eval", "-evalsha")],
    "a rotation of the password": [
        ("ACL", "SETUSER", "rotating", "resetpass", ">other"),
        ("CLIENT", "KILL", "USER", "rotating"),
    ],
}


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", ["returning", "raising", "retrying"])
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
async def test_an_outcome_is_kept_while_the_server_refuses_the_user(
    here: Bench, valkey_server: Server, refusal: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs, started, end = Registry(), asyncio.Event(), asyncio.Event()

    @runs.handler
    async def returning(run: AsyncRun) -> str:
        started.set()
        await end.wait()
        return "kept"

    @runs.handler
    async def raising(run: AsyncRun) -> None:
        started.set()
        await end.wait()
        raise ValueError("the handler's own error")

    @runs.handler(retry=Retry(limit=5, wait=3600.0))
    async def retrying(run: AsyncRun) -> None:
        started.set()
        await end.wait()
        raise ValueError("the handler's own error")

    valkey_server.admin.execute_command(*USER)
    here.worker(runs, url=valkey_server.url.replace("redis://", "redis://rotating:secret@"), lease=60.0)
    id = await here.enqueue(kind)
    async with asyncio.timeout(60):
        await started.wait()
    for command in refusal:
        valkey_server.admin.execute_command(*command)
    with caplog.at_level(logging.ERROR):
        end.set()
        await eventually(lambda: "is refused and will be sent again" in caplog.text, "the outcome to be refused")
    valkey_server.admin.execute_command(*USER)
    wanted = {"returning": "completed", "raising": "failed", "retrying": "delayed"}[kind]
    await eventually(lambda: here.status(id) == wanted, f"the run to be {wanted}")
    counters = here.counters(id)
    assert (counters.attempt, counters.strikes) == (1, 0)
    if kind == "returning":
        assert here.result(id) == "kept"
