"""The story of a run: each attempt that does not complete is recorded once, in the order of the endings, within limits."""

from __future__ import annotations

import pytest

from coordinator.encoding.codec import encode
from coordinator.model.run import AttemptRecord
from coordinator.model.story import read_story
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.workers import Claimed
from tests.lua.store import LEASE, NOW, Store, delta

ERROR = encode(["ValueError", "no tides", "Traceback: " + "x" * 5000], "error")


def story(store: Store, id: str) -> tuple[AttemptRecord, ...]:
    return read_story(store.client.hget(store.keys.run(id), "story"))


def end(store: Store, run: Claimed, how: str) -> None:
    match how:
        case "released":
            store.release(run)
        case "stopped":
            store.release(run, mode="unasked")
        case "retried":
            store.retry(run, error=ERROR)
        case "rejected":
            store.reject(run, proven=False)
        case "failed":
            store.fail(run, error=ERROR)
        case "forced":
            store.cancel(run.id, grace=1)
            store.later(1000)
            store.due()
        case _:
            store.crash(run)


ENDINGS = ("released", "stopped", "retried", "rejected", "failed", "forced", "recovered")


def test_finished_waits_are_not_counted_as_phases(store: Store) -> None:
    run = store.running()
    saved = (("phase:-:a#0", b"o"), ("wait:-:receive approval#0", b"o"), ("wait:-:sleep#0", b"o"))
    store.save(run, delta(1, phases=saved, more=b"10:received:t1:1"))
    store.release(run)
    (entry,) = story(store, run.id)
    assert entry.phases == 1


@pytest.mark.parametrize("how", ENDINGS)
def test_attempt_that_does_not_complete_is_recorded(store: Store, how: str) -> None:
    run = store.running()
    store.later(500)
    store.save(run, delta(1, count=3, iteration=2, state=b"s", phases=(("phase:-:a#0", b"o"),)))
    store.later(500)
    end(store, run, how)
    (entry,) = story(store, run.id)
    assert (entry.how, entry.life, entry.attempt, entry.worker, entry.code) == (how, 1, 1, "w1", "c1")
    assert entry.started is not None
    assert entry.saved is not None
    assert (entry.started.timestamp(), entry.saved.timestamp()) == (NOW / 1000, (NOW + 500) / 1000)
    assert entry.ended.timestamp() == store.now / 1000
    assert (entry.iteration, entry.messages, entry.phases) == (2, 3, 1)
    if how in ("retried", "failed"):
        assert entry.error is not None
        assert (entry.error.type, entry.error.message, entry.error.traceback) == ("ValueError", "no tides", "")
    elif how == "rejected":
        assert entry.error is not None
    else:
        assert entry.error is None


@pytest.mark.parametrize("how", ["released", "stopped", "retried", "rejected", "failed"])
def test_repeated_call_records_nothing_more(store: Store, how: str) -> None:
    run = store.running()
    end(store, run, how)
    with store.unchanged():
        end(store, run, how)
    store.later(10_000)
    store.due()
    assert len(story(store, run.id)) == 1


def test_call_without_ownership_records_nothing(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        for how in ("released", "retried", "rejected", "failed"):
            end(store, stranger, how)


def test_run_that_completes_at_its_first_attempt_has_no_story(store: Store) -> None:
    run = store.running()
    store.complete(run)
    assert not store.client.hexists(store.keys.run(run.id), "story")


def test_story_says_what_happened_to_the_worker(store: Store) -> None:
    run = store.running()
    for _ in range(3):  # the first judgement starts a hold, which ends in this time
        store.tick_for(LEASE - 5000)
        store.beat()
    store.tick_for(2 * LEASE)
    store.recover()
    store.crash(store.take("w2"))
    assert [entry.why for entry in story(store, run.id)] == ["its lease ran out", "its process died"]


def test_attempt_whose_worker_was_recovered_late_ended_with_its_lease(store: Store) -> None:
    """The time after the lease was not work of the attempt and is not reported as lost."""
    run = store.running()
    store.later(1000)
    store.save(run, delta(1, count=1))
    store.later(3_600_000)
    store.abandon()
    (entry,) = story(store, run.id)
    assert entry.ended.timestamp() * 1000 == NOW + LEASE
    again = store.take("w2")
    store.later(500)
    store.abandon("w2")
    assert story(store, again.id)[-1].ended.timestamp() * 1000 == NOW + 3_601_500, (
        "one that is given up at once is over now"
    )


def test_story_names_the_run_that_blocked_the_process_and_its_neighbours(store: Store) -> None:
    guilty, other = store.running(), store.running()
    store.abandon(blame=guilty.id)
    (told,), (of_the_other,) = story(store, guilty.id), story(store, other.id)
    assert told.why == "it blocked the event loop of its process, which was replaced"
    assert of_the_other.why == f"its process was replaced: run {guilty.id} had blocked its event loop"
    again = store.take("w2", want=1)
    store.abandon("w2", blame="nobody")
    assert story(store, again.id)[-1].why == "its process died"


def test_lease_that_expired_in_an_outage_is_recorded_as_such(store: Store) -> None:
    run = store.running()
    store.judge()
    store.later(60_000)
    store.judge()  # no coordinator was running, so recovery is held
    store.tick_for(2 * LEASE)
    store.recover()
    assert [entry.why for entry in story(store, run.id)] == ["its lease ran out in an outage"]


def test_cancel_that_ended_an_attempt_is_recorded(store: Store) -> None:
    run = store.running()
    store.cancel(run.id)
    assert store.release(run) == "cancelled"
    assert [(entry.how, entry.why) for entry in story(store, run.id)] == [("released", "a cancel was asked for")]


@pytest.mark.parametrize("from_start", [False, True])
def test_revival_keeps_the_story_and_is_recorded_in_it(store: Store, from_start: bool) -> None:
    run = store.running()
    store.fail(run, error=ERROR)
    store.later(10)
    store.revive(run.id, from_start=from_start)
    with store.unchanged():
        store.revive(run.id, from_start=from_start)
    again = store.take("w2")
    store.fail(again, error=ERROR)
    entries = story(store, run.id)
    assert [(entry.how, entry.life, entry.attempt) for entry in entries] == [
        ("failed", 1, 1), ("revived", 2, 1), ("failed", 2, 2),
    ]  # fmt: skip
    assert entries[1].why == ("from the start" if from_start else "")


def test_story_is_limited_in_count_and_drops_the_oldest_entries(store: Store) -> None:
    run = store.running()
    for _ in range(50):
        store.release(run)
        run = store.take()
    entries = story(store, run.id)
    assert [entry.attempt for entry in entries] == list(range(31, 51))


def test_story_is_limited_in_bytes_for_any_error(store: Store) -> None:
    long = encode(["E" * 10_000, "m" * 9000 + "é" * 1000, "t" * 20_000], "error")
    run = store.running()
    for _ in range(40):
        store.retry(run, error=long, delay=0)
        store.due()
        run = store.take()
    raw = store.client.hget(store.keys.run(run.id), "story")
    assert len(raw) < 17_000
    assert len(read_story(raw)) == 20


def test_unreadable_story_starts_again(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "story", "no netstrings at all")
    store.release(run)
    assert [entry.how for entry in story(store, run.id)] == ["released"]


@pytest.mark.parametrize("what", ["discard", "retention=0"])
def test_story_is_removed_with_the_run(store: Store, what: str) -> None:
    run = store.running(retention="0" if what == "retention=0" else "")
    store.release(run)
    store.fail(store.take(), error=ERROR)
    if what == "discard":
        assert store.client.hexists(store.keys.run(run.id), "story")
        store.do(client_plans.discard(store.keys, run.id))
    assert not store.client.hexists(store.keys.run(run.id), "story")
