"""Promise 7: the cost of a checkpoint does not grow with the run. A save sends the new data and a small overhead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator.encoding.codec import encode
from coordinator.store import scripts
from tests.integration.worker_harness import Bench, bench
from tests.servers import Server
from workers import AsyncRun, Registry

pytestmark = pytest.mark.promise(7)

SIZES = (100, 400, 1600)
BESIDE = 400  # This is the overhead of each save in bytes, without the message itself.
LARGE = "s" * 100_000


@pytest.fixture
def server(start_server: Any) -> Server:
    """Return a server that receives bytes from this test only."""
    made: Server = start_server()
    for script in scripts.SCRIPTS:
        made.admin.script_load(script.text)
    return made


@pytest.fixture
async def here(server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(server.url, namespace) as made:
        yield made


def message(number: int) -> dict[str, Any]:
    """Return a message of about a kilobyte. All messages differ."""
    return {"role": "tool", "tool_call_id": f"call-{number}", "content": f"{number:06d}" * 160}


@pytest.mark.parametrize("state", ["", LARGE], ids=["without a state", "with a state of 100 kB that stays"])
async def test_size_of_a_save_does_not_grow_with_the_transcript(here, server, state):
    runs, sent, over = Registry(), {}, asyncio.Event()

    def received() -> int:
        return int(server.admin.info("stats")["total_net_input_bytes"])

    @runs.handler(throttle=0.0)
    async def grows(run: AsyncRun) -> int:
        before = received()
        if state:
            run.state["large"] = state
        for number in range(max(SIZES)):
            run.messages.append(message(number))
            await run.flush()
            if number + 1 in SIZES:
                sent[number + 1] = received() - before
        over.set()
        return len(run.messages)

    here.worker(runs)
    id = await here.enqueue("grows")
    await over.wait()  # Polling for the status sends bytes, too.
    assert await here.outcome(id) == "completed"
    for size in SIZES:
        own = len(state) + sum(len(encode(message(number), "a message")) for number in range(size))
        beside = (sent[size] - own) / size
        print(f"{size} messages: {sent[size]:,} bytes were sent, {beside:.0f} for each save beside its message")
        assert 0 < beside < BESIDE
