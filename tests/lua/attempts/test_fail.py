"""fail: only the owner ends a run, and only once; its checkpoint is kept for the retention."""

from __future__ import annotations

import pytest

from coordinator.store.plans.workers import Claimed
from tests.lua.store import NOW, Store, delta, messages

WEEK = 7 * 86_400_000


def test_failed_run_and_its_checkpoint_are_kept_for_the_same_time(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=1, state=b"s"))
    assert store.fail(run, b"boom", delta(2, base=1, count=1).wire()) == "ok"
    fields = store.run(run.id)
    assert (fields["status"], fields["error"], fields["prev"]) == ("failed", "boom", "w1 c1")
    assert store.places(run.id) == ["ended:failed"]
    assert store.score(store.keys.ended("failed"), run.id) == NOW + WEEK
    assert store.transcript(run.id) == messages(2)
    for key in (store.keys.run(run.id), store.keys.ckpt(run.id), store.keys.messages(run.id, "1")):
        assert WEEK - 60_000 < store.client.pttl(key) <= WEEK
    assert store.counters(run.id).failures == 1
    assert store.members(store.keys.live()) == set()


def test_repeated_fail_ends_the_run_once(store: Store) -> None:
    run = store.running()
    save = delta(1, count=1).wire()
    store.fail(run, b"boom", save)
    store.later(10)
    with store.unchanged():
        assert store.fail(run, b"other", save) == "ok"


def test_only_the_owner_fails_a_run(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.fail(stranger, b"stale", delta(1, count=1).wire()) == "fenced"


def test_unreadable_counters_refuse_a_fail(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "counters", "1 2 3")
    with store.unchanged():
        assert store.fail(run) == "fenced"


def test_gap_is_reported_before_anything_is_written(store: Store) -> None:
    run = store.running()
    with store.unchanged():
        assert store.fail(run, b"boom", delta(5, base=3, count=1).wire()) == "gap"
    assert store.fail(run, b"boom", delta(6, acked=0, count=4).wire()) == "ok"
    assert store.transcript(run.id) == messages(4)


@pytest.mark.parametrize("last", [b"nonsense", delta(1, count=1).wire()])
def test_delta_that_cannot_be_stored_does_not_prevent_the_ending(store: Store, last: bytes) -> None:
    run = store.running()
    store.save(run, delta(2, acked=0, count=2))
    assert store.fail(run, b"boom", last) == "ok"
    assert (store.status(run.id), store.transcript(run.id)) == ("failed", messages(2))


def test_a_failure_after_a_cancel_request_ends_the_run_as_cancelled(store: Store) -> None:
    run = store.running()
    store.cancel(run.id)
    assert store.fail(run) == "cancelled"
    assert store.status(run.id) == "cancelled"
    with store.unchanged():
        assert store.fail(run) == "cancelled"


def test_progress_since_the_last_failure_resets_the_failure_count(store: Store) -> None:
    run = store.running()
    store.retry(run, delay=0)
    store.due()
    run = store.take()
    store.save(run, delta(1, count=1))
    store.fail(run)
    assert store.counters(run.id).failures == 1


def test_schema_of_the_last_delta_counts(store: Store) -> None:
    run = store.running(retention="0")
    store.fail(run, b"boom", delta(1, count=1, schema=2).wire())
    assert not store.client.exists(store.keys.ckpt(run.id), store.keys.messages(run.id, "1"))
