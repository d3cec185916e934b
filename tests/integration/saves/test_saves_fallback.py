"""The server restarts with an old append-only file while the owner lives: the owner sends everything again, or is stopped."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.store.plans import coordinators as coordinator_plans
from tests.integration.saves.test_saves_lost import (
    COMPLETE,
    ENDS_BY_ITSELF,
    SAVES,
    STEPS,
    UNFINISHED,
    expected,
    found,
    whole,
)
from tests.integration.worker_harness import Bench, bench, performing
from tests.servers import Server
from tests.waiting import eventually
from workers import AsyncRun, Registry
from workers.handlers.facts import Stopped

# The newest tenacity deprecates how the wire builds its back-off.
pytestmark = pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")

PROMPT = {
    "appendfsync": "no",
    "auto-aof-rewrite-percentage": "0",
}  # Everything that is acknowledged is in the file, and the file only grows.


@pytest.fixture
def server(start_server: Any) -> Server:
    made: Server = start_server(settings=PROMPT)
    return made


@pytest.fixture
async def here(server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(server.url, namespace) as made:
        yield made


class Backup:
    """A copy of a server's files at one moment. `restore` restarts the server with them."""

    def __init__(self, server: Server, place: Path) -> None:
        self._server, self._place = server, place
        self._files = server.directory / "appendonlydir"
        shutil.copytree(self._files, place)

    def restore(self) -> None:
        self._server.kill()
        shutil.rmtree(self._files)
        shutil.copytree(self._place, self._files)
        self._server.start()


class Steps:
    """A run whose steps the test allows one by one, in any attempt."""

    def __init__(self) -> None:
        self.done = 0
        self.allowed = 0
        self.ends: list[BaseException] = []
        self.runs: Registry[Any] = Registry()
        self.runs.handler(kind="work", throttle=0.0, grace=0.0)(self._work)

    async def _work(self, run: AsyncRun) -> Any:
        if run.state.get("step") == SAVES:
            return await found(run)
        try:
            await self._go_on(run)
        except BaseException as error:
            self.ends.append(error)
            raise
        return whole(run)

    async def _go_on(self, run: AsyncRun) -> None:
        for count, step in enumerate(STEPS, 1):
            if count <= run.state.get("count", 0):
                continue
            await eventually(partial(self._is_permitted, count), f"permission for step {count}")
            run.state["count"] = count
            await step(run)
            run.state["count"] = count  # The first step sets the whole state.
            if step not in ENDS_BY_ITSELF:
                await run.flush()
            self.done = count
        run.messages.append(UNFINISHED)
        await eventually(lambda: self.allowed > SAVES, "permission to end")

    def _is_permitted(self, count: int) -> bool:
        return self.allowed >= count

    async def until(self, count: int) -> None:
        """Allow the steps up to this one."""
        self.allowed = count
        await eventually(lambda: self.done >= count, f"step {count}", timeout=60)


def head(here: Bench, id: str) -> CheckpointHead:
    return CheckpointHead.parse(here.admin.hget(here.namespace.keys_of(id).ckpt(id), "head"))


def counted(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "state": {**value["state"], "count": SAVES}}


DONE = counted({**COMPLETE, "messages": [*COMPLETE["messages"], UNFINISHED]})


@pytest.mark.quick_cases(9)
@pytest.mark.parametrize("ending", ["released", "abandoned", "completed"])
@pytest.mark.parametrize(
    ("saved", "lost"),
    [(1, 1), (1, 7), (2, 3), (3, 1), (4, 1), (4, 2), (5, 3), (6, 1), (7, 1)],
)
async def test_owner_resends_everything_to_a_server_with_an_old_file(here, server, tmp_path, saved, lost, ending):
    """Copy the files after save number `saved`, and restore them after `lost` more saves."""
    steps = Steps()
    worker, task = here.worker(steps.runs, lease=600.0)  # Only the first heartbeat is sent.
    id = await here.enqueue("work")
    await steps.until(saved)
    backup, before = Backup(server, tmp_path / "old"), head(here, id)
    await steps.until(saved + lost)
    backup.restore()
    assert head(here, id) == before, "the files are those of then"
    await steps.until(SAVES)
    if saved + lost < SAVES:
        # The data is sent again in a new generation: the fifth step creates one, and the gap another one.
        assert head(here, id).generation == 3
    # Otherwise nothing was saved since then, and the ending is the first call to notice.
    if ending == "released":
        assert await here.end(worker, task) == 0
        here.worker(steps.runs)
    elif ending == "abandoned":
        assert (await here.abandon(worker)).taken == 1
        assert await here.end(worker, task) == 0
        here.worker(steps.runs)
    steps.allowed = SAVES + 1
    assert await here.outcome(id) == "completed"
    # No process has the lost data, so the run continues from what the server has.
    redone = ending == "abandoned" and saved + lost == SAVES
    if redone or ending == "completed":
        assert here.result(id) == DONE
    else:
        assert here.result(id) == counted(expected(unfinished=ending == "released"))
    assert here.counters(id).strikes == 0


async def test_server_that_loses_data_twice_receives_everything_twice(here, server, tmp_path):
    steps = Steps()
    worker, task = here.worker(steps.runs, lease=600.0)
    id = await here.enqueue("work")
    await steps.until(2)
    first = Backup(server, tmp_path / "first")
    await steps.until(4)
    first.restore()
    await steps.until(6)
    second = Backup(server, tmp_path / "second")
    await steps.until(7)
    second.restore()
    first.restore()
    await steps.until(SAVES)
    first.restore()
    assert await here.end(worker, task) == 0
    keys = here.namespace.keys_of(id)
    transcripts = [key.decode() for key in here.admin.scan_iter(match=keys.messages(id, "*"))]
    assert transcripts == [keys.messages(id, str(head(here, id).generation))], "transcripts of before are gone"
    here.worker(steps.runs)
    assert await here.outcome(id) == "completed"
    assert here.result(id) == counted(expected(unfinished=True))


async def test_old_file_does_not_restore_phases_of_a_finished_turn(here, server, tmp_path):
    runs, acts = Registry(), []
    allowed = 2  # These are turns. Each waits between its phase and its end.

    async def act(turn: int) -> int:
        acts.append(turn)
        return turn

    async def so_far(turn: int) -> bool:
        return allowed > turn

    @runs.handler(throttle=0.0, grace=0.0)
    async def turns(run: AsyncRun) -> Any:
        if run.attempt == 1:
            async for turn in run.loop(limit=10):
                output = await run.phase("act", act, turn)
                await eventually(partial(so_far, turn), f"permission for turn {turn}")
                run.messages.append(output)
        return whole(run)

    def in_turn(turn: int) -> bool:
        return bool(here.admin.hexists(here.namespace.keys_of(id).ckpt(id), f"phase:{turn}:act#0"))

    worker, task = here.worker(runs, lease=600.0)
    id = await here.enqueue("turns")
    await eventually(partial(in_turn, 2), "the phase of turn 2")
    backup = Backup(server, tmp_path / "old")
    allowed = 4
    await eventually(partial(in_turn, 4), "the phase of turn 4")
    backup.restore()
    assert in_turn(2)
    allowed = 5
    await eventually(partial(in_turn, 5), "the phase of turn 5")
    assert await here.end(worker, task) == 0
    here.worker(runs)
    assert await here.outcome(id) == "completed"
    assert here.result(id) == {"messages": [0, 1, 2, 3, 4], "state": {}, "phases": ["phase:5:act#0"]}
    assert acts == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("known", [True, False], ids=["worker known", "worker unknown"])
@pytest.mark.parametrize("saved", [0, 3])
async def test_old_file_from_before_the_claim_stops_the_handler_and_the_run_continues(
    here, server, tmp_path, saved, known
):
    """Continue from what the server has: nothing, or the saves of an earlier attempt."""
    steps, keys = Steps(), here.namespace.keys(0)
    id = await here.enqueue("work")
    if saved:
        worker, task = here.worker(steps.runs)
        await steps.until(saved)
        assert await here.end(worker, task) == 0
        steps.ends.clear()
    here.admin.sadd(keys.paused(), "kind:work")
    unknown = None if known else Backup(server, tmp_path / "old")
    worker, _ = here.worker(steps.runs, lease=2.0)
    await worker.ready.wait()
    backup = unknown or Backup(server, tmp_path / "old")
    here.admin.srem(keys.paused(), "kind:work")
    await here.do(coordinator_plans.ring(keys))
    await performing(worker)
    await steps.until(saved + 2)
    attempts = here.counters(id).attempt
    backup.restore()
    assert here.status(id) == "queued"
    assert here.counters(id).attempt == attempts - 1
    steps.allowed = saved + 3  # The handler saves to a server that does not know this owner.
    await eventually(lambda: steps.ends, "the handler to be stopped")
    assert isinstance(steps.ends[0], (Stopped, asyncio.CancelledError))
    assert here.status(id) == "queued"
    here.admin.srem(keys.paused(), "kind:work")
    await here.do(coordinator_plans.ring(keys))
    steps.allowed = SAVES + 1
    assert await here.outcome(id) == "completed"
    assert here.result(id) == DONE
    counters = here.counters(id)
    assert (counters.attempt, counters.strikes, counters.recoveries) == (attempts, 0, 0)
