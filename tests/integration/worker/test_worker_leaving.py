"""A worker shuts down in order, even if data on the server is corrupt or the user's code hangs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from coordinator.store.plans import workers as worker_plans
from tests.integration.worker_harness import HANG, Bench, bench, performing
from tests.servers import Server
from tests.waiting import eventually, next_turn
from workers import AsyncRun, Registry
from workers.attempt.lifecycle import Stage
from workers.liveness.heartbeat import BeatResult


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


def waiting_registry(grace: float = 0.0) -> Registry[Any]:
    runs = Registry()

    @runs.handler(grace=grace)
    async def waits(run: AsyncRun) -> None:
        await asyncio.Event().wait()

    return runs


async def test_corrupt_run_does_not_keep_a_worker_from_shutting_down(here: Bench) -> None:
    """Refuse the release each time: a worker that retries forever would be a busy loop that no signal ends."""
    worker, task = here.worker(waiting_registry())
    bad, good = await here.enqueue("waits"), await here.enqueue("waits")
    await performing(worker, 2)
    here.admin.hset(here.namespace.keys(0).run(bad), "counters", b"junk")
    await here.end(worker, task)
    assert here.status(good) == "queued"
    assert worker.drained
    assert not worker.has_left, "its supervisor has to give it up"
    taken = await here.abandon(worker)
    assert (taken.aside, taken.left) == (1, 0)
    assert not here.admin.exists(here.namespace.keys(0).workers())


async def test_worker_records_that_it_has_left(here: Bench) -> None:
    worker, task = here.worker(waiting_registry())
    await here.enqueue("waits")
    await performing(worker)
    assert await here.end(worker, task) == 0
    assert worker.has_left


async def test_worker_without_heartbeat_thread_leaves_before_its_leases_end(here: Bench) -> None:
    """A handler may have closed the files of the thread's event loop. Without heartbeats the server would take the runs."""
    worker, task = here.worker(waiting_registry(grace=2 * HANG))
    id = await here.enqueue("waits")
    await performing(worker)
    loop = worker._heartbeat._loop
    assert loop is not None
    loop.call_soon_threadsafe(loop.stop)
    with pytest.raises(RuntimeError, match="stopped before"):
        await asyncio.wait_for(task, HANG)
    assert here.status(id) == "queued"
    assert here.counters(id).strikes == 0
    assert worker.has_left


async def test_worker_whose_heartbeat_thread_cannot_start_fails(here: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example because the process has too many open files."""

    def no_loop(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("workers.liveness.heartbeat.asyncio.run", no_loop)
    _, task = here.worker(waiting_registry())
    with pytest.raises(OSError, match="too many open files"):
        await asyncio.wait_for(task, HANG)


@pytest.mark.parametrize("deaf", [False, True])
async def test_stop_does_not_wait_for_a_lifespan_that_never_opens(here: Bench, deaf: bool) -> None:
    opening, closed = asyncio.Event(), []

    @contextlib.asynccontextmanager
    async def endless() -> AsyncIterator[None]:
        opening.set()
        try:
            await asyncio.Event().wait()
            yield
        except asyncio.CancelledError:
            if deaf:
                raise OSError("something else comes out") from None
            raise
        finally:
            closed.append(True)

    runs = Registry(lifespan=endless)

    @runs.handler
    async def waits(run: AsyncRun[None]) -> None:
        return None

    id = await here.enqueue("waits")
    worker, task = here.worker(runs)
    await opening.wait()
    assert await here.end(worker, task) == 0
    assert closed
    assert here.status(id) == "queued"
    assert not here.admin.exists(here.namespace.keys(0).workers())


async def test_run_whose_ending_is_being_recorded_is_not_released(here: Bench) -> None:
    """Send the heartbeat while the ending is on its way, and answer it when the attempt is over."""
    worker, _ = here.worker(waiting_registry())
    id = await here.enqueue("waits")
    await performing(worker)
    (attempt,) = worker.attempts.values()
    stage, attempt._stage = attempt._stage, Stage.DECIDED
    held = frozenset(worker._table.held(attempt.lease))
    attempt._stage = stage
    await here.cancel(id)
    await here.until(id, "cancelled")
    await eventually(lambda: not worker.attempts, "the attempt is over")
    released: list[str] = []

    async def release(lease: Any, id: str, token: str, timeout: float | None = None) -> bool:
        released.append(id)
        return True

    worker._membership.release = release  # type: ignore[method-assign]
    beat = worker_plans.HeartbeatReply(strays=((id, attempt.token),))
    worker._results.handle(BeatResult(attempt.lease, beat, worker.clock.monotonic(), held, attempt.lease.floor))
    async with asyncio.timeout(HANG):
        await next_turn()
    assert not released


async def test_late_heartbeat_does_not_register_the_worker_again(here: Bench) -> None:
    """Answer "gone", as for a removed worker: a new registration would leave an entry that no worker renews."""
    worker, task = here.worker(waiting_registry())
    await asyncio.wait_for(worker.ready.wait(), HANG)
    lease = worker._membership.leases[0]
    worker.stop()
    await eventually(worker._shutdown.is_requested, "the drain has begun")
    worker._results.handle(BeatResult(lease, None, 0.0, None, 0))
    assert await asyncio.wait_for(task, HANG) == 0
    assert not here.admin.exists(here.namespace.keys(0).workers())
