"""retry: the run is requeued after a delay, with a new score; a requested cancel wins."""

from __future__ import annotations

from coordinator.store.plans.workers import Claimed
from tests.lua.store import NOW, ROUTES, Store, delta, messages

STEP = 2**43


def test_retried_run_is_due_after_the_delay(store: Store) -> None:
    run = store.running(priority=3)
    store.later(10)
    assert store.retry(run, delay=2.5, last=delta(1, count=1).wire()) == "ok"
    assert (store.status(run.id), store.places(run.id)) == ("delayed", ["delayed"])
    assert store.score(store.keys.delayed(), run.id) == NOW + 2510
    counters = store.counters(run.id)
    assert counters.score == NOW + 2510 - 3 * STEP, "a new time and the same priority"
    assert (counters.failures, counters.strikes, counters.recoveries, counters.epoch) == (1, 0, 0, NOW + 10)
    fields = store.run(run.id)
    assert (fields["error"], fields["cause"], fields["prev"]) == ("error", "retry", "w1 c1")
    assert "token" not in fields
    assert store.transcript(run.id) == messages(1)
    assert store.members(store.keys.live()) == {run.id}


def test_repeated_retry_requeues_once(store: Store) -> None:
    run = store.running()
    store.retry(run)
    store.later(10)
    with store.unchanged():
        assert store.retry(run) == "ok"


def test_late_retry_takes_nothing_from_the_next_owner(store: Store) -> None:
    run = store.running()
    store.retry(run, delay=0)
    store.due()
    again = store.take()
    with store.unchanged():
        assert store.retry(run) == "ok", "the answer that it got"
    assert store.complete(again) == "ok"
    with store.unchanged():
        assert store.retry(run) == "fenced", "by now somebody else was the last owner"


def test_only_the_owner_retries(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.retry(stranger, last=delta(1, count=1).wire()) == "fenced"


def test_unreadable_counters_refuse_a_retry(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "counters", "1 2 3")
    with store.unchanged():
        assert store.retry(run) == "fenced"


def test_gap_is_reported_before_anything_is_written(store: Store) -> None:
    run = store.running()
    with store.unchanged():
        assert store.retry(run, last=delta(5, base=3, count=1).wire()) == "gap"


def test_failures_count_in_a_row_and_progress_resets_them(store: Store) -> None:
    store.enqueue()
    seen = []
    for seq in (0, 0, 1, 0, 2):
        run = store.take()
        if seq:
            store.save(run, delta(seq, base=seq - 1, count=1))
        store.retry(run, delay=0)
        store.due()
        seen.append(store.counters(run.id).failures)
    assert seen == [1, 2, 1, 2, 1]


def test_retry_from_the_start_removes_everything_saved(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=2, iteration=3, state=b"s", schema=2))
    assert store.retry(run, delay=0, last=delta(2, base=2, count=1, iteration=4).wire(), from_start=True) == "ok"
    assert not store.client.exists(store.keys.ckpt(run.id), store.keys.messages(run.id, "1"))
    assert store.run(run.id)["route"] == ROUTES[0], "any worker may take it again"
    store.due()
    again = store.take()
    assert (again.id, again.cause, again.checkpoint) == (run.id, "retry", None)
    assert store.save(again, delta(1, count=1)) == "ok", "a checkpoint of its own"


def test_retry_from_the_start_does_not_reset_the_failure_count(store: Store) -> None:
    store.enqueue()
    seen = []
    for turns in (3, 3, 2, 5, 5):
        run = store.take()
        for turn in range(1, turns + 1):
            store.save(run, delta(turn, iteration=turn))
        if turns == 2:
            store.release(run)  # progress before a release does not count either
            run = store.take()
        store.retry(run, delay=0, from_start=True)
        store.due()
        seen.append(store.counters(run.id).failures)
    assert seen == [1, 2, 3, 4, 5]


def test_retry_from_the_start_restarts_the_progress_deadline(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, iteration=1))
    store.later(5000)
    store.retry(run, delay=0, from_start=True)
    used, idle, progress, *_ = store.run(run.id)["spent"].split()
    assert (used, idle, progress) == ("5000", "0", "0")


def test_requested_cancel_wins(store: Store) -> None:
    run = store.running()
    store.cancel(run.id)
    assert store.retry(run, last=delta(1, count=1).wire()) == "cancelled"
    assert (store.status(run.id), store.places(run.id)) == ("cancelled", ["ended:cancelled"])
    assert store.transcript(run.id) == messages(1)
    assert store.line(store.keys.deadlines()) == []
    with store.unchanged():
        assert store.retry(run) == "cancelled"


def test_retried_run_waits_on_the_route_of_its_last_delta(store: Store) -> None:
    run = store.running()
    store.retry(run, delay=0, last=delta(1, schema=2).wire())
    store.due()
    assert store.places(run.id) == [f"ready:{ROUTES[2]}"]


def test_a_retry_that_the_handler_asked_for_is_not_a_failure(store: Store) -> None:
    run = store.running()
    assert store.retry(run, delay=0) == "ok"
    store.due()
    assert store.retry(store.take(), delay=0, asked=True) == "ok"
    assert store.counters(run.id).failures == 1
    assert store.status(run.id) == "delayed"
