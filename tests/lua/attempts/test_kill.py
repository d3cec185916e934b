"""kill: a run that the critic killed is never requeued, whichever call takes it from its owner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.store.plans.workers import Claimed
from tests.lua.store import LEASE, Store

TAKES: dict[str, Callable[[Store, Claimed], object]] = {
    "release": lambda store, run: store.release(run),
    "release that nobody asked for": lambda store, run: store.release(run, mode="unasked"),
    "retry": lambda store, run: store.retry(run),
    "reject": lambda store, run: store.reject(run),
    "abandon": lambda store, run: store.abandon(),
    "recover": lambda store, run: recover(store),
}


def recover(store: Store) -> None:
    store.tick_for(2 * LEASE)
    assert store.recover().failed == 1


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_killed_run_fails_by_whichever_call_takes_it_from_its_owner(
    store: Store, take: Callable[[Store, Claimed], object]
) -> None:
    run = store.running()
    assert store.kill(run, b"too slow") == "ok"
    take(store, run)
    assert store.status(run.id) == "failed"
    assert store.run(run.id)["error"] == "too slow"
    assert store.wait(run.id)[:2] == ["ended", "failed"]
    assert store.places(run.id) == ["ended:failed"]


@pytest.mark.parametrize("call", ["release", "retry", "reject"])
def test_repeated_kill_is_answered_the_same(store: Store, call: str) -> None:
    run = store.running()
    store.kill(run)
    assert getattr(store, call)(run) == "failed"
    with store.unchanged():
        assert getattr(store, call)(run) == "failed"


def test_killed_run_fails_and_its_neighbours_get_no_strike(store: Store) -> None:
    slow, other = store.running(), store.running()
    store.kill(slow)
    assert (store.abandon(blame="nobody").failed, store.status(other.id)) == (1, "queued")
    assert store.counters(other.id).strikes == 0


def test_first_kill_reason_is_kept(store: Store) -> None:
    run = store.running()
    store.kill(run, b"first")
    with store.unchanged():
        assert store.kill(run, b"second") == "ok"


def test_completion_before_the_kill_takes_effect_wins(store: Store) -> None:
    run = store.running()
    store.kill(run)
    assert store.complete(run) == "ok"
    assert store.status(run.id) == "completed"
    with store.unchanged():
        assert store.kill(run) == "fenced"


def test_run_with_a_requested_cancel_ends_as_cancelled(store: Store) -> None:
    run = store.running()
    store.kill(run)
    store.cancel(run.id)
    assert store.release(run) == "cancelled"


def test_only_the_owner_kills(store: Store) -> None:
    run = store.running()
    store.release(run)
    again = store.take("w2")
    with store.unchanged():
        assert store.kill(run) == "fenced"
    assert store.release(again) == "ok"


def test_revived_run_is_not_killed_and_sees_why_it_was(store: Store) -> None:
    run = store.running()
    store.kill(run, b"too slow")
    store.fail(run)
    store.revive(run.id)
    again = store.take()
    assert again.killed == b"too slow"
    assert store.release(again) == "ok"
    assert store.take().killed == b"too slow", "for the whole of its life"


def test_kill_is_forgotten_by_a_life_that_ended_otherwise(store: Store) -> None:
    run = store.running()
    store.kill(run)
    store.fail(run)
    store.revive(run.id)
    store.fail(store.take())
    store.revive(run.id, operation="r2")
    assert store.take().killed == b""


def test_bare_tombstone_keeps_nothing_of_a_kill(store: Store) -> None:
    run = store.running(retention="0")
    store.kill(run)
    store.release(run)
    assert store.run(run.id).keys().isdisjoint({"kill", "killed", "error", "spec"})


def test_doctor_ends_a_killed_run_without_an_owner(store: Store) -> None:
    from coordinator.store.plans import doctor as doctor_plans

    run = store.running()
    store.kill(run)
    store.client.hdel(store.keys.run(run.id), "token")
    store.client.srem(store.keys.owned("w1"), run.id)
    store.do(doctor_plans.repair_runs(store.keys, [(run.id, "tokenless")], now=store.at))
    assert store.status(run.id) == "failed"
