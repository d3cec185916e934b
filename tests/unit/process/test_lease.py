"""When a lease comes into doubt, and when the doubt ends."""

from __future__ import annotations

import asyncio

from coordinator.store.keys import Keys
from tests.waiting import next_turn
from workers.liveness.lease import Lease, claim_number, new_worker_id


class Clock:
    """A clock that only the test moves."""

    time = 100.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None: ...

    async def asleep(self, seconds: float) -> None: ...


def make_lease() -> tuple[Lease, Clock]:
    clock = Clock()
    return Lease(Keys("n", 0), 15.0, clock), clock


def test_lease_counts_from_when_the_last_successful_heartbeat_was_sent():
    lease, clock = make_lease()
    clock.time += 10.0
    lease.renewed(105.0, compared=False)
    clock.time = 120.0
    assert not lease.in_doubt
    clock.time = 120.1
    assert lease.in_doubt


def test_doubt_ends_only_after_a_heartbeat_that_compared_runs():
    lease, clock = make_lease()
    clock.time += 20.0
    assert lease.in_doubt
    lease.renewed(119.0, compared=False)
    assert lease.in_doubt
    lease.renewed(119.5, compared=True)
    assert not lease.in_doubt


def test_late_reply_to_a_heartbeat_does_not_end_the_doubt():
    lease, clock = make_lease()
    clock.time += 40.0
    assert lease.in_doubt
    lease.renewed(110.0, compared=True)
    assert lease.in_doubt


def test_reply_out_of_order_does_not_shorten_the_lease():
    lease, clock = make_lease()
    lease.renewed(110.0, compared=False)
    lease.renewed(101.0, compared=False)
    clock.time = 124.0
    assert not lease.in_doubt


async def test_waiter_continues_when_the_doubt_ends_or_the_lease_is_lost():
    for over in (lambda lease: lease.renewed(120.0, compared=True), lambda lease: lease.lose()):
        lease, clock = make_lease()
        await lease.wait_until_confirmed()
        clock.time += 20.0
        waiting = asyncio.ensure_future(lease.wait_until_confirmed())
        await next_turn()
        assert not waiting.done()
        over(lease)
        await waiting


def test_token_contains_its_claim_number():
    assert claim_number("1700000000000-17-w1-2") == 17
    assert new_worker_id() != new_worker_id()
