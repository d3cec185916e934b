"""One attempt without a server: how a stop reaches a waiting handler, and what a lost token causes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator.clock import SystemClock
from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.errors import Unreachable
from coordinator.model.policies.deadline import DeadlineExceeded
from coordinator.model.run import Counters
from coordinator.store.keys import Keys
from coordinator.store.plans.attempts import Condition, Delta, Received
from coordinator.store.plans.workers import Claimed
from tests.waiting import next_turn
from workers import AsyncRun, Registry
from workers.attempt.attempt import Attempt
from workers.attempt.lifecycle import IllegalTransition
from workers.attempt.saver import Saver
from workers.handlers.checkpoint.draft import Draft
from workers.handlers.facts import Stopped
from workers.liveness.lease import Lease
from workers.throttle import Throttle

runs = Registry()


@runs.handler
async def kind(run: AsyncRun) -> None: ...


COUNTERS = " ".join(["0"] * len(Counters.__dataclass_fields__))


class Observer:
    """Records the notifications about its attempts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_lost(self, attempt: Attempt) -> None:
        self.seen.append("lost")

    def on_progress(self, attempt: Attempt) -> None:
        self.seen.append("progress")

    def may_linger(self, attempt: Attempt) -> bool:
        return True

    def on_deadline(self, attempt: Attempt, error: DeadlineExceeded) -> None:
        self.seen.append("deadline")


class Bench:
    def __init__(self) -> None:
        self.lease = Lease(Keys("n", 0), 15.0, SystemClock())
        claimed = Claimed("id", "1-1-w", "default:kind@0", b"", "", COUNTERS, "", None, False)
        self.observer = Observer()
        self.attempt = Attempt(claimed, self.lease, kind, ThreadPoolExecutor(1), self.observer, time.monotonic)
        self.draft, self.words, self.open, self.sent = Draft(), ["ok"], asyncio.Event(), 0
        self.saver = Saver(CheckpointHead(), 1, self.draft.cut(), Throttle(0.0), SystemClock(), self.send)
        self.attempt.saver = self.saver
        self.saver.on_fenced = self.attempt.lose

    async def send(self, delta: Delta) -> tuple[str, int]:
        self.sent += 1
        await self.open.wait()
        return self.words[0], 1

    def flush(self) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.attempt.flush(self.draft.cut()))


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def settled() -> None:
    await next_turn(20)


async def ended(waiting: asyncio.Future[None]) -> BaseException | None:
    await asyncio.wait({waiting}, timeout=30)
    return waiting.exception()


async def test_stop_is_raised_in_a_waiting_flush_and_its_cut_is_saved_with_the_ending(bench):
    bench.draft.state["x"] = 1
    waiting = bench.flush()
    await settled()
    bench.attempt.request_stop("drain")
    error = await ended(waiting)
    assert isinstance(error, Stopped)
    assert bench.attempt.delivered
    assert bench.draft.cut().state in bench.saver.last_delta()


async def test_flush_after_a_stop_request_still_offers_its_cut(bench):
    bench.attempt.request_stop("drain")
    bench.draft.state["x"] = 1
    assert isinstance(await ended(bench.flush()), Stopped)
    assert bench.draft.cut().state in bench.saver.last_delta()


async def test_after_the_stop_was_delivered_flush_waits_for_the_save(bench):
    bench.attempt.request_stop("drain")
    bench.attempt.deliver_stop()
    waiting = bench.flush()
    await settled()
    assert not waiting.done()
    bench.open.set()
    assert await ended(waiting) is None


async def test_fenced_flush_raises_lost_and_stops_the_handler(bench):
    bench.words[0] = "fenced"
    bench.open.set()
    error = await ended(bench.flush())
    assert isinstance(error, Stopped)
    assert error.why == "lost"
    assert bench.attempt.lost
    for _ in range(2):  # every time, because the handler can do nothing more
        assert isinstance(await ended(bench.flush()), Stopped)


async def test_flush_while_the_ending_is_recorded_does_not_report_a_lost_token(bench):
    bench.attempt.request_stop("drain")
    bench.attempt.deliver_stop()
    waiting = bench.flush()
    await settled()
    bench.attempt.decide()
    bench.saver.close()
    assert isinstance(await ended(waiting), Stopped)
    assert not bench.attempt.lost, "the release that is under way may be repeated"


async def test_wait_for_the_lease_ends_with_a_stop(bench):
    bench.lease._doubted = True
    bench.lease._confirmed.clear()
    waiting = asyncio.ensure_future(bench.attempt.wait_until_confirmed())
    await settled()
    assert not waiting.done()
    bench.attempt.request_stop("cancel")
    error = await ended(waiting)
    assert isinstance(error, Stopped)
    assert error.why == "cancel"


async def test_no_call_may_begin_while_the_lease_is_in_doubt_or_after_a_stop(bench):
    assert bench.attempt.may_call()
    bench.lease._doubted = True
    assert not bench.attempt.may_call()
    bench.lease._doubted = False
    bench.attempt.request_stop("drain")
    assert bench.attempt.may_call(), "an effect that has begun is finished before the drain"
    bench.attempt.request_kill(DeadlineExceeded("its time is over"))
    assert not bench.attempt.may_call()
    bench.attempt.deliver_stop()
    assert bench.attempt.may_call(), "the clean-up of the handler may have effects"
    bench.attempt.request_stop("lost")
    assert not bench.attempt.may_call(), "the run belongs to another attempt"


async def test_a_flush_that_defers_a_drain_is_ended_by_a_stop_that_may_not_wait(bench):
    waiting = asyncio.ensure_future(bench.attempt.flush(bench.draft.cut(), may_drain=lambda: False))
    await settled()
    bench.attempt.request_stop("drain")
    await settled()
    assert not waiting.done(), "the turn has to end first"
    bench.attempt.request_kill(DeadlineExceeded("its time is over"))
    error = await ended(waiting)
    assert isinstance(error, Stopped)
    assert error.why == "deadline"


async def test_a_handler_whose_drain_is_deferred_waits_until_its_lease_is_confirmed(bench):
    bench.lease._doubted = True
    bench.lease._confirmed.clear()
    bench.attempt.request_stop("drain")
    waiting = asyncio.ensure_future(bench.attempt.wait_until_confirmed(may_drain=lambda: False))
    await settled()
    assert not waiting.done()
    bench.lease._doubted = False
    bench.lease._confirmed.set()
    assert await ended(waiting) is None


async def test_first_stop_reason_counts_and_a_lost_token_overrides_it(bench):
    bench.attempt.request_stop("drain")
    first = bench.attempt.stopping
    bench.attempt.request_stop("cancel")
    assert bench.attempt.stopping is first
    bench.attempt.request_stop("lost")
    assert bench.attempt.lost


async def test_cancel_reaches_only_a_handler_that_is_running(bench):
    async def handler() -> None:
        await asyncio.Event().wait()

    bench.attempt.task = asyncio.get_running_loop().create_task(handler())
    await settled()
    bench.attempt.request_stop("cancel")
    bench.attempt.cancel()
    assert not bench.attempt.delivered
    bench.attempt.start()
    bench.attempt.cancel()
    assert bench.attempt.delivered
    with contextlib.suppress(asyncio.CancelledError):
        await bench.attempt.task
    assert bench.attempt.task.cancelled()


async def test_ended_attempt_offers_no_more_cuts(bench):
    bench.attempt.decide()
    bench.draft.state["x"] = 1
    bench.attempt.offer(bench.draft.cut())
    await settled()
    assert bench.sent == 0
    assert bench.saver.last_delta() == b""


async def test_cancellation_without_a_request_is_an_internal_error(bench):
    bench.attempt.task = asyncio.get_running_loop().create_task(asyncio.Event().wait())
    bench.attempt.start()
    with pytest.raises(IllegalTransition):
        bench.attempt.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await bench.attempt.task


async def test_lost_attempt_notifies_its_observer_and_closes_its_saver(bench):
    bench.attempt.lose()
    assert bench.observer.seen == ["lost"]
    assert bench.saver.closed


async def test_flush_after_the_outcome_raises_lost_and_requests_nothing(bench):
    bench.attempt.decide()
    bench.saver.close()
    error = await ended(bench.flush())
    assert isinstance(error, Stopped)
    assert (bench.attempt.stopping, bench.attempt.lost) == (None, False)


class GivingUp:
    """A waiter that gives up because of a stop, before the attempt has noticed the stop."""

    async def look(self, attempt: Attempt, condition: Condition, timeout_ms: int | None) -> Received:
        attempt.request_stop("drain")
        raise Unreachable("the server does not answer")


async def test_look_that_is_given_up_because_of_a_stop_raises_the_stop(bench):
    bench.attempt.waiter = GivingUp()
    looking = asyncio.ensure_future(bench.attempt.look(Condition(), None))
    assert isinstance(await ended(looking), Stopped)
    assert bench.attempt.delivered
