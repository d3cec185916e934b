"""Write ownership: of two workers that execute the same run, only the current owner changes the checkpoints of its graph.

LangGraph's conformance tests have no clauses for two writers. A proposal to add fifteen (the capability `write_ownership`) was not
accepted, so its tests are in no release. The first fifteen tests here ask for the same behaviour, in the order of the proposal:

 1. a claim returns a writer                                    9. a stale owner does not displace the owner's write
 2. the current owner can put                                  10. the same for a special channel, whose last write wins
 3. the current owner can put writes                           11. a stale owner stays stale
 4. the put of a stale owner is refused                        12. ownership is per thread (here: per run)
 5. ... and is not stored                                      13. the new owner can write after the change
 6. a stale owner cannot fork the chain                        14. a repeated write of the owner is not refused
 7. put_writes of a stale owner is refused                     15. reads need no ownership
 8. ... and is not stored

The tests after them are about what the proposal leaves out: the other methods that write, subgraphs, and a stale owner whose call
is under way when the run changes its owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata

from tests.integration.worker_harness import Bench, bench
from tests.waiting import eventually
from workers import AsyncRun, Registry
from workers.durable import Fenced
from workers.integrations.langgraph import RunSaver
from workers.process.worker import Worker

pytestmark = pytest.mark.integration
THREAD = "thread"


class Owners:
    """Runs whose handlers only hand out their checkpointers, and three workers that take the runs from each other.

    Each worker executes one run at a time, so a run that its worker loses goes to another one. No heartbeat tells the first
    worker that it has lost the run: only the server knows.
    """

    def __init__(self, here: Bench) -> None:
        self._here, self._savers = here, asyncio.Queue[tuple[str, RunSaver]]()
        runs = Registry[Any]()

        @runs.handler
        async def own(run: AsyncRun) -> None:
            self._savers.put_nowait((run.id, RunSaver(run)))
            await asyncio.Event().wait()

        self._workers = [here.worker(runs, concurrency=1, lease=600.0, grace=0.0)[0] for _ in range(3)]

    async def claim(self) -> RunSaver:
        """Enqueue a run, and return the checkpointer of its owner."""
        return await self._next(await self._here.enqueue("own"))

    async def take_over(self, stale: RunSaver) -> RunSaver:
        """Let another worker take the run of a checkpointer, and return the checkpointer of the new owner."""
        id = stale._run.id
        await self._here.abandon(self._owner(stale))
        await self._here.make_due(id)  # a run that was lost before waits for a moment
        return await self._next(id)

    def _owner(self, saver: RunSaver) -> Worker:
        token = saver._run.token
        return next(worker for worker in self._workers if any(a.token == token for a in worker.attempts.values()))

    async def _next(self, id: str) -> RunSaver:
        async with asyncio.timeout(60):
            found, saver = await self._savers.get()
        assert found == id
        return saver


@pytest.fixture
async def owners(real_url: str, namespace: str) -> AsyncIterator[Owners]:
    async with bench(real_url, namespace) as here:
        yield Owners(here)


async def put(saver: RunSaver, parent: str = "", step: int = 0, ns: str = "", by_thread: bool = False) -> str:
    """Save a checkpoint, and return its id."""
    config = generate_config(THREAD, checkpoint_ns=ns, **({"checkpoint_id": parent} if parent else {}))
    arguments: Any = config, generate_checkpoint(), generate_metadata(step=step), {}
    stored = await (asyncio.to_thread(saver.put, *arguments) if by_thread else saver.aput(*arguments))
    return str(stored["configurable"]["checkpoint_id"])


def at(id: str, ns: str = "") -> Any:
    return generate_config(THREAD, checkpoint_ns=ns, checkpoint_id=id)


async def ids(saver: RunSaver, ns: str = "") -> list[str]:
    return [one.checkpoint["id"] async for one in saver.alist(generate_config(THREAD, checkpoint_ns=ns))]


async def newest(saver: RunSaver) -> str:
    found = await saver.aget_tuple(generate_config(THREAD))
    assert found is not None
    return found.checkpoint["id"]


async def writes(saver: RunSaver, id: str) -> list[tuple[str, Any]]:
    found = await saver.aget_tuple(at(id))
    assert found is not None
    return [(channel, value) for _, channel, value in found.pending_writes or []]


# ---- the fifteen clauses of the proposal


async def test_claim_returns_a_writer(owners: Owners) -> None:
    assert isinstance(await owners.claim(), RunSaver)


async def test_current_owner_can_put(owners: Owners) -> None:
    owner = await owners.claim()
    assert await put(owner) == await newest(owner)


async def test_current_owner_can_put_writes(owners: Owners) -> None:
    owner = await owners.claim()
    first = await put(owner)
    await owner.aput_writes(at(first), [("ch", "owned")], "task")
    assert await writes(owner, first) == [("ch", "owned")]


@pytest.mark.parametrize("by_thread", [False, True])
async def test_put_of_a_stale_owner_is_refused(owners: Owners, by_thread: bool) -> None:
    stale = await owners.claim()
    await put(stale)
    await owners.take_over(stale)
    with pytest.raises(Fenced, match="taken over"):
        await put(stale, step=1, by_thread=by_thread)


async def test_put_of_a_stale_owner_is_not_stored(owners: Owners) -> None:
    stale = await owners.claim()
    first = await put(stale)
    owner = await owners.take_over(stale)
    with pytest.raises(Fenced):
        await put(stale, step=1)
    assert await ids(owner) == [first]


async def test_stale_owner_cannot_fork_the_chain(owners: Owners) -> None:
    stale = await owners.claim()
    first = await put(stale)
    owner = await owners.take_over(stale)
    second = await put(owner, parent=first, step=1)
    with pytest.raises(Fenced):
        await put(stale, parent=first, step=1)
    assert await newest(owner) == second
    assert await ids(owner) == [second, first]


@pytest.mark.parametrize("by_thread", [False, True])
async def test_writes_of_a_stale_owner_are_refused(owners: Owners, by_thread: bool) -> None:
    stale = await owners.claim()
    arguments: Any = at(await put(stale)), [("ch", "stale")], "task"
    await owners.take_over(stale)
    with pytest.raises(Fenced, match="taken over"):
        await (asyncio.to_thread(stale.put_writes, *arguments) if by_thread else stale.aput_writes(*arguments))


async def test_writes_of_a_stale_owner_are_not_stored(owners: Owners) -> None:
    stale = await owners.claim()
    first = await put(stale)
    owner = await owners.take_over(stale)
    with pytest.raises(Fenced):
        await stale.aput_writes(at(first), [("ch", "stale")], "a task of its own")
    assert await writes(owner, first) == []


@pytest.mark.parametrize("channel", ["ch", "__resume__", "__interrupt__", "__error__"])
async def test_stale_owner_does_not_displace_a_write_of_the_owner(owners: Owners, channel: str) -> None:
    """The first write of a task to a normal channel stays. A write to a special channel is replaced by a later one."""
    stale = await owners.claim()
    first = await put(stale)
    owner = await owners.take_over(stale)
    await owner.aput_writes(at(first), [(channel, "current")], "task")
    with pytest.raises(Fenced):
        await stale.aput_writes(at(first), [(channel, "stale")], "task")
    assert await writes(owner, first) == [(channel, "current")]


async def test_stale_owner_stays_stale(owners: Owners) -> None:
    """Every write is refused, also after the second owner has become stale too."""
    stale = await owners.claim()
    first = await put(stale)
    second = await owners.take_over(stale)
    for step in (1, 2):
        with pytest.raises(Fenced):
            await put(stale, step=step)
    third = await owners.take_over(second)
    for old in (stale, second):
        with pytest.raises(Fenced):
            await put(old, step=3)
    assert await ids(third) == [first]


async def test_ownership_is_per_run(owners: Owners) -> None:
    """Two runs have threads of the same name. They are different threads, with owners of their own."""
    one, other = await owners.claim(), await owners.claim()
    first, second = await put(one), await put(other)
    assert (await ids(one), await ids(other)) == ([first], [second])


async def test_new_owner_can_write_after_the_change(owners: Owners) -> None:
    stale = await owners.claim()
    first = await put(stale)
    owner = await owners.take_over(stale)
    second = await put(owner, parent=first, step=1)
    await owner.aput_writes(at(second), [("ch", "recovered")], "task")
    assert await newest(owner) == second
    assert await writes(owner, second) == [("ch", "recovered")]


async def test_repeated_writes_of_the_owner_are_not_refused(owners: Owners) -> None:
    owner = await owners.claim()
    first = await put(owner)
    for _ in range(2):
        await owner.aput_writes(at(first), [("ch", "value")], "task")
    assert await writes(owner, first) == [("ch", "value")]


async def test_reads_need_no_ownership(owners: Owners) -> None:
    stale = await owners.claim()
    first = await put(stale)
    owner = await owners.take_over(stale)
    second = await put(owner, parent=first, step=1)
    assert await newest(stale) == second
    assert await ids(stale) == [second, first]


# ---- beyond the proposal

CHANGES: dict[str, Callable[[RunSaver], Awaitable[None]]] = {
    "delete_thread": lambda saver: saver.adelete_thread(THREAD),
    "delete_for_runs": lambda saver: saver.adelete_for_runs(["r1"]),
    "copy_thread": lambda saver: saver.acopy_thread(THREAD, "copy"),
    "prune": lambda saver: saver.aprune([THREAD]),
    "prune all": lambda saver: saver.aprune([THREAD], strategy="delete"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_stale_owner_neither_deletes_nor_copies(owners: Owners, change: str) -> None:
    stale = await owners.claim()
    config = generate_config(THREAD)
    for step in range(2):
        config = await stale.aput(config, generate_checkpoint(), generate_metadata(step=step, run_id="r1"), {})
    owner = await owners.take_over(stale)
    before = await ids(owner)
    with pytest.raises(Fenced):
        await CHANGES[change](stale)
    assert await ids(owner) == before
    assert await owner.aget_tuple(generate_config("copy")) is None


async def test_stale_owner_of_a_subgraph_is_refused(owners: Owners) -> None:
    stale = await owners.claim()
    first = await put(stale, ns="child:1")
    owner = await owners.take_over(stale)
    with pytest.raises(Fenced):
        await put(stale, ns="child:1", step=1)
    with pytest.raises(Fenced):
        await stale.aput_writes(at(first, "child:1"), [("ch", "stale")], "task")
    assert await ids(owner, "child:1") == [first]


async def test_stale_owner_does_not_bring_a_deleted_thread_back(owners: Owners) -> None:
    stale = await owners.claim()
    first = await put(stale)
    owner = await owners.take_over(stale)
    await owner.adelete_thread(THREAD)
    with pytest.raises(Fenced):
        await put(stale, parent=first, step=1)
    assert await ids(owner) == []


async def test_writes_that_race_with_the_change_of_owner_are_all_before_it(owners: Owners) -> None:
    """A stale owner writes without a pause. What the new owner reads first is all that the stale one ever stored."""
    stale = await owners.claim()
    stored, last = list[str](), await put(stale)

    async def write_until_refused() -> None:
        nonlocal last
        while True:
            stored.append(last)
            last = await put(stale, parent=last, step=len(stored))

    writing = asyncio.create_task(write_until_refused())
    await eventually(lambda: len(stored) > 2, "the owner to write")
    owner = await owners.take_over(stale)
    seen = await ids(owner)
    with pytest.raises(Fenced):
        await writing
    assert await ids(owner) == seen == list(reversed(stored))


async def test_new_owner_extends_a_history_that_it_did_not_write(owners: Owners) -> None:
    """The new owner sends only changes, and knows nothing of what the old owner has sent."""
    stale = await owners.claim()
    version = stale.get_next_version(None, None)
    checkpoint = generate_checkpoint(channel_values={"ch": ["one"]}, channel_versions={"ch": version})
    config = await stale.aput(generate_config(THREAD), checkpoint, generate_metadata(), {"ch": version})
    owner = await owners.take_over(stale)
    following = owner.get_next_version(version, None)
    checkpoint = generate_checkpoint(channel_values={"ch": ["one", "two"]}, channel_versions={"ch": following})
    await owner.aput(config, checkpoint, generate_metadata(step=1), {"ch": following})
    found = await owner.aget_tuple(generate_config(THREAD))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"ch": ["one", "two"]}
    assert found.parent_config is not None
    assert found.parent_config["configurable"]["checkpoint_id"] == config["configurable"]["checkpoint_id"]
