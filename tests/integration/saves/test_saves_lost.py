"""Any save of a run may lose its reply or arrive late, and then come the next ones: the next owner finds each message once."""

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

# how the wire builds its back-off is deprecated in the newest tenacity
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
    """The state of before: it is sent although its bytes were acknowledged once."""
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
ENDS_BY_ITSELF = (_outline, _polish)  # the end of a phase saves
SAVES = len(STEPS)


def whole(run: AsyncRun) -> dict[str, Any]:
    """Everything that a handler finds."""
    phases = sorted(run._draft.phases)
    return {"messages": run.messages.copy(), "state": dict(run.state), "phases": phases}


COMPLETE = {
    "messages": [{"summary": [1, 2, 3, 4]}, {"n": 6}, {"n": 7}, {"n": 8}, {"n": 9}],
    "state": {"step": 8},
    "phases": ["phase:-:outline#0", "phase:-:polish#0"],
}


async def found(run: AsyncRun) -> dict[str, Any]:
    """What a resumed run finds; its phases are not run again."""
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
    """The proxy outlives the workers: they leave through it."""
    async with bench(valkey_server.url, namespace) as made:
        for script in scripts.SCRIPTS:
            made.admin.script_load(script.text)  # so that each call is one EVALSHA
        yield made


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trip is given up after a moment, and not after five seconds."""
    monkeypatch.setattr(workers.process.worker, "AsyncWire", partial(AsyncWire, trip_seconds=0.3))


def save(number: int) -> Matching:
    """The save of this seq, however often it is sent."""
    sha = scripts.CHECKPOINT.sha.encode()

    def matching(request: bytes) -> bool:
        if sha not in request:
            return False
        size, _, rest = words(request)[7].partition(b":")  # EVALSHA sha 1 at now id token delta
        return int(rest[: int(size)]) == number

    return matching


class Fault:
    """What happens to one save. `struck` says whether it has."""

    def __init__(self, proxy: Proxy, kind: str, number: int) -> None:
        self._proxy, self.kind = proxy, kind
        if kind == "late":
            proxy.hold_requests(save(number))
            self._cuts = []
        else:
            # a reply is lost once: the wire sends the save again; or twice: the saver comes with a new one
            self._cuts = [proxy.cut_next_reply(save(number)) for _ in range(1 if kind == "cut" else 2)]

    def struck(self) -> bool:
        return all(cut.happened.is_set() for cut in self._cuts) if self._cuts else self._proxy.held > 0


def scripted(fault: Fault, number: int, parked: asyncio.Event, *, last_flush: bool) -> Registry[Any]:
    """A first attempt that saves eight times, does not wait for the save that is struck, and then waits to be interrupted."""
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
            await eventually(fault.struck, f"save {number} to be struck")
        if last_flush:
            await run.flush()
        run.messages.append(UNFINISHED)
        parked.set()
        return await asyncio.Event().wait()

    return runs


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("ending", ["released", "abandoned"])
@pytest.mark.parametrize("kind", ["cut", "cut twice", "late"])
@pytest.mark.parametrize("number", range(1, SAVES + 1))
async def test_a_save_that_loses_its_reply_or_is_late_neither_doubles_nor_loses(here, proxy, number, kind, ending):
    fault, parked = Fault(proxy, kind, number), asyncio.Event()
    # a released run whose last save is struck has no other save: its release carries what that one had
    runs = scripted(fault, number, parked, last_flush=ending == "abandoned")
    worker, task = here.worker(runs, url=proxy.url, lease=600.0)
    id = await here.enqueue("work")
    async with asyncio.timeout(60):
        await parked.wait()
    assert fault.struck()
    if kind == "late" and number % 2:
        proxy.release_requests()  # the others arrive when the run has another owner
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
        # what went in the same pipeline is late as well, a claim for example: the answer to a save is a list of one
        answers = [reply for reply in proxy.late_replies if reply.startswith(b"*1\r\n*")]
        assert answers, proxy.late_replies
        assert all(b"old" in answer or b"fenced" in answer for answer in answers), proxy.late_replies
