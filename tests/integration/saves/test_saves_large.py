"""A long transcript is resumed in pages: no command blocks the server, and each message is there once.

A command is measured by the processor time that it costs the server, and by the server's own slow log. The log counts wall time, in
which other processes of the machine ran too. So the time for which the kernel says that the server waited for a processor is not
counted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from coordinator.store.transport import observer
from coordinator.store.transport.packets import Packet
from tests.integration.worker_harness import Bench, bench
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry

pytestmark = pytest.mark.matrix("large numbers")

MESSAGES = 10_000
SLOW_MS = 50


@pytest.fixture
def server(start_server: Any) -> Server:
    made: Server = start_server(settings={"slowlog-log-slower-than": str(SLOW_MS * 1000), "slowlog-max-len": "1000"})
    return made


@pytest.fixture
async def here(server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(server.url, namespace) as made:
        yield made


def message(number: int) -> dict[str, Any]:
    """Return a message of about a kilobyte. All messages differ."""
    return {"role": "tool", "tool_call_id": f"call-{number}", "content": f"{number:06d}" * 170}


class Meter:
    """Measures this process's exchanges with a server: the processor time of each in ms, with the scripts that it carried.

    Two exchanges at the same time count for each other, so the result is sometimes too high and never too low.
    """

    def __init__(self, server: Server) -> None:
        self._times = Path(f"/proc/{server.pid}/schedstat")
        self._lock = threading.Lock()
        self.costs: list[tuple[float, list[str]]] = []

    def read(self) -> tuple[float, float]:
        """Return the ms for which the server's thread has run, and the ms for which it was ready and waited for a processor."""
        run, waited, _ = self._times.read_text().split()
        return int(run) / 1e6, int(waited) / 1e6

    def __call__(self, packets: Sequence[Packet]) -> observer.ObservedExchange:
        return _Exchange(
            self, [getattr(getattr(packet.request, "script", None), "name", "a read") for packet in packets]
        )

    def count(self, cost: float, scripts: list[str]) -> None:
        with self._lock:
            self.costs.append((cost, scripts))


class _Exchange:
    def __init__(self, meter: Meter, scripts: list[str]) -> None:
        self._meter, self._scripts = meter, scripts

    def __enter__(self) -> observer.ObservedExchange:
        self._before, _ = self._meter.read()
        return self

    def sent(self) -> None:
        return

    def answered(self, replies: Sequence[Any]) -> None:
        self._meter.count(self._meter.read()[0] - self._before, self._scripts)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


@contextmanager
def metered(server: Server) -> Iterator[Meter]:
    meter = Meter(server)
    observer.install_observer(meter)
    try:
        yield meter
    finally:
        observer.install_observer(None)


@pytest.mark.parametrize("at_once", [1, 100, 1000])
async def test_long_transcript_is_resumed_without_a_slow_command(here, server, at_once):
    """Resume ten megabytes that were saved one by one, by the hundred and by the thousand."""
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
            found.append(list(run.messages) == [message(number) for number in range(MESSAGES)])
            run.messages.append(message(MESSAGES))
            await run.flush()
        await over.wait()
        return len(run.messages)

    worker, task = here.worker(runs)
    id = await here.enqueue("grows")
    await asyncio.wait_for(built.wait(), 90)
    assert here.admin.hlen(here.namespace.keys_of(id).messages(id, "1")) == MESSAGES // at_once
    server.admin.slowlog_reset()
    with metered(server) as meter:
        _, waited = meter.read()
        assert await here.end(worker, task) == 0
        worker, task = here.worker(runs)
        await eventually(lambda: found, "the run to be resumed")
        waited = meter.read()[1] - waited
    slow = [(entry["duration"] / 1000, entry["command"][:60]) for entry in server.admin.slowlog_get(1000)]
    over.set()
    assert await here.outcome(id) == "completed"
    assert here.result(id) == MESSAGES + 1
    assert found == [True], "the transcript is another"
    pages = [cost for cost, scripts in meter.costs if "load" in scripts]
    assert len(pages) > 10, "it came in pages of a megabyte"
    assert max(meter.costs)[0] <= SLOW_MS, f"{max(meter.costs)} of {len(meter.costs)} exchanges"
    own = [(took - waited, command) for took, command in slow]
    assert [one for one in own if one[0] > SLOW_MS] == [], f"the server stood in line for {waited:.0f} ms: {slow}"
    print(f"{len(pages)} pages, the dearest {max(pages):.1f} ms of the server's time, {waited:.0f} ms in line")
