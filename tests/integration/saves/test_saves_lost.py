"""Any save of a run may lose its reply or arrive late, before or after later saves. The next owner finds each message once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

import workers.process.worker
from coordinator.store import scripts
from coordinator.store.transport.wire import AsyncWire
from tests.integration.worker_harness import Bench, bench
from tests.proxy import Matching, Proxy
from tests.resp import words
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry

# The newest tenacity deprecates how the wire builds its back-off.
pytestmark = pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")

UNFINISHED = {"n": "after the last cut"}
Step = Callable[[AsyncRun], Awaitable[None]]


# ---- a run of eight saves ------------------------------------------------------------------------------------------------


async def _first(run: AsyncRun) -> None:
    run.messages.append({"n": 1})
    run.state = {"step": 1, "left": 7}


async def _messages(run: AsyncRun) -> None:
    run.messages.extend([{"n": 2}, {"n": 3}])


async def _outline(run: AsyncRun) -> None:
    run.messages.append({"n": 4})
    await run.phase("outline", _output, 3)


async def _state(run: AsyncRun) -> None:
    run.state["left"] = 4


async def _compaction(run: AsyncRun) -> None:
    run.messages.replace([{"summary": [item["n"] for item in run.messages]}])


async def _back(run: AsyncRun) -> None:
    """Set the earlier state again. It is sent, although its bytes were acknowledged once."""
    run.messages.append({"n": 6})
    run.state["left"] = 7


async def _polish(run: AsyncRun) -> None:
    run.messages.append({"n": 7})
    del run.state["left"]
    await run.phase("polish", _output, 7)


async def _last(run: AsyncRun) -> None:
    run.messages.extend([{"n": 8}, {"n": 9}])
    run.state["step"] = 8


async def _output(number: int) -> dict[str, int]:
    return {"phase": number}


STEPS: list[Step] = [_first, _messages, _outline, _state, _compaction, _back, _polish, _last]
ENDS_BY_ITSELF = (_outline, _polish)  # The end of a phase saves.
SAVES = len(STEPS)


def whole(run: AsyncRun) -> dict[str, Any]:
    """Return everything that a handler finds."""
    phases = sorted(run._draft.phases)
    return {"messages": run.messages.copy(), "state": dict(run.state), "phases": phases}


COMPLETE = {
    "messages": [{"summary": [1, 2, 3, 4]}, {"n": 6}, {"n": 7}, {"n": 8}, {"n": 9}],
    "state": {"step": 8},
    "phases": ["phase:-:outline#0", "phase:-:polish#0"],
}


async def found(run: AsyncRun) -> dict[str, Any]:
    """Return what a resumed run finds. Its phases are not repeated."""
    seen = whole(run)

    async def again() -> Any:
        raise AssertionError("a phase that is kept was run again")

    outputs = [await run.phase("outline", again), await run.phase("polish", again)]
    unfinished = list(run.resumed.unfinished) if run.resumed else None
    return {**seen, "outputs": outputs, "unfinished": unfinished}


def expected(*, unfinished: bool) -> dict[str, Any]:
    return {**COMPLETE, "outputs": [{"phase": 3}, {"phase": 7}], "unfinished": [UNFINISHED] if unfinished else []}


# ---- its saves behind a proxy ------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    made = Proxy(valkey_server.port)
    yield made
    made.close()


@pytest.fixture
async def here(valkey_server: Server, proxy: Proxy, namespace: str) -> AsyncIterator[Bench]:
    """Yield a bench behind the proxy. The proxy outlives the workers, because they leave through it."""
    async with bench(valkey_server.url, namespace) as made:
        for script in scripts.SCRIPTS:
            made.admin.script_load(script.text)  # Each call is then one EVALSHA.
        yield made


@pytest.fixture
def short_trip_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a trip time out after a moment instead of five seconds."""
    monkeypatch.setattr(workers.process.worker, "AsyncWire", partial(AsyncWire, trip_seconds=0.3))


def save(number: int) -> Matching:
    """Return a filter for the save with this sequence number, however often it is sent."""
    sha = scripts.CHECKPOINT.sha.encode()

    def matching(request: bytes) -> bool:
        if sha not in request:
            return False
        size, _, rest = words(request)[7].partition(b":")  # EVALSHA sha 1 at now id token delta
        return int(rest[: int(size)]) == number

    return matching


class Fault:
    """A fault that hits one save. `happened` tells whether it has happened."""

    def __init__(self, proxy: Proxy, kind: str, number: int) -> None:
        self._proxy, self.kind = proxy, kind
        if kind == "late":
            proxy.hold_requests(save(number))
            self._cuts = []
        else:
            # A reply is lost once, and the wire sends the save again; or twice, and the saver sends a new save.
            self._cuts = [proxy.cut_next_reply(save(number)) for _ in range(1 if kind == "cut" else 2)]

    def happened(self) -> bool:
        return all(cut.happened.is_set() for cut in self._cuts) if self._cuts else self._proxy.held > 0


def scripted(fault: Fault, number: int, parked: asyncio.Event, *, last_flush: bool) -> Registry[Any]:
    """Return a first attempt that saves eight times, does not wait for the save with the fault, and waits to be interrupted."""
    runs = Registry()

    @runs.handler(throttle=0.0, grace=0.0)
    async def work(run: AsyncRun) -> Any:
        if run.attempt > 1:
            return await found(run)
        for count, step in enumerate(STEPS, 1):
            await step(run)
            if step in ENDS_BY_ITSELF:
                continue
            if count != number:
                await run.flush()
                continue
            run.checkpoint()
            await eventually(fault.happened, f"save {number} to fail")
        if last_flush:
            await run.flush()
        run.messages.append(UNFINISHED)
        parked.set()
        return await asyncio.Event().wait()

    return runs


@pytest.mark.quick_cases(12)
@pytest.mark.usefixtures("short_trip_timeout")
@pytest.mark.parametrize("ending", ["released", "abandoned"])
@pytest.mark.parametrize("kind", ["cut", "cut twice", "late"])
@pytest.mark.parametrize("number", range(1, SAVES + 1))
async def test_save_with_a_lost_reply_or_a_delay_neither_repeats_nor_loses_messages(here, proxy, number, kind, ending):
    fault, parked = Fault(proxy, kind, number), asyncio.Event()
    # If the last save of a released run has the fault, there is no other save: the release carries its data.
    runs = scripted(fault, number, parked, last_flush=ending == "abandoned")
    worker, task = here.worker(runs, url=proxy.url, lease=600.0)
    id = await here.enqueue("work")
    async with asyncio.timeout(60):
        await parked.wait()
    assert fault.happened()
    if kind == "late" and number % 2:
        proxy.release_requests()  # The other saves arrive when the run has another owner.
        await eventually(lambda: proxy.late_replies, "the late save")
    if ending == "released":
        assert await here.end(worker, task) == 0
    else:
        proxy.refuse()
        proxy.drop()
        assert (await here.abandon(worker)).taken == 1
    here.worker(runs)
    assert await here.outcome(id) == "completed"
    proxy.release_requests()
    if ending == "abandoned":
        proxy.accept()
    assert here.result(id) == expected(unfinished=ending == "released")
    counters = here.counters(id)
    assert (counters.attempt, counters.strikes) == (2, 0)
    if kind == "late":
        await eventually(lambda: proxy.late_replies, "the late save")
        # Other requests of the same pipeline are late as well, for example a claim. The answer to a save is a list of
        # one.
        answers = [reply for reply in proxy.late_replies if reply.startswith(b"*1\r\n*")]
        assert answers, proxy.late_replies
        assert all(b"old" in answer or b"fenced" in answer for answer in answers), proxy.late_replies
