"""Every row of the outcome table, end to end: the status of a run for each way in which its handler can end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from datetime import date
from enum import Enum
from typing import Any

import pytest
from tenacity import stop_after_delay

from coordinator import AsyncClient, RunDead
from coordinator.clock import SystemClock
from coordinator.model.policies.retry import Retry, RetryLater
from tests.integration.worker_harness import Bench, bench, performing
from tests.waiting import eventually, next_turn, work_for
from workers import AsyncRun, Registry, Run
from workers.handlers.facts import Stopped


@pytest.fixture
async def here(real_url: str, namespace: str) -> AsyncIterator[Bench]:
    async with bench(real_url, namespace) as made:
        yield made


# ---- results and exceptions


async def test_return_value_of_a_handler_is_the_result(here):
    runs = Registry()

    @runs.handler
    async def add(run: AsyncRun, a: int, b: int) -> int:
        return a + b

    @runs.handler
    def join(run: Run, words: list[str]) -> str:
        return "-".join(words)

    here.worker(runs)
    first, second = await here.enqueue("add", {"a": 1, "b": 2}), await here.enqueue("join", {"words": ["x", "y"]})
    assert await here.outcome(first) == await here.outcome(second) == "completed"
    assert (here.result(first), here.result(second)) == (3, "x-y")
    assert here.counters(first).attempt == 1


async def test_handler_may_return_messages(here):
    runs = Registry()

    @runs.handler
    async def last(run: AsyncRun) -> dict[str, Any]:
        run.messages.append({"role": "user", "content": [{"text": "hi"}]})
        return {"last": run.messages[-1]}

    here.worker(runs)
    id = await here.enqueue("last")
    assert await here.outcome(id) == "completed"
    assert here.result(id) == {"last": {"role": "user", "content": [{"text": "hi"}]}}


async def test_exception_fails_the_run_and_keeps_its_checkpoint(here):
    runs = Registry()

    @runs.handler
    async def boom(run: AsyncRun) -> None:
        run.state["so far"] = 7
        run.checkpoint()
        raise ValueError("broken")

    here.worker(runs)
    id = await here.enqueue("boom")
    assert await here.outcome(id) == "failed"
    assert here.error(id)[:2] == ["ValueError", "broken"]
    assert here.state(id) == {"so far": 7}


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [Mute(), ValueError("a name \udc80 of a file"), ValueError("x" * 100_000)])
async def test_error_whose_text_can_not_be_stored_still_fails_the_run(here, error, caplog):
    caplog.set_level(logging.CRITICAL, "workers.attempt.recorder")  # pytest can't report a log with half a character
    runs = Registry()

    @runs.handler
    async def boom(run: AsyncRun) -> None:
        raise error

    here.worker(runs)
    id = await here.enqueue("boom")
    assert await here.outcome(id) == "failed"
    assert here.error(id)[0] == type(error).__name__


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("kind", ["async_exit", "plain_exit", "phase_exit"])
async def test_exit_in_a_handler_fails_the_run_and_not_the_worker(here, error, kind):
    runs = Registry()

    def leave() -> None:
        raise error

    @runs.handler(retry=Retry(limit=3, on=(BaseException,)))
    async def async_exit(run: AsyncRun) -> None:
        leave()

    @runs.handler
    def plain_exit(run: Run) -> None:
        leave()

    @runs.handler
    async def phase_exit(run: AsyncRun) -> None:
        await run.phase("leave", leave)

    @runs.handler
    async def fine(run: AsyncRun) -> str:
        return "still here"

    here.worker(runs)
    id = await here.enqueue(kind)
    assert await here.outcome(id) == "failed"
    assert here.error(id)[0] == type(error).__name__
    after = await here.enqueue("fine")
    assert await here.outcome(after) == "completed"


@pytest.mark.parametrize("plain", [False, True])
async def test_stop_iteration_fails_the_run_and_nothing_hangs(here, plain):
    runs = Registry()

    @runs.handler(kind="a")
    async def in_phase(run: AsyncRun) -> None:
        await run.phase("first", lambda: next(iter([])))

    @runs.handler(kind="p")
    def in_thread(run: Run) -> None:
        next(iter([]))

    here.worker(runs)
    id = await here.enqueue("p" if plain else "a")
    assert await here.outcome(id) == "failed"
    assert "StopIteration" in "".join(here.error(id))


async def test_result_that_can_not_be_stored_fails_with_a_sentence(here):
    runs = Registry()

    @runs.handler
    async def odd(run: AsyncRun) -> list[Any]:
        return [1, {2, 3}]

    here.worker(runs)
    id = await here.enqueue("odd")
    assert await here.outcome(id) == "failed"
    kind, message, _ = here.error(id)
    assert kind == "NotPlain"
    assert message.startswith("the result[1] is a set")


# ---- retries


async def test_retry_policy_retries_and_then_the_run_fails(here):
    runs = Registry()

    @runs.handler(retry=Retry(limit=2, wait=30))
    async def flaky(run: AsyncRun) -> None:
        raise ValueError(f"attempt {run.attempt}")

    here.worker(runs)
    id = await here.enqueue("flaky")
    for attempt in (1, 2):
        assert await here.until(id, "delayed", "failed") == "delayed"
        assert here.error(id)[1] == f"attempt {attempt}"
        assert here.due_in(id) > 20
        await here.make_due(id)
        await here.attempted(id, attempt + 1)
    assert await here.outcome(id) == "failed"
    assert (here.counters(id).attempt, here.counters(id).strikes) == (3, 0)


async def test_progress_saved_with_the_retry_resets_the_retry_count(here):
    runs = Registry()

    @runs.handler(retry=Retry(limit=1, wait=30), throttle=3600.0)
    async def slow(run: AsyncRun) -> str:
        async for turn in run.loop(limit=5):
            if run.attempt <= 3 and turn == run.attempt:
                raise ValueError("one turn further each time")
        return "done"

    here.worker(runs)
    id = await here.enqueue("slow")
    for attempt in (1, 2, 3):
        assert await here.outcome(id) == "delayed"
        await here.make_due(id)
        await here.attempted(id, attempt + 1)
        await here.outcome(id)
    assert here.status(id) == "completed"


async def test_retry_from_the_start_discards_saved_work_and_keeps_the_limit(here):
    runs, seen = Registry(), []

    @runs.handler(retry=Retry(limit=2, wait=30, from_start=True), throttle=0.0)
    async def fickle(run: AsyncRun) -> None:
        seen.append((run.attempt, run.resumed and run.resumed.cause, dict(run.state), len(run.messages), run.iteration))
        async for turn in run.loop(limit=5):
            run.state["turn"] = turn
            run.messages.append({"turn": turn})
            if turn == 3:
                await run.flush()
                raise ValueError("it looks different each time")

    here.worker(runs)
    id = await here.enqueue("fickle")
    for attempt in (1, 2):
        assert await here.until(id, "delayed", "failed") == "delayed"
        await here.make_due(id)
        await here.attempted(id, attempt + 1)
    assert await here.outcome(id) == "failed"
    assert seen == [(1, None, {}, 0, 0), (2, "retry", {}, 0, 0), (3, "retry", {}, 0, 0)]


async def test_tenacity_stop_receives_the_age_of_the_run(here):
    runs = Registry()

    @runs.handler(retry=Retry(limit=stop_after_delay(3600), wait=30))
    async def flaky(run: AsyncRun) -> None:
        raise ValueError("again")

    @runs.handler(retry=Retry(limit=stop_after_delay(0.001), wait=30))
    async def late(run: AsyncRun) -> None:
        await work_for(0.01)
        raise ValueError("too late")

    here.worker(runs)
    young, old = await here.enqueue("flaky"), await here.enqueue("late")
    assert await here.outcome(young) == "delayed"
    assert await here.outcome(old) == "failed"


async def test_retry_later_retries_without_a_policy(here, caplog):
    runs = Registry()

    @runs.handler
    async def busy(run: AsyncRun) -> str:
        if run.attempt == 1:
            raise RetryLater("they are closed", after=500)
        assert run.resumed is not None
        return run.resumed.cause

    here.worker(runs)
    id = await here.enqueue("busy")

    def levels() -> set[str]:
        return {one.levelname for one in caplog.records if "is retried in 500.0 s" in one.getMessage()}

    with caplog.at_level(logging.INFO):
        assert await here.outcome(id) == "delayed"
        await eventually(lambda: bool(levels()), "the log line about the retry")
    assert levels() == {"INFO"}
    assert 400 < here.due_in(id) <= 500
    assert here.counters(id).failures == 0
    await here.make_due(id)
    await here.until(id, "completed")
    assert here.result(id) == "retry"
    assert (await here.view(id)).error is None


async def test_retries_that_a_handler_asks_for_do_not_use_up_its_policy(here):
    runs = Registry()

    @runs.handler(retry=Retry(limit=1, wait=500))
    async def busy(run: AsyncRun) -> None:
        if run.attempt <= 3:
            raise RetryLater(after=500)
        raise ValueError("the first failure")

    here.worker(runs)
    id = await here.enqueue("busy")
    for _ in range(3):
        assert await here.outcome(id) == "delayed"
        await here.make_due(id)
    assert await here.outcome(id) == "delayed"
    assert here.error(id)[0] == "ValueError"


async def test_the_age_of_a_run_does_not_depend_on_the_worker_s_clock(here):
    runs = Registry()

    @runs.handler(retry=Retry(limit=stop_after_delay(3600), wait=500))
    async def flaky(run: AsyncRun) -> None:
        raise ValueError("again")

    here.worker(runs, clock=_Ahead())
    id = await here.enqueue("flaky")
    assert await here.outcome(id) == "delayed"


class _Ahead(SystemClock):
    """A clock that is a day ahead of the server's."""

    def now(self) -> float:
        return super().now() + 86400


async def test_retry_policy_that_raises_fails_the_run(here):
    runs = Registry()

    def broken(state: object) -> float:
        raise ZeroDivisionError("in the policy")

    @runs.handler(retry=Retry(limit=2, wait=broken))
    async def flaky(run: AsyncRun) -> None:
        raise ValueError("x")

    here.worker(runs)
    id = await here.enqueue("flaky")
    assert await here.outcome(id) == "failed"
    assert here.error(id)[0] == "ZeroDivisionError"


class Colour(Enum):
    RED = "red"


async def test_rich_inputs_and_results_are_converted_by_annotations(here):
    runs = Registry()

    @runs.handler
    async def paint(run: AsyncRun, colour: Colour, day: date) -> set[date]:
        assert colour is Colour.RED
        assert run.inputs == {"colour": "red", "day": "2026-02-28"}
        return {day}

    here.worker(runs)
    id = await here.enqueue("paint", paint.inputs(Colour.RED, date(2026, 2, 28)).values)
    wrong = await here.enqueue("paint", {"colour": "green", "day": "2026-02-28"})
    assert await here.outcome(id) == "completed"
    assert here.result(id) == ["2026-02-28"]
    assert await here.outcome(wrong) == "delayed"
    assert here.error(wrong)[0] == "BadInputs"
    assert "input 'colour' of kind 'paint' does not fit" in here.error(wrong)[1]


# ---- while the worker stops


@pytest.mark.parametrize("cut", ["loop", "phase", "checkpoint", "flush", "raises"])
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_stop_at_any_cut_releases_the_run_with_its_saved_state(here, cut, plain):
    runs, go, saved = Registry(), threading.Event(), threading.Event()

    @runs.handler(kind="a", throttle=3600.0)
    async def handler(run: AsyncRun) -> None:
        run.state["seen"] = 1
        await run.flush()
        saved.set()
        run.state["seen"] = 2
        while not run.stopping:  # A handler without cuts does this.
            await work_for(0.01)
        if cut == "loop":
            async for _ in run.loop(limit=3):
                await next_turn()
        elif cut == "phase":
            await run.phase("p", asyncio.sleep, 0)
        elif cut == "checkpoint":
            run.checkpoint()
        elif cut == "flush":
            await run.flush()
        raise run.stopping

    @runs.handler(kind="p", throttle=3600.0)
    def plain_handler(run: Run) -> None:
        run.state["seen"] = 1
        run.flush()
        saved.set()
        run.state["seen"] = 2
        while not run.stopping:
            go.wait(0.01)
        if cut == "loop":
            for _ in run.loop(limit=3):
                pass
        elif cut == "phase":
            run.phase("p", lambda: 1)
        elif cut == "checkpoint":
            run.checkpoint()
        elif cut == "flush":
            run.flush()
        raise run.stopping

    worker, task = here.worker(runs)
    id = await here.enqueue("p" if plain else "a")
    await eventually(saved.is_set, "the first save")
    assert await here.end(worker, task) == 0
    assert here.status(id) == "queued"
    counters = here.counters(id)
    assert (counters.releases, counters.strikes, counters.failures, counters.recoveries) == (1, 0, 0, 0)
    # A checkpoint or a flush saves the pending changes. The cuts before a turn and a phase save nothing, and neither
    # does "raises".
    assert here.state(id) == {"seen": 2 if cut in ("checkpoint", "flush") else 1}


async def test_swallowed_cancellation_releases_the_run(here, caplog):
    runs = Registry()

    @runs.handler(grace=0.0)
    async def stubborn(run: AsyncRun) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "looks fine"

    worker, task = here.worker(runs)
    id = await here.enqueue("stubborn")
    await performing(worker)
    with caplog.at_level(logging.WARNING):
        assert await here.end(worker, task) == 0
    assert here.status(id) == "queued"
    assert here.counters(id).strikes == 0
    assert "stubborn" in caplog.text
    assert "caught the stop exception" in caplog.text


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_loop_that_swallows_every_exception_is_released(here, plain):
    runs, on = Registry(), threading.Event()

    @runs.handler(kind="a", grace=1.0)
    async def deaf(run: AsyncRun) -> str:
        for _ in range(3):
            try:
                while True:
                    run.checkpoint()
                    await work_for(0.01)
            except BaseException:  # noqa: BLE001  # A careless handler does this.
                pass
        return "done"

    @runs.handler(kind="p", grace=1.0)
    def plain_deaf(run: Run) -> str:
        try:
            while True:
                run.checkpoint()
                on.wait(0.01)
        except BaseException:  # noqa: BLE001  # A careless handler does this.
            pass
        return "done"

    worker, task = here.worker(runs)
    id = await here.enqueue("p" if plain else "a")
    await performing(worker)
    await here.end(worker, task)
    assert here.status(id) == "queued"


async def test_exception_after_a_stop_releases_the_run_with_a_warning(here, caplog):
    runs = Registry()

    @runs.handler(retry=Retry(limit=3))
    async def untidy(run: AsyncRun) -> None:
        try:
            while True:
                run.checkpoint()
                await work_for(0.01)
        finally:
            raise ConnectionError("while cleaning up")

    worker, task = here.worker(runs)
    id = await here.enqueue("untidy")
    await performing(worker)
    with caplog.at_level(logging.WARNING):
        await here.end(worker, task)
    assert here.status(id) == "queued"
    assert here.counters(id).failures == 0
    assert "after the stop, the handler raised ConnectionError" in caplog.text


async def test_task_group_with_failing_clean_up_is_released(here):
    runs = Registry()

    @runs.handler(grace=0.0)
    async def family(run: AsyncRun) -> None:
        async def child() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise OSError("a child's clean-up")

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(child())

    worker, task = here.worker(runs)
    id = await here.enqueue("family")
    await performing(worker)
    assert await here.end(worker, task) == 0
    assert here.status(id) == "queued"


async def test_stop_inside_a_task_group_releases_the_run(here):
    runs = Registry()

    @runs.handler
    async def family(run: AsyncRun) -> None:
        async def child(name: str) -> None:
            while True:
                await run.phase(f"{name}-{len(run.state)}", asyncio.sleep, 0.01)

        async with asyncio.TaskGroup() as group:
            group.create_task(child("a"))
            group.create_task(child("b"))

    worker, task = here.worker(runs)
    id = await here.enqueue("family")
    await performing(worker)
    assert await here.end(worker, task) == 0
    assert here.status(id) == "queued"


# ---- without a stop request


async def test_stop_exception_without_a_stop_backs_off_and_ends_dead(here):
    runs = Registry()

    @runs.handler
    async def quitter(run: AsyncRun) -> None:
        raise Stopped("drain")

    here.worker(runs)
    id = await here.enqueue("quitter")
    waits = []
    for attempt in (1, 2):
        assert await here.outcome(id) == "delayed"
        due = here.admin.zscore(here.namespace.keys_of(id).delayed(), id)
        waits.append(due - here.counters(id).epoch)  # The epoch is the server's time of the release.
        assert here.counters(id).strikes == attempt
        await here.make_due(id)
        await here.attempted(id, attempt + 1)
    assert await here.outcome(id) == "dead"
    assert waits[1] > waits[0]
    assert b"3 strikes" in here.run(id)["reason"]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_cancelled_run_stops_at_its_next_cut(here, plain):
    runs, tick = Registry(), threading.Event()

    @runs.handler(kind="a")
    async def handler(run: AsyncRun) -> None:
        async for _ in run.loop(limit=10_000):
            await work_for(0.01)

    @runs.handler(kind="p")
    def plain_handler(run: Run) -> None:
        for _ in run.loop(limit=10_000):
            tick.wait(0.01)

    worker, _ = here.worker(runs)
    id = await here.enqueue("p" if plain else "a")
    await performing(worker)
    await here.cancel(id)
    assert await here.outcome(id) == "cancelled"


async def test_async_handler_without_cuts_is_cancelled(here):
    runs = Registry()

    @runs.handler
    async def waits(run: AsyncRun) -> None:
        await asyncio.Event().wait()

    worker, _ = here.worker(runs)
    id = await here.enqueue("waits")
    await performing(worker)
    await here.cancel(id)
    assert await here.outcome(id) == "cancelled"
    await eventually(lambda: not worker.attempts, "the worker has heard that it is recorded")


# ---- before the first line of the handler


async def test_unfit_inputs_are_rejected_with_a_strike_only_if_the_kind_has_worked(here):
    runs = Registry()

    @runs.handler
    async def square(run: AsyncRun, n: int) -> int:
        return n * n

    here.worker(runs)
    id = await here.enqueue("square", {"m": 1})
    assert await here.outcome(id) == "delayed"
    assert here.counters(id).strikes == 0, "it is not known yet whether the kind or the run is at fault"
    good = await here.enqueue("square", {"n": 3})
    assert await here.outcome(good) == "completed"
    for strike in (1, 2, 3):
        attempt = here.counters(id).attempt
        await here.make_due(id)
        await here.attempted(id, attempt + 1)
        assert await here.outcome(id) == ("dead" if strike == 3 else "delayed")
        assert here.counters(id).strikes == strike
    assert here.error(id)[0] == "BadInputs"
    assert "lacks 'n'" in here.error(id)[1]
    assert b"its handler could not be started" in here.run(id)["reason"]
    assert here.counters(id).recoveries == 0, "no worker was lost"
    view = await here.view(id)
    assert "its handler could not be started: BadInputs: " in view.why
    assert "lacks 'n'" in view.why
    async with AsyncClient(here.url, here.namespace.name) as client:
        with pytest.raises(RunDead, match=r"could not be started: BadInputs: .*lacks 'n'"):
            await client.handle(id).result(10)


@pytest.mark.parametrize("spec", [b"\xc1", b"", b"\x93\x01\x02\x03", b"\x80"])
async def test_unreadable_spec_affects_only_its_own_run(here, spec):
    runs = Registry()

    @runs.handler
    async def fine(run: AsyncRun) -> str:
        return "ok"

    before = await here.enqueue("fine")
    bad = await here.enqueue("fine", spec=spec)
    after = await here.enqueue("fine")
    here.worker(runs)
    assert await here.outcome(before) == await here.outcome(after) == "completed"
    assert await here.outcome(bad) in ("delayed", "dead")


@pytest.mark.parametrize("field", ["state", "head", "phase:-:a#0"])
async def test_unreadable_checkpoint_affects_only_its_own_run(here, field):
    runs, hold = Registry(), asyncio.Event()

    @runs.handler
    async def steps(run: AsyncRun) -> str:
        out = await run.phase("a", lambda: "first")
        run.state["x"] = 1
        await run.flush()
        if run.attempt == 1:
            await hold.wait()
        return out

    worker, task = here.worker(runs, grace=0.0)
    bad, good = await here.enqueue("steps"), await here.enqueue("steps")
    await eventually(lambda: here.state(bad) and here.state(good), "both to have saved")
    await here.end(worker, task)
    here.admin.hset(here.namespace.keys(0).ckpt(bad), field, b"\xc1\xc1")
    here.worker(runs)
    assert await here.outcome(good) == "completed"
    # The output of a phase is only read by the handler that asks for it.
    assert await here.outcome(bad) in (("failed",) if field.startswith("phase") else ("delayed", "dead"))


async def test_run_in_a_wrong_ready_queue_is_moved_to_its_own(here):
    runs, others = Registry(), Registry()

    @runs.handler
    async def mine(run: AsyncRun) -> str:
        return "ok"

    @others.handler
    async def other(run: AsyncRun) -> str:
        return "other"

    lost, good = await here.enqueue("mine"), await here.enqueue("mine")
    here.admin.hset(here.namespace.keys(0).run(lost), "route", "default:other@0")
    here.worker(runs)
    assert await here.outcome(good) == "completed"
    here.worker(others)
    assert await here.outcome(lost) == "completed"
    assert here.result(lost) == "other"
    assert here.counters(lost).strikes == 0


async def test_kind_that_can_not_start_is_no_longer_claimed_and_others_continue(here, caplog):
    runs = Registry()

    @runs.handler
    async def broken(run: AsyncRun, needed: int) -> None: ...

    @runs.handler
    async def fine(run: AsyncRun) -> str:
        return "ok"

    bad = [await here.enqueue("broken") for _ in range(5)]
    with caplog.at_level(logging.CRITICAL):
        here.worker(runs)
        for id in bad:
            assert await here.outcome(id) == "delayed"
        await eventually(lambda: "kind 'broken' is suspended" in caplog.text, "the sentence")
    for _ in range(2):  # The second claim was certainly sent after the log line.
        assert await here.outcome(await here.enqueue("fine")) == "completed"
    late = await here.enqueue("broken")
    assert await here.outcome(await here.enqueue("fine")) == "completed"
    assert here.status(late) == "queued"
    assert here.counters(late).attempt == 0
