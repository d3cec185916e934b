"""complete: only the owner ends a run, and only once; a repeated call gets the same answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.encoding.spec import SPEC_FIELDS
from coordinator.errors import BadCall
from coordinator.store import scripts
from coordinator.store.plans.workers import Claimed
from coordinator.store.replies import word
from tests.lua.store import NOW, ROUTES, Store, delta

DAY = 86_400_000


def test_completed_run_ends_and_its_checkpoint_is_removed(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=1, state=b"s"))
    store.later(5)
    assert store.complete(run, b"\x00result") == "ok"
    fields = store.client.hgetall(store.keys.run(run.id))
    assert (fields[b"status"], fields[b"result"], fields[b"ended"]) == (b"completed", b"\x00result", b"%d" % (NOW + 5))
    assert b"token" not in fields
    assert store.places(run.id) == ["ended:completed"]
    assert store.score(store.keys.ended("completed"), run.id) == NOW + 5 + DAY
    assert not store.client.exists(
        store.keys.ckpt(run.id), store.keys.messages(run.id, "1"), store.keys.live(), store.keys.owned("w1")
    )
    assert 0 < store.client.pttl(store.keys.run(run.id)) <= DAY


def test_repeated_complete_ends_the_run_once(store: Store) -> None:
    run = store.running(once="key", digest="d")
    store.complete(run)
    store.later(10)
    with store.unchanged():
        assert store.complete(run, b"other result") == "ok"


def test_only_the_owner_completes(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.complete(stranger) == "fenced"


@pytest.mark.parametrize("other", ["fail", "retry", "release", "reject"])
def test_completion_after_another_ending_of_the_attempt_is_refused(store: Store, other: str) -> None:
    run = store.running()
    getattr(store, other)(run)
    with store.unchanged():
        assert store.complete(run) == "fenced"


def test_refused_item_does_not_affect_its_neighbours(store: Store) -> None:
    first, second, third = (store.running() for _ in range(3))
    store.spoil(store.keys.run(second.id))
    calls = [
        scripts.COMPLETE.each(
            store.keys.at, run.id, {"now": store.at}, id=run.id, token=run.token, result=b"r", rest=b""
        )
        for run in (first, second, third)
    ]
    assert [word(reply) for reply in store.wire.ask(calls)] == ["ok", "fenced", "ok"]
    assert store.line(store.keys.ended("completed")) == [first.id, third.id]


def test_runs_of_a_batch_keep_their_checkpoints_each_by_its_own_call(store: Store) -> None:
    kept, dropped = store.running(), store.running()
    for run in (kept, dropped):
        store.save(run, delta(1, count=1, state=b"s"))
    calls = [
        scripts.COMPLETE.each(
            store.keys.at, run.id, {"now": store.at}, id=run.id, token=run.token, result=b"r", rest=rest
        )
        for run, rest in ((kept, b"k"), (dropped, b""))
    ]
    assert [word(reply) for reply in store.wire.ask(calls)] == ["ok", "ok"]
    assert store.client.exists(store.keys.ckpt(kept.id)) == 1
    assert store.client.exists(store.keys.ckpt(dropped.id)) == 0


def test_runs_of_a_batch_leave_the_sets_of_their_own_workers(store: Store) -> None:
    runs = [store.running(), store.running("w2"), store.running()]
    calls = [
        scripts.COMPLETE.each(
            store.keys.at, run.id, {"now": store.at}, id=run.id, token=run.token, result=b"r", rest=b""
        )
        for run in runs
    ]
    assert [word(reply) for reply in store.wire.ask(calls)] == ["ok", "ok", "ok"]
    assert not store.client.exists(store.keys.owned("w1"), store.keys.owned("w2"))


def damage_once(store: Store, run: Claimed) -> None:
    store.client.hset(store.keys.run(run.id), "once", "broken")


def damage_waiters(store: Store, run: Claimed) -> None:
    store.wait(run.id, "c1")
    store.spoil(store.keys.waiters(run.id))


def damage_wake(store: Store, run: Claimed) -> None:
    store.wait(run.id, "c1")
    store.spoil(store.keys.wake("c1"))


@pytest.mark.parametrize("damage", [damage_once, damage_waiters, damage_wake])
def test_damaged_item_leaves_no_neighbour_half_ended(store: Store, damage: Callable[[Store, Claimed], None]) -> None:
    runs = [store.running(once=f"key{number}", digest="d") for number in range(3)]
    damage(store, runs[1])
    calls = [
        scripts.COMPLETE.each(
            store.keys.at, run.id, {"now": store.at}, id=run.id, token=run.token, result=b"r", rest=b""
        )
        for run in runs
    ]
    assert [word(reply) for reply in store.wire.ask(calls)] == ["ok", "ok", "ok"]
    assert [store.places(run.id) for run in runs] == [["ended:completed"]] * 3
    assert not store.client.exists(store.keys.live(), store.keys.owned("w1"))


def test_broken_set_is_reported_and_the_others_are_written(store: Store) -> None:
    first, second = store.running(), store.running()
    store.spoil(store.keys.ended("completed"))
    calls = [
        scripts.COMPLETE.each(
            store.keys.at, run.id, {"now": store.at}, id=run.id, token=run.token, result=b"r", rest=b""
        )
        for run in (first, second)
    ]
    assert [type(reply) for reply in store.wire.ask(calls)] == [BadCall, BadCall]
    assert [store.status(run.id) for run in (first, second)] == ["completed", "completed"]
    assert not store.client.exists(store.keys.live(), store.keys.owned("w1"))


def test_a_completion_after_a_cancel_request_ends_the_run_as_cancelled(store: Store) -> None:
    run = store.running()
    store.cancel(run.id)
    assert store.complete(run) == "cancelled"
    assert store.status(run.id) == "cancelled"
    assert not store.client.hexists(store.keys.worker("w1"), f"cancel:{run.id}")
    assert store.line(store.keys.deadlines()) == []
    store.later(60_000)
    store.due()
    assert store.status(run.id) == "cancelled"


def test_completion_wakes_waiting_clients(store: Store) -> None:
    run = store.running()
    store.wait(run.id, "c1")
    store.wait(run.id, "c2")
    store.complete(run)
    for client in ("c1", "c2"):
        assert store.client.lrange(store.keys.wake(client), 0, -1) == [run.id.encode()]
        assert store.client.pttl(store.keys.wake(client)) > 0
    assert not store.client.exists(store.keys.waiters(run.id))


def test_with_retention_0_only_a_bare_tombstone_is_left(store: Store) -> None:
    before = store.dump()
    run = store.running(retention="0", once="key", digest="d", expires="9000", spec=b"s" * 200)
    store.save(run, delta(1, count=1, state=b"s", note=b"n"))
    store.complete(run)
    store.leave()
    store.client.delete(
        store.keys.worker("w1"), store.keys.bell(ROUTES[0]), store.keys.coordinator_bell(), store.keys.routes()
    )
    left = store.dump()
    assert left.keys() - before.keys() == {store.keys.run(run.id)}
    assert not left[store.keys.run(run.id)][1].keys() & {*SPEC_FIELDS, "result", "error", "note", "prev", "token"}
    assert 50_000 < store.client.pttl(store.keys.run(run.id)) <= 60_000
    assert store.complete(run) == "ok", "and the tombstone still answers"


def test_run_with_short_retention_is_known_while_calls_may_be_repeated(store: Store) -> None:
    run = store.running(retention="1000")
    store.complete(run)
    assert 50_000 < store.client.pttl(store.keys.run(run.id)) <= 60_000
