"""A long transcript is resumed in pages: no command holds the server up, and each message is there once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from tests.integration.worker_harness import Bench, bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry

MESSAGES = 10_000
SLOW_MS = 50
TRIES = 4


@pytest.fixture
def server(start_server: Any) -> Server:
    made: Server = start_server(settings={"slowlog-log-slower-than": str(SLOW_MS * 1000), "slowlog-max-len": "1000"})
    return made


@pytest.fixture
async def here(server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(server.url, namespace) as made:
        yield made


def message(number: int) -> dict[str, Any]:
    """About a kilobyte, each another."""
    return {"role": "tool", "tool_call_id": f"call-{number}", "content": f"{number:06d}" * 170}


def slow_commands(server: Server) -> list[tuple[float, bytes]]:
    return [(entry["duration"] / 1000, entry["command"][:60]) for entry in server.admin.slowlog_get(1000)]


@pytest.mark.parametrize("at_once", [1, 100, 1000])
async def test_a_long_transcript_is_resumed_without_a_slow_command(here, server, at_once):
    """Ten megabytes; saved one by one, by the hundred and by the thousand."""
    runs, built, over, found = Registry(), asyncio.Event(), asyncio.Event(), []

    @runs.handler(throttle=0.0, grace=0.0)
    async def grows(run: AsyncRun) -> int:
        if run.attempt == 1:
            for number in range(MESSAGES):
                run.messages.append(message(number))
                if (number + 1) % at_once == 0:
                    await run.flush()
            built.set()
        else:
            # each attempt has seen the one before, and added a message
            found.append(list(run.messages) == [message(number) for number in range(MESSAGES + run.attempt - 2)])
            run.messages.append(message(MESSAGES + run.attempt - 2))
            await run.flush()
        await over.wait()
        return len(run.messages)

    worker, task = here.worker(runs)
    id = await here.enqueue("grows")
    await asyncio.wait_for(built.wait(), 90)
    assert here.admin.hlen(here.namespace.keys_of(id).messages(id, "1")) == MESSAGES // at_once
    slow: list[list[tuple[float, bytes]]] = []
    while (
        len(slow) < TRIES and [] not in slow
    ):  # the log counts wall time: a machine with much to do is not the server's fault
        server.admin.slowlog_reset()
        assert await here.end(worker, task) == 0
        count = len(found)
        worker, task = here.worker(runs)
        await eventually(partial(resumed, found, count), "the run to be resumed")
        slow.append(slow_commands(server))
    over.set()
    assert await here.outcome(id) == "completed"
    assert here.result(id) == MESSAGES + len(found)
    assert all(found), "the transcript is another"
    assert [] in slow, f"commands of more than {SLOW_MS} ms: {slow}"


def resumed(found: list[bool], count: int) -> bool:
    return len(found) > count
