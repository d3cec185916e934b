"""The critic on a real server: soft, hard and progress deadlines, good and bad escalators, and what the next attempt finds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from coordinator import Status
from coordinator.client.operations.open_namespace import new_mark
from coordinator.store.plans import clients as client_plans
from coordinator.views.run_view import run_view
from tests.integration.worker_harness import Bench, bench, performing
from tests.waiting import eventually, work_for
from workers import AsyncRun, Deadline, Extend, Kill, Leave, Registry, Retry, Run, Stopped, Watched


@pytest.fixture
async def here(real_url: str, namespace: str) -> AsyncIterator[Bench]:
    async with bench(real_url, namespace) as made:
        yield made


def spent(here: Bench, id: str) -> dict[str, int]:
    names = ("used", "idle", "progress", "extensions", "extended")
    return dict(zip(names, map(int, here.run(id).get("spent", b"0 0 0 0 0").split()), strict=True))


def registry_that_never_ends(deadline: Deadline, **policy: Any) -> Registry[Any]:
    """Return a registry with one kind that never ends by itself."""
    runs = Registry()

    @runs.handler(deadline=deadline, throttle=0, **policy)
    async def still(run: AsyncRun) -> str:
        run.state["attempts"] = [*run.state.get("attempts", ()), run.attempt]
        await run.flush()
        await asyncio.Event().wait()
        return "never"

    return runs


async def enqueue_used(here: Bench, ms: int) -> str:
    """Enqueue a run of `still` that has used some of its time in earlier attempts."""
    await here.do(client_plans.pause(here.namespace.keys(0), "kind:still", new_mark()))
    id = await here.enqueue("still")
    here.admin.hset(here.namespace.keys_of(id).run(id), "spent", f"{ms} 0 0 0 0")
    await here.do(client_plans.unpause(here.namespace.keys(0), "kind:still", new_mark()))
    return id


async def reason_of_kill(here: Bench, id: str) -> str:
    """Return the reason for which the run says that it was killed."""
    assert await here.outcome(id) == "failed"
    type, message, _ = here.error(id)
    assert type == "DeadlineExceeded"
    return message


# ---- hard deadline


async def test_hard_deadline_kills_the_run_with_a_reason_and_keeps_its_checkpoint(here):
    here.worker(registry_that_never_ends(Deadline(hard=0.3), retry=Retry(limit=3)))
    id = await here.enqueue("still")
    assert await reason_of_kill(here, id) == "killed by its critic: its hard deadline of 0.3 s has passed"
    assert here.state(id) == {"attempts": [1]}
    assert here.counters(id).attempt == 1, "a kill is not tried again"
    assert "still" in here.error(id)[2], "the traceback says where the handler was"


async def test_killed_handler_stops_at_its_next_cut(here):
    runs, seen = Registry(), []

    @runs.handler(deadline=Deadline(hard=0.2))
    async def turns(run: AsyncRun) -> None:
        try:
            async for _ in run.loop(limit=10_000):
                await work_for(0.01)
        except Stopped as stop:
            seen.append((stop.why, run.stopping is stop))
            raise

    here.worker(runs)
    id = await here.enqueue("turns")
    assert "hard deadline" in await reason_of_kill(here, id)
    assert seen == [("deadline", True)]


async def test_plain_handler_sees_the_kill_and_its_returned_result_counts(here):
    runs = Registry()

    @runs.handler(deadline=Deadline(hard=0.2))
    def stops(run: Run) -> None:
        while not run.stopping:
            threading.Event().wait(0.01)
        raise run.stopping

    @runs.handler(deadline=Deadline(hard=0.2))
    def returns(run: Run) -> str:
        while not run.stopping:
            threading.Event().wait(0.01)
        return "done all the same"

    here.worker(runs)
    stopped, returned = await here.enqueue("stops"), await here.enqueue("returns")
    assert "hard deadline" in await reason_of_kill(here, stopped)
    assert await here.outcome(returned) == "completed"
    assert here.result(returned) == "done all the same"


async def test_result_or_error_after_the_kill_is_ignored(here):
    runs = Registry()

    @runs.handler(deadline=Deadline(hard=0.2), retry=Retry(limit=5))
    async def swallows(run: AsyncRun) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "as if nothing had happened"
        return "never"

    @runs.handler(deadline=Deadline(hard=0.2), retry=Retry(limit=5))
    async def raises(run: AsyncRun) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("its own") from None

    here.worker(runs)
    for kind in ("swallows", "raises"):
        assert "hard deadline" in await reason_of_kill(here, await here.enqueue(kind))


async def test_run_without_time_left_is_killed_before_its_handler_starts(here):
    runs, begun = Registry(), []

    @runs.handler(deadline=Deadline(hard=5))
    async def late(run: AsyncRun) -> None:
        begun.append(run.id)

    id = await here.enqueue("late")
    here.admin.hset(here.namespace.keys_of(id).run(id), "spent", "5000 0 0 0 0")
    here.worker(runs)
    assert "hard deadline" in await reason_of_kill(here, id)
    assert begun == []


@pytest.mark.matrix("waits through a timeout")
async def test_run_of_a_plain_handler_that_ignores_the_kill_fails_and_others_continue(here, caplog):
    runs, over = Registry(), threading.Event()

    @runs.handler(deadline=Deadline(hard=0.2))
    def deaf(run: Run) -> None:
        over.wait(60)

    @runs.handler
    async def neighbour(run: AsyncRun) -> str:
        await eventually(over.is_set, "the end", timeout=60)
        return "went on"

    worker, _ = here.worker(runs)
    beside, id = await here.enqueue("neighbour"), await here.enqueue("deaf")
    try:
        assert "hard deadline" in await reason_of_kill(here, id)
        assert here.status(beside) == "running"
        await eventually(lambda: "no supervisor replaces this process" in caplog.text, "it to be said")
        assert len(worker.attempts) == 1
    finally:
        over.set()
    assert await here.outcome(beside) == "completed"


# ---- soft deadline


async def test_default_escalator_extends_once_per_run_and_then_kills(here):
    here.worker(registry_that_never_ends(Deadline(soft=0.3)))
    id = await here.enqueue("still")
    assert "soft deadline of 0.3 s has passed, and its extension is used up" in await reason_of_kill(here, id)
    found = spent(here, id)
    assert (found["extensions"], found["extended"] >= 300, found["used"] >= 600) == (1, True, True)


@pytest.mark.matrix("waits through a timeout")
async def test_extension_is_kept_across_a_release(here):
    runs = registry_that_never_ends(Deadline(soft=4))  # The extension is long enough for the test to stop the worker.
    first = here.worker(runs, grace=0.0)
    id = await enqueue_used(here, 3900)
    await eventually(lambda: spent(here, id)["extensions"] == 1, "the extension")
    await here.end(*first)
    assert here.status(id) == "queued"
    here.worker(runs)
    assert "its extension is used up" in await reason_of_kill(here, id)
    assert (spent(here, id)["extensions"], here.counters(id).attempt) == (1, 2)
    assert here.counters(id).strikes == 0


@pytest.mark.matrix("waits through a timeout")
async def test_extension_and_used_time_are_kept_across_a_crash(here):
    runs = registry_that_never_ends(Deadline(soft=4))
    first, _ = here.worker(runs, lease=1)
    id = await enqueue_used(here, 3900)
    await eventually(lambda: spent(here, id)["extensions"] == 1, "the extension")
    before = here.admin.zscore(here.namespace.keys(0).workers(), first._membership.leases[0].worker)
    await eventually(
        lambda: (here.admin.zscore(here.namespace.keys(0).workers(), first._membership.leases[0].worker) or 0) > before,
        "another heartbeat",
    )
    assert (await here.abandon(first)).queued == 1
    assert "its extension is used up" in await reason_of_kill(here, id)
    assert (spent(here, id)["extensions"], here.counters(id).attempt) == (1, 2)


async def test_escalator_sees_the_run_and_decides(here):
    runs, shown = Registry(), []

    async def escalator(run: Watched) -> Extend | Kill:
        shown.append(run)
        return Extend(0.2) if len(shown) < 3 else Kill("it talks too much")

    @runs.handler(deadline=Deadline(soft=0.2, escalator=escalator))
    async def talks(run: AsyncRun, topic: str) -> None:
        run.note("talking")
        await run.phase("outline", lambda: "tides")
        async for turn in run.loop(limit=10_000):
            run.messages.append({"role": "user", "content": f"{topic} {turn}"})
            await work_for(0.005)

    here.worker(runs)
    id = await here.enqueue("talks", {"topic": "tides"}, meta={"caller_id": "u1"})
    assert await reason_of_kill(here, id) == "killed by its critic: it talks too much"
    assert [run.extensions for run in shown] == [0, 1, 2]
    first, *_, last = shown
    assert (first.id, first.kind, first.inputs, first.meta) == (id, "talks", {"topic": "tides"}, {"caller_id": "u1"})
    assert (first.attempt, first.age >= 0.2, last.age >= 0.6, last.iteration > first.iteration) == (1, True, True, True)
    assert first.note is not None
    assert first.note.text == "talking"
    assert last.phases == ("outline",)
    assert 0 < len(last.messages) <= 20
    assert last.messages[-1]["content"].startswith("tides ")


@pytest.mark.matrix("waits through a timeout")
async def test_escalator_can_leave_the_run_to_its_hard_deadline(here):
    asked = []

    def leave(run: Watched) -> Leave:
        asked.append(run.age)
        return Leave()

    here.worker(registry_that_never_ends(Deadline(soft=0.1, hard=2.5, escalator=leave)))
    assert "hard deadline" in await reason_of_kill(here, await here.enqueue("still"))
    assert len(asked) == 1


@pytest.mark.matrix("waits through a timeout")
async def test_escalator_that_raises_is_called_again(here, caplog):
    asked = []

    def broken(run: Watched) -> Kill:
        asked.append(run.age)
        raise ZeroDivisionError("in the escalator")

    here.worker(registry_that_never_ends(Deadline(soft=0.1, hard=2.5, escalator=broken)))
    assert "hard deadline" in await reason_of_kill(here, await here.enqueue("still"))
    assert len(asked) > 1
    assert "in the escalator" in caplog.text


@pytest.mark.matrix("waits through a timeout")
@pytest.mark.parametrize("how", ["plain", "async"])
async def test_hanging_escalator_does_not_stop_the_deadlines(here, how):
    over, asked = threading.Event(), []

    def plain(run: Watched) -> Leave:
        asked.append(run.id)
        over.wait(60)
        return Leave()

    async def soon(run: Watched) -> Leave:
        asked.append(run.id)
        await asyncio.Event().wait()
        return Leave()

    escalator: Callable[[Watched], Any] = plain if how == "plain" else soon
    worker = here.worker(registry_that_never_ends(Deadline(soft=0.1, hard=2.5, escalator=escalator)))
    id = await here.enqueue("still")
    try:
        assert "hard deadline" in await reason_of_kill(here, id)
        assert asked == [id]
        assert await here.end(*worker) == 0, "nor the process"
    finally:
        over.set()


# ---- progress deadline


@pytest.mark.matrix("waits through a timeout")
async def test_only_a_run_without_progress_is_killed(here):
    runs = Registry()

    @runs.handler(deadline=Deadline(progress=4), throttle=0)
    async def steps(run: AsyncRun) -> str:
        async for _ in run.loop(limit=25):
            await work_for(0.2)
        return "all"

    @runs.handler(deadline=Deadline(progress=4), throttle=0)
    async def busy(run: AsyncRun) -> None:
        while True:  # The handler saves, but its saves are no progress.
            await run.flush()
            await work_for(0.1)

    here.worker(runs)
    going, idle = await here.enqueue("steps"), await here.enqueue("busy")
    assert await reason_of_kill(here, idle) == "killed by its critic: it made no progress for 4 s"
    assert await here.outcome(going) == "completed"


# ---- a kill stays in force


async def test_kill_holds_if_the_process_dies_before_the_run_is_failed(here):
    runs, over = Registry(), threading.Event()

    @runs.handler(deadline=Deadline(soft=0.1, escalator=lambda run: Kill("once and for all")))
    def deaf(run: Run) -> str:
        over.wait(60)
        return "never"

    worker, _ = here.worker(runs)
    id = await here.enqueue("deaf")
    try:
        await eventually(lambda: "kill" in here.run(id), "the kill")
        assert not next(iter(worker.attempts.values())).decided, "it was not written by the ending"
        view = run_view(id, await here.do(client_plans.view(here.namespace.keys_of(id), id)))
        assert view.status is Status.RUNNING
        assert view.why.startswith(
            "killed by its critic: once and for all; its handler has not ended yet (attempt 1 on"
        )
        assert (await here.abandon(worker)).failed == 1
        assert await reason_of_kill(here, id) == "killed by its critic: once and for all"
        assert here.counters(id).strikes == 0
    finally:
        over.set()


@pytest.mark.matrix("waits through a timeout")
async def test_kill_holds_if_the_worker_drains(here):
    runs, over = Registry(), threading.Event()

    @runs.handler(deadline=Deadline(soft=0.1, escalator=lambda run: Kill("once and for all")))
    def deaf(run: Run) -> str:
        over.wait(60)
        return "never"

    worker, task = here.worker(runs, grace=0.0)
    id = await here.enqueue("deaf")
    try:
        await eventually(lambda: "kill" in here.run(id), "the kill")
        await here.end(worker, task)
        assert await reason_of_kill(here, id) == "killed by its critic: once and for all"
    finally:
        over.set()


async def test_deadline_during_a_drain_kills_the_run(here):
    runs, begun = Registry(), asyncio.Event()

    @runs.handler(deadline=Deadline(hard=1.0), grace=60)
    async def without_a_cut(run: AsyncRun) -> None:
        begun.set()
        await asyncio.Event().wait()

    worker, task = here.worker(runs)
    id = await here.enqueue("without_a_cut")
    await begun.wait()
    await here.end(worker, task)
    assert "hard deadline" in await reason_of_kill(here, id)


async def test_cancelled_run_is_not_killed(here):
    worker, _ = here.worker(registry_that_never_ends(Deadline(hard=60)))
    id = await here.enqueue("still")
    await performing(worker)
    await here.cancel(id)
    assert await here.outcome(id) == "cancelled"


async def test_run_cancelled_while_its_escalator_decides_is_not_killed(here):
    runs, asked = Registry(), asyncio.Event()
    told: list[str | None] = []

    async def thinks(run: Watched) -> Kill:
        asked.set()
        await eventually(lambda: bool(told), "the cancel to have reached the handler")
        return Kill("too late")

    @runs.handler(deadline=Deadline(soft=0.1, escalator=thinks))
    async def cleans_up(run: AsyncRun) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(run.stopping.why if run.stopping else None)
            await work_for(0.3)
            told.append(run.stopping.why if run.stopping else None)
            raise

    here.worker(runs)
    id = await here.enqueue("cleans_up")
    await asked.wait()
    await here.cancel(id)
    assert await here.outcome(id) == "cancelled"
    assert told == ["cancel", "cancel"]
    assert "kill" not in here.run(id)


@pytest.mark.matrix("waits through a timeout")
async def test_worker_does_not_kill_a_run_that_it_has_lost(here):
    """Leave the run to its new owner, which has a deadline watch of its own. Writes of the old owner are fenced."""
    runs = registry_that_never_ends(Deadline(hard=4))
    first, _ = here.worker(runs)
    id = await here.enqueue("still")
    await performing(first)
    assert (await here.abandon(first)).queued == 1
    assert "hard deadline" in await reason_of_kill(here, id)
    assert here.counters(id).attempt == 2, "it was not the first owner's kill that ended it"


async def test_revived_run_gets_its_full_time_and_sees_why_it_was_killed(here):
    runs, seen = Registry(), []

    @runs.handler(deadline=Deadline(hard=0.5))
    async def second(run: AsyncRun) -> str:
        seen.append(run.resumed.killed if run.resumed else None)
        if run.resumed:
            return "better"
        await asyncio.Event().wait()
        return "never"

    here.worker(runs)
    id = await here.enqueue("second")
    await reason_of_kill(here, id)
    assert await here.do(client_plans.revive(here.namespace.keys_of(id), id, operation="r1")) == "queued"
    assert await here.until(id, "completed") == "completed"
    assert seen[0] is None
    assert seen[1] is not None
    assert (seen[1].type, seen[1].message) == (
        "DeadlineExceeded",
        "killed by its critic: its hard deadline of 0.5 s has passed",
    )
