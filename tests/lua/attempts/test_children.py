"""join_children, collect and the endings of joined children: each ending counts once, wakes its parent, and no child is left."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from coordinator.model import limits
from coordinator.model.run_id import child_id
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.workers import Claimed
from coordinator.store.script import Call
from coordinator.store.scripts import COMPLETE
from tests.lua.store import LEASE, NOW, Store, delta

BASE = "01hf7wz8001hf7wz800z-00"
OTHER = "01hf7wz8001hf7wz9000-00"


def spawn(store: Store, count: int = 3) -> tuple[Claimed, list[str]]:
    """Return a parent whose step has enqueued children, and the ids of the children."""
    parent = store.running()
    assert store.join_children(parent, BASE, count) == ("ok", 0)
    for index in range(count):
        assert store.child(parent, BASE, index) == ("created", child_id(BASE, index))
    return parent, [child_id(BASE, index) for index in range(count)]


def made(base: str, count: int) -> bytes:
    """Return the part of a checkpoint that says how many children of a step were enqueued."""
    return attempt_plans.netstrings([b"base:wait:-:gather x#0", f"1 {base} {count}".encode()])


def claim_all(store: Store, worker: str = "w2") -> dict[str, Claimed]:
    store.join(worker)
    return {run.id: run for run in store.claim(worker, want=100)[1]}


def complete_together(store: Store, *runs: Claimed) -> list[str]:
    """Complete runs in one call, and return the answers."""

    def plan() -> Generator[Any, Any, list[str]]:
        ended = tuple((run.id, run.token, "", "") for run in runs)
        (replies,) = yield [Call(COMPLETE, store.keys.at, (store.at,), ended, None)]
        return [reply.decode() for reply in replies] if isinstance(replies, list) else [str(replies)]

    return store.do(plan())


def test_children_count_up_from_the_base_over_the_last_digit() -> None:
    assert [child_id(BASE, index)[17:] for index in (0, 1, 32)] == ["00z-00", "010-00", "01z-00"]


def test_view_names_open_children_among_the_last_of_many(store: Store) -> None:
    count = 600
    parent, ids = spawn(store, count)
    assert store.suspend(parent, children={BASE: count}) == "waiting"
    left = {ids[0], ids[-1]}  # only the first and the last child stay open
    ended = 0
    while ended < count - 2:
        runs = [run for run in claim_all(store).values() if run.id not in left]
        ended += len(runs)
        assert complete_together(store, *runs) == ["ok"] * len(runs)
    children = store.do(client_plans.view(store.keys, parent.id))[9]
    assert children[:3] == [b"600", b"598", b"600"]
    assert {child[0].decode() for child in children[4]} == left


@pytest.mark.parametrize("how", ["crash", "release"])
def test_loss_after_a_further_child_has_ended_is_not_a_strike(store: Store, how: str) -> None:
    parent, ids = spawn(store)
    children = claim_all(store)
    strikes = []
    for number, ended in enumerate([ids[0], "", "", ids[1], ids[2], ""]):
        if ended:
            assert store.complete(children[ended]) == "ok"
        if how == "crash":
            store.crash(parent)
        else:
            assert store.release(parent, mode="unasked") == "delayed"
        strikes.append(store.counters(parent.id).strikes)
        store.later(60_000)
        store.due()
        parent = store.take(f"p{number}", alone=True)
    assert strikes == [0, 1, 2, 0, 0, 1]


def test_parent_without_new_endings_is_dead_after_three_losses(store: Store) -> None:
    parent, ids = spawn(store)
    store.complete(claim_all(store)[ids[0]])
    for number in range(4):
        assert store.status(parent.id) == "running"
        store.crash(parent)
        store.later(60_000)
        store.due()
        if number < 3:
            parent = store.take(f"p{number}", alone=True)
    assert store.status(parent.id) == "dead", "one loss after progress, and three strikes"


def test_revived_parent_counts_the_endings_of_its_children_again(store: Store) -> None:
    parent, ids = spawn(store)
    store.complete(claim_all(store)[ids[0]])
    store.crash(parent)
    assert store.run(parent.id)["endings"] == "1"
    parent = store.take("p")
    store.fail(parent)
    store.revive(parent.id)
    assert "endings" not in store.run(parent.id)


def test_parent_wakes_when_all_children_have_ended_and_collects_in_their_order(store: Store) -> None:
    parent, ids = spawn(store)
    assert store.suspend(parent, children={BASE: 3}) == "waiting"
    runs = claim_all(store)
    for index in (2, 0):
        store.complete(runs[ids[index]], b"r%d" % index)
        assert store.due().moved == 0
    store.complete(runs[ids[1]], b"r1")
    assert store.due().moved == 1
    parent = store.take()
    assert parent.cause == "wake children"
    by_index = store.collect(parent, BASE)
    assert (by_index.spawned, by_index.ended) == (3, 3)
    assert [(one.index, one.status, one.payload) for one in by_index.endings] == [
        (0, "completed", b"r0"), (1, "completed", b"r1"), (2, "completed", b"r2"),
    ]  # fmt: skip
    assert [one.index for one in store.collect(parent, BASE, by="order", start=1).endings] == [2, 0, 1]
    assert [one.index for one in store.collect(parent, BASE, by="order", start=3).endings] == [1]


def test_suspend_after_the_last_ending_queues_the_parent_immediately(store: Store) -> None:
    parent, ids = spawn(store, 1)
    store.complete(claim_all(store)[ids[0]])
    assert store.suspend(parent, children={BASE: 1}) == "ok"
    assert store.run(parent.id)["cause"] == "wake children"


def test_running_parent_is_told_through_the_inbox_of_its_worker(store: Store) -> None:
    parent, ids = spawn(store, 1)
    store.complete(claim_all(store)[ids[0]])
    assert store.client.lrange(store.keys.inbox("w1"), 0, -1) == [f"signal {parent.id}".encode()]


def test_batch_of_endings_tells_each_running_parent_once_and_counts_all(store: Store) -> None:
    parent, ids = spawn(store)
    runs = claim_all(store)
    assert complete_together(store, *(runs[id] for id in ids)) == ["ok"] * 3
    assert store.client.lrange(store.keys.inbox("w1"), 0, -1) == [f"signal {parent.id}".encode()]
    assert [one.index for one in store.collect(parent, BASE, by="order", start=1).endings] == [0, 1, 2]


def test_child_that_ends_in_a_batch_after_its_parent_leaves_no_results(store: Store) -> None:
    parent, ids = spawn(store, 2)
    runs = claim_all(store)
    assert complete_together(store, runs[ids[0]], parent, runs[ids[1]]) == ["ok"] * 3
    assert not store.client.exists(store.keys.results(parent.id), store.keys.joins(parent.id))


def _fail(store: Store, run: Claimed) -> None:
    store.fail(run, b"error")


def _cancel(store: Store, run: Claimed) -> None:
    store.cancel(run.id)
    store.release(run)


def _force(store: Store, run: Claimed) -> None:
    store.cancel(run.id, grace=1)
    store.later(1000)
    store.due()


def _die(store: Store, run: Claimed) -> None:
    for worker in ("d1", "d2", "d3"):
        store.crash(run)
        store.later(10_000)
        store.due()
        if store.status(run.id) == "dead":
            return
        run = store.take(worker, alone=True)
    raise AssertionError("the run is not dead")


@pytest.mark.parametrize(
    ("end", "status"), [(_fail, "failed"), (_cancel, "cancelled"), (_force, "cancelled"), (_die, "dead")]
)
def test_every_other_ending_of_a_child_wakes_its_parent(
    store: Store, end: Callable[[Store, Claimed], None], status: str
) -> None:
    parent, ids = spawn(store, 1)
    store.suspend(parent, children={BASE: 1})
    end(store, claim_all(store)[ids[0]])
    store.due()
    assert store.status(parent.id) == "queued"
    store.join("w4")
    again = store.claim("w4")[1][0]
    assert [one.status for one in store.collect(again, BASE).endings] == [status]


def test_queued_child_that_is_cancelled_wakes_its_parent(store: Store) -> None:
    parent, ids = spawn(store, 1)
    store.suspend(parent, children={BASE: 1})
    assert store.cancel(ids[0]) == ["cancelled"]
    assert store.due().moved == 1
    assert store.status(parent.id) == "queued"


@pytest.mark.parametrize("due", ["", "+60000"], ids=["queued", "delayed"])
def test_child_that_expires_wakes_its_parent(store: Store, due: str) -> None:
    parent = store.running()
    store.join_children(parent, BASE, 1)
    store.child(parent, BASE, 0, expires="5000", due=due)
    assert store.suspend(parent, children={BASE: 1}) == "waiting"
    store.due()
    assert store.status(parent.id) == "waiting"
    store.later(6000)
    store.due()
    store.due()
    assert (store.status(child_id(BASE, 0)), store.status(parent.id)) == ("cancelled", "queued")
    store.join("w4")
    (ending,) = store.collect(store.take("w4"), BASE).endings
    assert ending.status == "cancelled"
    assert b"expired" in ending.payload


def test_parent_keeps_the_result_of_a_child_that_was_discarded(store: Store) -> None:
    parent, ids = spawn(store, 2)
    store.suspend(parent, children={BASE: 2})
    claimed = claim_all(store)
    store.complete(claimed[ids[0]], b"result")
    store.do(client_plans.discard(store.keys, ids[0]))
    assert not store.client.hexists(store.keys.run(ids[0]), "result")
    store.fail(claimed[ids[1]])
    store.do(client_plans.discard(store.keys, ids[1]))
    store.due()
    assert store.status(parent.id) == "queued"
    store.join("w4")
    endings = store.collect(store.take("w4"), BASE).endings
    assert [one.status for one in endings] == ["completed", "failed"]
    assert endings[0].payload == b"result"


def test_ending_counts_once_even_if_the_child_is_revived(store: Store) -> None:
    parent, ids = spawn(store, 2)
    store.fail(claim_all(store)[ids[0]])
    store.revive(ids[0])
    store.complete(claim_all(store, "w3")[ids[0]])
    collected = store.collect(parent, BASE)
    assert (collected.ended, [one.status for one in collected.endings]) == (1, ["failed"])


def test_repeated_announcement_and_enqueue_change_nothing(store: Store) -> None:
    parent, ids = spawn(store, 2)
    store.complete(claim_all(store)[ids[0]])
    with store.unchanged():
        assert store.join_children(parent, BASE, 2, order=1) == ("ok", 1)
        assert store.child(parent, BASE, 0) == ("created", ids[0])


def test_ended_child_whose_record_is_gone_is_not_created_again(store: Store) -> None:
    parent, ids = spawn(store, 1)
    store.complete(claim_all(store)[ids[0]])
    store.client.delete(store.keys.run(ids[0]))
    assert store.child(parent, BASE, 0) == ("created", ids[0])
    assert store.status(ids[0]) == "missing"


def test_stale_parent_creates_nothing(store: Store) -> None:
    parent, _ = spawn(store, 1)
    with store.unchanged():
        assert store.child(parent, OTHER, 0)[0] == "stale"
        assert store.child(parent, BASE, 1)[0] == "stale"
        assert store.child(parent, BASE, 0, life=2) == ("created", child_id(BASE, 0)), "it exists already"
    store.crash(parent)
    assert store.join_children(parent, OTHER, 1)[0] == "fenced"
    other = store.take("w2", want=1)
    store.complete(other)
    with store.unchanged():
        assert store.child(parent, BASE, 0)[0] in ("created", "stale")


def test_parent_that_ends_drops_its_open_children(store: Store) -> None:
    parent, ids = spawn(store, 3)
    running = claim_all(store)
    store.complete(running[ids[0]])
    store.release(running[ids[1]])
    store.fail(parent)
    store.due()
    assert [store.status(id) for id in ids] == ["completed", "cancelled", "running"]
    assert "cancel" in store.run(ids[2]), "its worker is asked to stop it"
    assert store.line(store.keys.parting()) == []


def test_completed_parent_leaves_no_results(store: Store) -> None:
    parent, ids = spawn(store, 1)
    store.complete(claim_all(store)[ids[0]])
    store.complete(parent)
    assert store.client.exists(store.keys.results(parent.id), store.keys.joins(parent.id)) == 0


def test_open_children_are_dropped_in_batches(store: Store) -> None:
    parent, ids = spawn(store, 5)
    store.complete(parent)
    result = store.due(batch=2)
    assert result.next_ms == 0
    assert [store.status(id) for id in ids].count("cancelled") == 2
    store.due(batch=2)
    assert store.due(batch=2).next_ms is None
    assert {store.status(id) for id in ids} == {"cancelled"}


@pytest.mark.parametrize("entry", ["abc-00 3", "uuuuuuuuuuuuuuuuuuuu-00 3", f"{BASE} {10**12}", "no base", ""])
def test_damaged_entry_of_a_step_that_was_dropped_stops_no_coordinator(store: Store, entry: str) -> None:
    parent, ids = spawn(store, 1)
    store.client.zadd(store.keys.parting(), {entry: -1})
    store.complete(parent)
    store.due()
    store.due()
    assert store.status(ids[0]) == "cancelled"
    assert store.line(store.keys.parting()) == []


def test_parent_with_open_children_ends_although_the_list_of_dropped_steps_is_damaged(store: Store) -> None:
    parent, _ = spawn(store, 1)
    store.spoil(store.keys.parting())
    store.complete(parent)
    assert store.status(parent.id) == "completed"
    assert store.client.exists(store.keys.results(parent.id), store.keys.joins(parent.id)) == 0


def test_step_that_is_dropped_loses_its_open_children_and_its_results(store: Store) -> None:
    parent, ids = spawn(store, 2)
    store.complete(claim_all(store)[ids[0]], b"result")
    assert store.join_children(parent, OTHER, 1) == ("ok", 0)
    store.due()
    assert store.status(ids[1]) == "running", "a new step leaves the others alone"
    for _ in range(2):
        assert store.drop_steps(parent, BASE) == "ok"
        store.due()
        assert store.client.hget(store.keys.run(ids[1]), "cancel")
        assert set(store.client.hkeys(store.keys.joins(parent.id))) == {OTHER.encode()}
        assert store.client.exists(store.keys.results(parent.id)) == 0
    assert store.child(parent, BASE, 1)[0] == "created", "it exists"
    assert store.drop_steps(parent, "nonsense", "", OTHER) == "ok"
    assert store.client.exists(store.keys.joins(parent.id)) == 0


def test_late_calls_of_an_earlier_step_do_not_touch_a_later_one(store: Store) -> None:
    parent, _ = spawn(store, 1)
    late = [lambda: store.join_children(parent, BASE, 1)[0], lambda: store.drop_steps(parent, BASE)]
    assert store.join_children(parent, OTHER, 2) == ("ok", 0)
    ids = [store.child(parent, OTHER, index)[1] for index in range(2)]
    store.complete(claim_all(store)[ids[0]], b"result")
    for call in late * 2:
        assert call() == "ok"
        store.due()
        collected = store.collect(parent, OTHER)
        assert [one.payload for one in collected.endings] == [b"result"]
        assert store.client.hget(store.keys.run(ids[1]), "cancel") is None


def test_late_announcement_of_a_step_that_was_dropped_changes_nothing(store: Store) -> None:
    parent, _ = spawn(store, 1)
    assert store.drop_steps(parent, BASE, OTHER, order=7) == "ok"
    assert store.join_children(parent, OTHER, 2, order=6) == ("late", 0)
    assert store.client.exists(store.keys.joins(parent.id)) == 0
    assert store.child(parent, OTHER, 0)[0] == "stale"
    assert store.drop_steps(parent, OTHER, order=7) == "ok", "a repeated call"
    assert store.join_children(parent, OTHER, 2, order=8) == ("ok", 0)
    assert store.drop_steps(parent, OTHER, order=7) == "late"
    assert store.child(parent, OTHER, 0)[0] == "created"


def test_calls_of_the_next_owner_are_numbered_from_the_start(store: Store) -> None:
    parent, _ = spawn(store, 1)
    assert store.join_children(parent, BASE, 1, order=900)[0] == "ok"
    store.release(parent)
    (again,) = [run for run in store.claim("w1", want=9)[1] if run.id == parent.id]
    assert store.join_children(again, BASE, 1, order=1)[0] == "ok"


@pytest.mark.parametrize("order", ["", "x", "-1", "1.5", "9" * 16])
def test_order_that_is_not_a_number_is_refused(store: Store, order: Any) -> None:
    parent, _ = spawn(store, 1)
    assert store.join_children(parent, BASE, 1, order=order)[0] == "bad"


def test_results_of_thousands_of_children_are_deleted_in_few_commands(store: Store) -> None:
    parent, _ = spawn(store, 1)
    count, results = 2500, store.keys.results(parent.id)
    store.client.hset(store.keys.joins(parent.id), OTHER, f"{count} {count}")
    store.client.hset(results, mapping={f"{OTHER}:{i}": f"{i + 1} completed x" for i in range(count)})
    store.client.hset(results, mapping={f"{OTHER}#{i + 1}": i for i in range(count)} | {f"{BASE}:7": "1 completed y"})
    assert store.drop_steps(parent, OTHER) == "ok"
    assert store.client.hgetall(results) == {f"{BASE}:7".encode(): b"1 completed y"}


def test_stale_parent_drops_nothing(store: Store) -> None:
    parent, ids = spawn(store, 1)
    store.release(parent)
    assert store.drop_steps(parent, BASE) == "fenced"
    store.due()
    assert store.status(ids[0]) == "queued"


def test_revived_parent_keeps_completed_results_and_gets_new_children_for_the_others(store: Store) -> None:
    parent, ids = spawn(store, 3)
    runs = claim_all(store)
    store.complete(runs[ids[2]], b"kept")
    store.fail(runs[ids[0]])
    store.fail(parent, last=delta(1, state=b"s").wire())
    store.due()
    store.revive(parent.id)
    again = store.take("w3", want=1)
    assert store.join_children(again, OTHER, 3, old=BASE) == ("ok", 1)
    collected = store.collect(again, OTHER, by="order", start=1)
    assert [(one.index, one.payload) for one in collected.endings] == [(2, b"kept")]
    assert store.child(again, OTHER, 0, life=2)[0] == "created"
    assert store.collect(again, BASE).word == "missing"


def test_retry_from_the_start_drops_all_children(store: Store) -> None:
    parent, ids = spawn(store, 1)
    store.retry(parent, from_start=True)
    store.due()
    assert store.status(ids[0]) == "cancelled"
    assert store.client.exists(store.keys.joins(parent.id), store.keys.results(parent.id)) == 0


def test_child_that_is_gone_without_an_ending_is_found_by_the_coordinator(store: Store) -> None:
    parent, ids = spawn(store, 2)
    store.suspend(parent, delta(1, more=made(BASE, 2)).wire(), children={BASE: 2})
    store.cancel(ids[0])
    store.client.delete(store.keys.run(ids[1]))
    store.later(limits.CHILDREN_EXAMINED_MS)
    assert store.due().moved == 1
    store.join("w2", lease=LEASE * 100)
    again = next(run for run in store.claim("w2")[1] if run.id == parent.id)
    assert [one.status for one in store.collect(again, BASE).endings] == ["cancelled", "dead"]


def test_children_that_are_not_enqueued_yet_are_not_taken_for_lost(store: Store) -> None:
    """With `at_once`, a step announces all its children and enqueues some of them later."""
    parent = store.running()
    store.join_children(parent, BASE, 4)
    store.child(parent, BASE, 0)
    store.suspend(parent, delta(1, more=made(BASE, 1)).wire(), children={BASE: 1})
    for _ in range(3):
        store.later(limits.CHILDREN_EXAMINED_MS)
        store.due()
    assert store.status(parent.id) == "waiting"
    store.cancel(child_id(BASE, 0))
    store.due()
    again = store.take("w2", want=1)
    assert store.collect(again, BASE).ended == 1
    assert store.child(again, BASE, 1)[0] == "created"
    assert store.status(child_id(BASE, 1)) == "queued"


def test_parent_whose_children_are_open_waits_on_after_a_look(store: Store) -> None:
    parent, _ = spawn(store, 2)
    store.suspend(parent, children={BASE: 2})
    for _ in range(3):
        store.later(limits.CHILDREN_EXAMINED_MS)
        store.due()
        assert store.status(parent.id) == "waiting"
    assert store.score(store.keys.waiting(), parent.id) == store.now + limits.CHILDREN_EXAMINED_MS
    assert store.now > NOW


def test_discarded_parent_and_child(store: Store) -> None:
    parent, ids = spawn(store, 1)
    store.fail(claim_all(store)[ids[0]])
    store.fail(parent)
    store.do(client_plans.discard(store.keys, ids[0]))
    store.do(client_plans.discard(store.keys, parent.id))
    assert store.client.exists(store.keys.joins(parent.id), store.keys.results(parent.id)) == 0


@pytest.mark.parametrize("key", ["parting", "waiting", "coordinator_bell"])
def test_damaged_shared_key_does_not_stop_the_endings_of_other_runs(store: Store, key: str) -> None:
    first, parent = store.running(), store.running()
    store.join_children(parent, BASE, 2)
    for index in range(2):
        store.child(parent, BASE, index)
    waiting = store.running()
    store.join_children(waiting, OTHER, 1)
    store.child(waiting, OTHER, 0)
    store.suspend(waiting, children={OTHER: 1})
    child = claim_all(store)[child_id(OTHER, 0)]
    damaged = getattr(store.keys, key)()
    store.client.delete(damaged)
    store.client.set(damaged, "damaged")
    assert complete_together(store, first, parent, child) == ["ok"] * 3
    assert store.client.smismember(store.keys.live(), [first.id, parent.id, child.id]) == [0, 0, 0]


@pytest.mark.parametrize("key", ["joins", "results"])
def test_damaged_key_of_a_parent_does_not_stop_the_endings_of_its_children(store: Store, key: str) -> None:
    parent, ids = spawn(store, 1)
    damaged = getattr(store.keys, key)(parent.id)
    store.client.delete(damaged)
    store.client.set(damaged, "damaged")
    child = claim_all(store)[ids[0]]
    assert store.complete(child) == "ok"
    assert store.join_children(parent, BASE, 1)[0] == "unreadable"
    assert store.complete(parent) == "ok"
    assert store.client.exists(damaged) == 0


def test_condition_of_a_parent_that_cannot_be_read_does_not_stop_the_ending_of_its_child(store: Store) -> None:
    parent, ids = spawn(store, 1)
    store.suspend(parent, children={BASE: 1})
    store.client.hset(store.keys.run(parent.id), "wait", f"1 - c:{BASE}:many")
    assert store.complete(claim_all(store)[ids[0]]) == "ok"


@pytest.mark.parametrize("entry", ["noise", "0-0 5", "01hf7wz8001hf7wz800u-00 5", f"{BASE}5 x", "a" * 30 + "-00 5"])
def test_foreign_entry_among_departing_children_is_removed(store: Store, entry: str) -> None:
    parent, ids = spawn(store, 1)
    store.fail(parent)
    store.client.zadd(store.keys.parting(), {entry: -1})
    store.due()
    store.due()
    assert store.status(ids[0]) == "cancelled"
    assert store.line(store.keys.parting()) == []


@pytest.mark.parametrize("base", ["noise", "01hf7wz8001hf7wz800u-00", "a" * 30 + "-00"])
def test_base_that_is_not_a_run_id_is_refused(store: Store, base: str) -> None:
    parent = store.running()
    with store.unchanged():
        assert store.join_children(parent, base, 1) == ("bad", 0)


def test_suspend_after_each_new_ending_is_not_delayed(store: Store) -> None:
    """A parent that enqueues one child after the other makes no progress that its checkpoint counts."""
    parent, ids = spawn(store, 3)
    runs = claim_all(store)
    for need in (1, 2, 3):
        store.complete(runs[ids[need - 1]])
        assert store.suspend(parent, children={BASE: need}) == "ok"
        parent = store.take("w3", want=1)
    assert store.suspend(parent, children={BASE: 3}) == "delayed", "without a new ending the run would spin"


def test_ending_of_a_child_of_an_earlier_life_does_not_count(store: Store) -> None:
    parent, ids = spawn(store, 2)
    child = claim_all(store)[ids[0]]
    store.fail(parent, last=delta(1, state=b"s").wire())
    store.revive(parent.id)
    store.complete(child)
    assert store.client.hget(store.keys.joins(parent.id), BASE) == b"2 0"


def test_stale_parent_collects_nothing(store: Store) -> None:
    parent, _ = spawn(store, 1)
    store.crash(parent)
    assert store.collect(parent, BASE).word == "fenced"


def test_late_enqueue_of_an_earlier_life_creates_nothing(store: Store) -> None:
    parent = store.running()
    store.join_children(parent, BASE, 1)
    store.fail(parent, last=delta(1, state=b"s").wire())
    store.due()
    store.revive(parent.id)
    with store.unchanged():
        assert store.child(parent, BASE, 0)[0] == "stale"


def test_late_enqueue_of_a_parent_that_has_failed_creates_nothing(store: Store) -> None:
    parent = store.running()
    store.join_children(parent, BASE, 1)
    store.fail(parent, last=delta(1, state=b"s").wire())
    with store.unchanged():
        assert store.child(parent, BASE, 0)[0] == "stale"


def test_parent_whose_step_is_gone_wakes_immediately(store: Store) -> None:
    parent, _ = spawn(store, 1)
    store.client.delete(store.keys.joins(parent.id))
    assert store.suspend(parent, children={BASE: 1}) == "ok"


def test_lost_count_of_a_step_is_restored_from_its_results(store: Store) -> None:
    parent, ids = spawn(store, 2)
    store.complete(claim_all(store)[ids[1]])
    store.client.hset(store.keys.joins(parent.id), BASE, "damaged")
    store.crash(parent)
    again = store.take("w3")
    assert store.join_children(again, BASE, 2) == ("ok", 1)
    assert [one.index for one in store.collect(again, BASE, by="order", start=1).endings] == [1]


def test_damaged_count_of_an_earlier_step_does_not_block_the_server(store: Store) -> None:
    parent, _ = spawn(store, 1)
    store.client.hset(store.keys.joins(parent.id), BASE, f"1 {10**12}")
    assert store.join_children(parent, OTHER, 1, old=BASE) == ("ok", 0)


def test_ending_that_was_not_stored_because_the_count_was_lost_is_stored_with_the_next_announcement(
    store: Store,
) -> None:
    parent, ids = spawn(store, 3)
    children = claim_all(store)
    store.complete(children[ids[2]])
    store.client.hdel(store.keys.joins(parent.id), BASE)
    store.complete(children[ids[1]])
    assert store.join_children(parent, BASE, 3) == ("ok", 2)
    assert [one.index for one in store.collect(parent, BASE, by="order", start=1).endings] == [2, 1]
    store.complete(children[ids[0]])
    assert store.collect(parent, BASE).ended == 3
