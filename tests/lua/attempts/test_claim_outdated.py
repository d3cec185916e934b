"""claim: for a second after a stopping worker released a run, only newer code claims it. After that every worker may."""

from __future__ import annotations

import pytest

from coordinator.model.run import Status
from coordinator.store.plans.workers import Claimed
from tests.lua.store import Store


def released(store: Store, worker: str = "old") -> Claimed:
    """A run that a stopping worker has just released."""
    run = store.running(worker)
    store.later(10)
    store.release(run)
    store.client.delete(store.keys.bell(run.route))
    return run


def ids(claimed: tuple[str, list[Claimed]]) -> list[str]:
    return [run.id for run in claimed[1]]


def test_released_run_is_left_to_newer_code_which_claims_it_at_once(store: Store) -> None:
    run = released(store)
    store.join("outdated")
    store.join("new")
    assert store.claim("outdated", outdated=True) == ("left", [])
    assert store.client.llen(store.keys.bell(run.route)) == 1, "the bell is for those to whom it was left"
    assert ids(store.claim("new")) == [run.id]


def test_after_a_second_any_worker_claims_it(store: Store) -> None:
    run = released(store)
    store.join("outdated")
    store.later(999)
    assert store.claim("outdated", outdated=True) == ("left", [])
    store.later(1)
    assert ids(store.claim("outdated", outdated=True)) == [run.id]


def test_other_waiting_runs_are_claimed(store: Store) -> None:
    run = released(store)
    other = store.enqueue()
    store.join("outdated")
    word, runs = store.claim("outdated", outdated=True, want=1)
    assert (word, [one.id for one in runs]) == ("ok", [other])
    assert store.status(run.id) == Status.QUEUED
    assert store.client.llen(store.keys.bell(run.route)) == 1


@pytest.mark.parametrize("how", ["recover", "unasked", "retry", "reject"])
def test_only_runs_released_by_a_stopping_worker_are_left(store: Store, how: str) -> None:
    run = store.running("old")
    match how:
        case "recover":
            store.crash(run)
        case "unasked":
            store.release(run, mode="unasked")
        case "retry":
            store.retry(run, delay=0)
        case _:
            store.reject(run)
    store.later(5000)
    store.due()
    store.join("outdated")
    assert ids(store.claim("outdated", outdated=True)) == [run.id]


def test_claim_skips_at_most_64_such_runs(store: Store) -> None:
    """The cost of a claim is limited. Runs behind more than 64 reserved ones wait until those are free."""
    runs = [store.running("old") for _ in range(66)]
    other = store.enqueue()
    store.later(10)
    for run in runs[:-1]:
        store.release(run)
    store.join("outdated")
    assert store.claim("outdated", outdated=True, want=1) == ("left", [])
    assert ids(store.claim("outdated", outdated=True, want=2)) == [other]
    store.later(1000)
    assert len(store.claim("outdated", outdated=True, want=100)[1]) == 65


def test_suspect_is_left_to_newer_code_too(store: Store) -> None:
    run = store.running("old")
    for worker in ("old", "old2"):
        store.crash(run)
        store.later(3000)
        store.due()
        run = store.take(f"{worker}-next", alone=True)
    assert store.counters(run.id).strikes == 2
    store.later(10)
    store.release(run)
    store.client.delete(store.keys.suspect_bell(run.route))
    store.join("outdated")
    assert store.claim("outdated", outdated=True, alone=True) == ("left", [])
    assert store.client.llen(store.keys.suspect_bell(run.route)) == 1
    store.later(1000)
    assert store.claim("outdated", outdated=True, alone=True)[0] == "suspect"


def test_clock_that_went_back_does_not_reserve_the_run_forever(store: Store) -> None:
    run = released(store)
    store.later(-3_600_000)
    store.join("outdated")
    assert ids(store.claim("outdated", outdated=True)) == [run.id]


def test_unreadable_entry_is_set_aside_as_usual(store: Store) -> None:
    run = released(store)
    store.spoil(store.keys.run(run.id))
    store.join("outdated")
    assert store.claim("outdated", outdated=True) == ("ok", [])
    assert store.line(store.keys.aside()) == [f"queued:{run.id}"]
