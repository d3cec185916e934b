"""rate, acquire, finish and back_off: external calls under a rate, one script at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from coordinator.errors import BadCall, Unreadable
from coordinator.model.limits import TOMBSTONE_MS
from coordinator.model.policies.rates import Bucket, RateLimit, encode_rate, estimate_wait
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import rates as rate_plans
from coordinator.store.plans.rates import Acquired
from coordinator.store.replies import word
from coordinator.store.script import Call
from coordinator.store.scripts import RATE
from tests.lua.store import LEASE, Store

API = "api"


def set_rate(
    store: Store, rate: str | None = "10/s", burst: int | None = 10, at_once: int | None = None, operation: str = ""
) -> bool:
    stored = encode_rate(rate, burst, at_once)
    mark = operation or f"r{store.client.incr(f'{store.keys.at}:test')}"
    return store.do(rate_plans.set_rate(store.keys, API, stored, mark, store.at))


def acquire(store: Store, number: int, cost: int = 1, worker: str = "w1") -> Acquired:
    return store.do(rate_plans.acquire(store.keys, worker, API, number, cost, store.at))


def finish(store: Store, number: int, cost: int | None = None, worker: str = "w1") -> str:
    return store.do(rate_plans.finish(store.keys, worker, API, number, cost, store.at))


def back_off(store: Store, number: int, ms: int, worker: str = "w1") -> str:
    return store.do(rate_plans.back_off(store.keys, worker, API, number, ms, store.at))


def rates(store: Store) -> list[RateLimit]:
    return store.do(rate_plans.read_rates([store.keys]))


def level(store: Store) -> float:
    return float(store.client.hget(store.keys.bucket(API), "level"))


def inbox(store: Store, worker: str = "w1") -> list[str]:
    return [entry.decode() for entry in store.client.lrange(store.keys.inbox(worker), 0, -1)]


def wait(ms: int) -> Acquired:
    return Acquired("wait", wait_ms=ms)


OK = Acquired("ok")


@pytest.fixture(autouse=True)
def joined(store: Store) -> None:
    store.join("w1")
    store.join("w2")


# -- the rate


def test_calls_start_at_once_until_the_burst_is_used(store: Store) -> None:
    set_rate(store, "10/s", 3)
    assert [acquire(store, number) for number in (1, 2, 3, 4, 5)] == [OK, OK, OK, wait(100), wait(200)]


def test_waiting_call_starts_when_it_was_told(store: Store) -> None:
    set_rate(store, "10/s", 1)
    acquire(store, 1)
    assert acquire(store, 2) == wait(100)
    store.later(99)
    assert acquire(store, 2) == wait(1)
    store.later(1)
    assert acquire(store, 2) == OK


def test_calls_start_in_the_order_in_which_they_began_to_wait(store: Store) -> None:
    set_rate(store, "10/s", 1)
    acquire(store, 1)
    assert [acquire(store, 2), acquire(store, 3, worker="w2")] == [wait(100), wait(200)]
    store.later(100)
    assert acquire(store, 3, worker="w2") == wait(100)
    assert acquire(store, 2) == OK


def test_new_call_does_not_overtake_a_large_one_that_waits(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1, 10)
    assert acquire(store, 2, 10) == wait(1000)
    store.later(500)
    assert acquire(store, 3, 1) == wait(600)


def test_cost_above_the_burst_is_refused_and_reserves_nothing(store: Store) -> None:
    set_rate(store, "10/s", 10)
    assert acquire(store, 1, 11) == Acquired("large", burst=10)
    assert acquire(store, 2, 10) == OK


def test_name_without_a_rate_is_unknown(store: Store) -> None:
    assert acquire(store, 1) == Acquired("unknown")


def test_call_whose_rate_is_removed_while_it_waits_is_unknown_and_leaves_the_line(store: Store) -> None:
    set_rate(store, "10/s", 1)
    acquire(store, 1)
    acquire(store, 2)
    store.do(rate_plans.set_rate(store.keys, API, "", "gone", store.at))
    assert acquire(store, 2) == Acquired("unknown")
    assert store.client.zcard(store.keys.turns(API)) == 0


def test_clock_that_is_set_back_neither_frees_tokens_nor_stops_the_rate(store: Store) -> None:
    set_rate(store, "10/s", 1)
    acquire(store, 1)
    store.later(-3_600_000)
    assert acquire(store, 2) == wait(100)
    store.later(100)
    assert acquire(store, 2) == OK


def test_clock_that_is_set_forward_frees_at_most_the_burst(store: Store) -> None:
    set_rate(store, "10/s", 3)
    for number in (1, 2, 3):
        acquire(store, number)
    store.later(3_600_000)
    assert [acquire(store, number) for number in (4, 5, 6, 7)] == [OK, OK, OK, wait(100)]


def test_costs_may_be_fractions_of_what_a_millisecond_frees(store: Store) -> None:
    set_rate(store, "3000000/s", 10)
    for number in range(1, 11):
        assert acquire(store, number) == OK
    assert acquire(store, 11) == wait(1)
    store.later(1)
    assert acquire(store, 11) == OK
    assert level(store) == 1.0


# -- repeated and late calls


def test_repeated_call_reserves_once(store: Store) -> None:
    set_rate(store, "10/s", 10)
    assert [acquire(store, 1, 4), acquire(store, 1, 4)] == [OK, OK]
    assert level(store) == 4


def test_repeated_wait_keeps_one_turn(store: Store) -> None:
    set_rate(store, "10/s", 1)
    acquire(store, 1)
    assert [acquire(store, 2), acquire(store, 2), acquire(store, 3)] == [wait(100), wait(100), wait(200)]


def test_call_that_arrives_after_its_end_reserves_nothing(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1, 4)
    finish(store, 1)
    assert acquire(store, 1, 4) == Acquired("old")
    assert (level(store), rates(store)[0].held) == (4, 0)


def test_call_that_arrives_after_it_was_given_back_reserves_nothing(store: Store) -> None:
    set_rate(store, "10/s", 10)
    assert finish(store, 1, 0) == "again"
    assert acquire(store, 1, 4) == Acquired("old")


def test_call_that_was_overtaken_asks_with_a_new_number(store: Store) -> None:
    set_rate(store, "10/s", 10)
    assert acquire(store, 2) == OK
    assert acquire(store, 1) == Acquired("old")
    assert acquire(store, 3) == OK


def test_repeated_end_settles_once(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1, 4)
    acquire(store, 2, 4)
    assert [finish(store, 1, 1), finish(store, 1, 1)] == ["ok", "again"]
    assert level(store) == 5


def test_call_of_a_worker_that_is_gone_reserves_nothing(store: Store) -> None:
    set_rate(store, "10/s", 10)
    assert acquire(store, 1, worker="stranger") == Acquired("gone")
    store.do(coordinator_plans.abandon(store.keys, "w2", now=store.at))
    assert acquire(store, 1, worker="w2") == Acquired("gone")


def test_bucket_expires_a_minute_after_it_is_empty(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1, 10)
    finish(store, 1)
    assert TOMBSTONE_MS < store.client.pttl(store.keys.bucket(API)) <= TOMBSTONE_MS + 1000


def test_bucket_stays_until_the_calls_that_wait_have_asked_again(store: Store) -> None:
    set_rate(store, "10/min", 10)
    for number in (1, 2, 3):
        acquire(store, number, 10)
    assert store.client.pttl(store.keys.bucket(API)) > 3 * 60_000


def test_lost_bucket_lets_no_new_call_overtake_those_that_wait(store: Store) -> None:
    set_rate(store, "10/s", 10)
    for number in (1, 2, 3):
        acquire(store, number, 10)
    store.client.delete(store.keys.bucket(API))
    assert acquire(store, 4, 5) == wait(501)
    assert [acquire(store, 2, 10), acquire(store, 3, 10)] == [OK, wait(1000)]


def test_numbers_of_workers_that_are_gone_are_forgotten_when_a_new_worker_comes(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1, worker="w2")
    store.leave("w2")
    acquire(store, 1)
    assert not store.client.hexists(store.keys.bucket(API), "seen:w2")


# -- settling


def test_call_that_cost_less_gives_the_difference_to_the_next(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1, 10)
    assert acquire(store, 2, 5) == wait(500)
    finish(store, 1, 2)
    assert acquire(store, 2, 5) == OK


def test_call_that_cost_more_delays_the_next(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1, 1)
    finish(store, 1, 30)
    assert acquire(store, 2, 1) == wait(2100)


def test_call_that_was_never_started_gives_everything_back(store: Store) -> None:
    set_rate(store, "10/s", 10, at_once=1)
    acquire(store, 1, 10)
    assert finish(store, 1, 0) == "ok"
    assert acquire(store, 2, 10) == OK


def test_waiting_call_that_leaves_gives_its_turn_to_the_next(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1, 10)
    acquire(store, 2, 10)
    assert acquire(store, 3, 10) == wait(2000)
    assert finish(store, 2, 0) == "left"
    assert acquire(store, 3, 10) == wait(1000)


def test_waiting_calls_look_early_once_a_call_cost_less_than_it_reserved(store: Store) -> None:
    set_rate(store, "10/s", 100)
    acquire(store, 1, 100)
    finish(store, 1, 99)
    assert acquire(store, 2, 100) == wait(2475)
    assert acquire(store, 3, 1) == wait(2500)


# -- places


def test_calls_above_the_number_at_once_wait_for_a_place(store: Store) -> None:
    set_rate(store, None, None, at_once=2)
    assert [acquire(store, number) for number in (1, 2, 3, 4, 5)] == [OK, OK, wait(1000), wait(1000), wait(5000)]
    assert rates(store) == [RateLimit(API, None, None, 2, held=2, waiting=3)]


def test_end_of_a_call_tells_the_worker_of_the_next(store: Store) -> None:
    set_rate(store, None, None, at_once=1)
    acquire(store, 1)
    acquire(store, 7, worker="w2")
    acquire(store, 8, worker="w2")
    finish(store, 1)
    assert (inbox(store, "w1"), inbox(store, "w2")) == ([], ["limit 7"])
    assert acquire(store, 8, worker="w2") == wait(1000)
    assert acquire(store, 7, worker="w2") == OK


def test_workers_are_asked_seldom_whether_their_calls_are_open(store: Store) -> None:
    """Ask for the calls that hold places, and for the first ones of the line, when a call has waited for a while."""
    set_rate(store, rate=None, burst=None, at_once=1)
    assert acquire(store, 1) == OK
    acquire(store, 1, worker="w2")
    acquire(store, 2, worker="w2")
    store.client.delete(store.keys.inbox("w1"), store.keys.inbox("w2"))
    for times in (1, 1, 2):
        acquire(store, 2, worker="w2")
        assert (inbox(store, "w1"), inbox(store, "w2")) == (["calls api 1"] * times, ["calls api 1 2"] * times)
        store.later(4000)


def test_waiting_call_that_leaves_tells_the_one_behind_it(store: Store) -> None:
    set_rate(store, None, None, at_once=1)
    acquire(store, 1)
    acquire(store, 2)
    acquire(store, 3)
    finish(store, 1)
    finish(store, 2, 0)
    assert inbox(store) == ["limit 2", "limit 3"]


def test_next_call_of_a_worker_that_is_gone_is_passed_over(store: Store) -> None:
    set_rate(store, None, None, at_once=1)
    acquire(store, 1)
    acquire(store, 2, worker="w2")
    acquire(store, 3)
    store.leave("w2")
    finish(store, 1)
    assert inbox(store) == ["limit 3"]
    assert acquire(store, 3) == OK


def condemn(store: Store, worker: str) -> None:
    store.do(coordinator_plans.abandon(store.keys, worker, now=store.at))


GONE = pytest.mark.parametrize("lose", [condemn, Store.leave], ids=["condemned", "left"])


@GONE
def test_calls_of_a_worker_that_is_gone_give_their_places_to_others(
    store: Store, lose: Callable[[Store, str], None]
) -> None:
    set_rate(store, None, None, at_once=3)
    assert [acquire(store, 1), acquire(store, 1, worker="w2"), acquire(store, 2, worker="w2")] == [OK] * 3
    for number in (3, 4):  # the calls of the worker that is lost wait between others
        acquire(store, number)
        acquire(store, number, worker="w2")
    acquire(store, 5)
    lose(store, "w2")
    (found,) = rates(store)
    assert (found.held, found.waiting) == (1, 3)
    assert inbox(store) == ["limit 3", "limit 4"]
    assert [acquire(store, number) for number in (3, 4)] == [OK, OK]
    assert acquire(store, 5).word == "wait"
    assert finish(store, 2, worker="w2") == "again", "a late end frees no second place"


@GONE
@pytest.mark.parametrize("damaged", ["rates", "holders", "turns"])
def test_worker_is_removed_although_a_key_of_a_rate_has_another_type(
    store: Store, lose: Callable[[Store, str], None], damaged: str
) -> None:
    set_rate(store, None, None, at_once=1)
    acquire(store, 1, worker="w2")
    acquire(store, 1)
    key = store.keys.rates() if damaged == "rates" else getattr(store.keys, damaged)(API)
    store.client.delete(key)
    store.client.set(key, "text")
    lose(store, "w2")
    assert store.client.zscore(store.keys.workers(), "w2") is None


def test_place_that_a_lost_worker_has_left_behind_is_free(store: Store) -> None:
    set_rate(store, None, None, at_once=1)
    store.client.zadd(
        store.keys.holders(API), {"w9-1": 1}
    )  # its worker was recovered by a coordinator of an older version
    assert acquire(store, 1) == OK


def test_place_of_a_worker_whose_lease_expired_is_kept_until_a_coordinator_condemns_it(store: Store) -> None:
    set_rate(store, None, None, at_once=1)
    acquire(store, 1, worker="w2")
    store.later(LEASE + 1)
    store.beat("w1")
    assert acquire(store, 1) == wait(1000)


def test_limit_of_zero_lets_no_call_start_until_it_is_raised(store: Store) -> None:
    set_rate(store, None, None, at_once=0)
    assert acquire(store, 1) == wait(1000)
    set_rate(store, None, None, at_once=1)
    assert acquire(store, 1) == OK


def test_rate_and_places_both_count(store: Store) -> None:
    set_rate(store, "10/s", 10, at_once=1)
    assert [acquire(store, 1, 10), acquire(store, 2, 10)] == [OK, wait(1000)]
    finish(store, 1)
    assert acquire(store, 2, 10) == wait(1000)
    store.later(1000)
    assert acquire(store, 2, 10) == OK


# -- backing off


def test_back_off_stops_the_calls_of_every_worker(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1)
    assert back_off(store, 1, 5000) == "ok"
    assert acquire(store, 1, worker="w2") == wait(5000)
    store.later(5000)
    assert acquire(store, 1, worker="w2") == OK


def test_back_off_stops_calls_that_wait_already_and_they_keep_to_the_rate_afterwards(store: Store) -> None:
    set_rate(store, "10/s", 1)
    acquire(store, 1)
    assert [acquire(store, 2), acquire(store, 3)] == [wait(100), wait(200)]
    back_off(store, 1, 5000)
    store.later(5000)
    assert [acquire(store, 3), acquire(store, 2), acquire(store, 3)] == [wait(100), OK, wait(100)]


def test_shorter_back_off_does_not_end_a_longer_one(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1)
    back_off(store, 1, 5000)
    back_off(store, 1, 1000)
    assert acquire(store, 2) == wait(5000)


def test_back_off_of_a_call_that_has_ended_changes_nothing(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1)
    finish(store, 1)
    assert back_off(store, 1, 5000) == "over"
    assert acquire(store, 2) == OK


def test_clock_that_is_set_back_does_not_prolong_a_back_off(store: Store) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1)
    back_off(store, 1, 5000)
    store.later(-3_600_000)
    assert acquire(store, 2) == wait(5000)


# -- setting rates


def test_rates_are_listed_and_removed(store: Store) -> None:
    assert set_rate(store, "90000/min", 10_000, at_once=20)
    assert rates(store) == [RateLimit(API, "90000/min", 10_000, 20)]
    assert not set_rate(store, "90000/min", 10_000, at_once=20)
    assert store.do(rate_plans.set_rate(store.keys, API, "", "x1"))
    assert rates(store) == []
    assert not store.do(rate_plans.set_rate(store.keys, API, "", "x2"))


def test_estimated_wait_is_the_one_that_a_new_call_is_told(store: Store) -> None:
    set_rate(store, "10/s", 5)
    assert [acquire(store, number).word for number in range(1, 6)] == ["ok"] * 5
    assert acquire(store, 6, 3).word == acquire(store, 7, 2).word == "wait"
    bucket = store.client.hmget(store.keys.bucket(API), "level", "at", "resumes", "ticket")
    level, at, resumes, ahead = (float(value) for value in bucket)
    stored = encode_rate("10/s", 5, None)
    assert estimate_wait(stored, Bucket(level, at, resumes, ahead), store.now) == pytest.approx(0.6)
    assert acquire(store, 8).wait_ms == 600
    assert back_off(store, 1, 30_000) == "ok"
    resumes = float(store.client.hget(store.keys.bucket(API), "resumes") or 0)
    assert estimate_wait(stored, Bucket(level, at, resumes, ahead), store.now) == pytest.approx(30)


def test_estimated_wait_of_a_rate_that_was_not_used_is_zero() -> None:
    assert estimate_wait(encode_rate("10/s", 5, None), Bucket(level=4, at=1000), 1000) == 0
    assert estimate_wait(encode_rate("10/s", 5, None), Bucket(level=5, at=1000), 60_000) == 0
    assert estimate_wait(encode_rate(None, None, 3), Bucket(), 1000) == 0


def test_new_speed_counts_from_the_change_on(store: Store) -> None:
    set_rate(store, "10/s", 100)
    acquire(store, 1, 100)
    store.later(1000)
    set_rate(store, "1/s", 100)
    assert acquire(store, 2, 20) == wait(10_000)


def test_late_repetition_of_a_change_does_not_undo_a_later_one(store: Store) -> None:
    set_rate(store, "10/s", 1, operation="first")
    set_rate(store, "20/s", 1, operation="second")
    call = RATE.call(store.keys.at, now=store.at, name=API, rate="10 1000 1 -", seen="", operation="first")
    assert word(store.do(one(call))) == "ok"
    assert rates(store)[0].rate == "20/s"


@pytest.mark.parametrize("stored", ["x", "1 1000 -  -", "0 1000 1 -", "1 1000 0 -", "- 1000 1 -", "- - - x", "1 2 3"])
def test_rate_that_can_not_be_read_is_refused(store: Store, stored: str) -> None:
    with pytest.raises(BadCall):
        store.do(rate_plans.set_rate(store.keys, API, stored, "o1"))


@pytest.mark.parametrize("key", ["bucket", "holders", "turns", "rates"])
def test_key_of_another_type_stops_no_script_in_the_middle(store: Store, key: str) -> None:
    set_rate(store, "10/s", 10)
    store.spoil(store.keys.rates() if key == "rates" else getattr(store.keys, key)(API))
    assert acquire(store, 1) == Acquired("unreadable")
    assert finish(store, 1) == ("again" if key == "rates" else "unreadable")
    assert back_off(store, 1, 10) == ("over" if key == "rates" else "unreadable")
    with pytest.raises(Unreadable):
        set_rate(store, "20/s", 10)


def one(call: Call) -> Generator[Call, Any, Any]:
    return (yield call)


@pytest.mark.parametrize("number", ["nan", "inf", "1e300", "-inf", "damaged"])
@pytest.mark.parametrize("field", ["level", "at", "resumes", "pause", "ticket", "front", "late", "seen:w1"])
def test_number_of_a_bucket_that_is_not_finite_does_not_stop_all_calls(store: Store, field: str, number: str) -> None:
    set_rate(store, "10/s", 10)
    acquire(store, 1, 10)
    acquire(store, 2, 10)
    store.client.hset(store.keys.bucket(API), field, number)
    store.later(60_000)
    acquire(store, 2, 10)
    store.later(1000)  # the time in which a bucket drains whose own time is lost
    assert acquire(store, 2, 10) == OK
    assert store.client.pttl(store.keys.bucket(API)) < 2 * TOMBSTONE_MS


@pytest.mark.parametrize("number", ["nan", "inf", "damaged", b"\xc1"])
def test_rates_are_shown_although_the_numbers_of_a_bucket_cannot_be_read(store: Store, number: str | bytes) -> None:
    set_rate(store, "10/s", 10)
    store.client.hset(store.keys.bucket(API), mapping=dict.fromkeys(["level", "at", "resumes", "ticket"], number))
    (shown,) = store.do(rate_plans.read_rates([store.keys]))
    assert (shown.name, shown.wait) == (API, 0.0)


@pytest.mark.parametrize("damaged", ["bucket", "holders", "turns"])
def test_request_that_ends_while_a_key_is_damaged_blocks_no_call_after_the_repair(store: Store, damaged: str) -> None:
    set_rate(store, None, None, at_once=1)
    assert [acquire(store, 1), acquire(store, 2).word] == [OK, "wait"]
    key = getattr(store.keys, damaged)(API)
    store.spoil(key)
    assert [finish(store, 1), finish(store, 2)] == ["unreadable"] * 2
    store.client.delete(key)
    assert acquire(store, 3) == OK
