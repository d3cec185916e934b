"""spend: what a run has spent is counted once, over attempts, repetitions, late calls and children."""

from __future__ import annotations

import itertools
import random

import pytest

from coordinator.model.limits import FAR_FUTURE
from coordinator.model.policies.budget import Amount, read_spend
from coordinator.model.run_id import child_id
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans.workers import Claimed
from tests.lua.store import Store

BASE, OTHER_BASE = "01hf7wz8001hf7wz8000-00", "01hf7wz8001hf7wz8100-00"


def spend(store: Store, run: Claimed, *numbers: int) -> tuple[str, Amount]:
    return store.do(attempt_plans.spend(store.keys, run.id, run.token, Amount(*numbers)))


def total(store: Store, id: str) -> Amount:
    settled, last = read_spend(store.run(id).get("spend", ""))
    return settled.plus(last)


def test_total_of_an_attempt_replaces_the_total_before(store: Store) -> None:
    run = store.running()
    assert spend(store, run, 5, 10, 1) == ("ok", Amount())
    assert spend(store, run, 7, 10, 2) == ("ok", Amount())
    assert (total(store, run.id), store.run(run.id)["beside"]) == (Amount(7, 10, 2), "b")


def test_repeated_and_late_totals_change_nothing(store: Store) -> None:
    run = store.running()
    spend(store, run, 7, 10, 2)
    with store.unchanged():
        spend(store, run, 7, 10, 2)
        spend(store, run, 5, 9, 1)


def test_total_of_the_next_attempt_is_added(store: Store) -> None:
    run = store.running()
    spend(store, run, 7, 10, 2)
    store.crash(run)
    again = store.take("w2")
    assert read_spend(again.spend) == (Amount(), Amount(7, 10, 2))
    assert spend(store, again, 1, 1, 1) == ("ok", Amount(7, 10, 2))
    assert total(store, run.id) == Amount(8, 11, 3)
    assert store.claim("w2", number=1)[1][0].spend != "", "a repeated claim answers it too"


def test_only_the_owner_spends(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert spend(store, stranger, 1, 1, 1)[0] == "fenced"


def test_numbers_that_cannot_be_read_are_refused(store: Store) -> None:
    run = store.running()
    with store.unchanged():
        plan = attempt_plans.spend(store.keys, run.id, run.token, Amount("x", 0, 0))  # type: ignore[arg-type]
        assert store.do(plan)[0] == "bad"


@pytest.mark.parametrize("how", ["retry", "revive"])
def test_spending_outlives_a_start_from_the_beginning(store: Store, how: str) -> None:
    run = store.running()
    spend(store, run, 7, 10, 2)
    if how == "retry":
        store.retry(run, from_start=True, delay=0)
        store.due()
    else:
        store.fail(run)
        store.revive(run.id, from_start=True)
    assert total(store, run.id) == Amount(7, 10, 2)


def test_spending_of_a_completed_run_is_kept_for_its_view(store: Store) -> None:
    run = store.running()
    spend(store, run, 7, 10, 2)
    store.complete(run)
    assert total(store, run.id) == Amount(7, 10, 2)


def test_run_that_spends_nothing_gets_no_field_and_no_longer_answer(store: Store) -> None:
    run = store.running()
    assert (run.spend, run.spent) == ("", "")
    assert not {"spend", "beside"} & set(store.run(run.id))


def parent_with_a_child(store: Store) -> tuple[Claimed, Claimed]:
    parent = store.running()
    store.join_children(parent, BASE, 1)
    store.child(parent, BASE, 0)
    return parent, store.take("w2")


def test_child_adds_what_it_spent_to_its_parent(store: Store) -> None:
    parent, child = parent_with_a_child(store)
    spend(store, parent, 1, 1, 1)
    spend(store, child, 7, 10, 2)
    assert total(store, parent.id) == Amount(1, 1, 1)
    store.complete(child)
    assert total(store, parent.id) == Amount(8, 11, 3)
    with store.unchanged():
        store.complete(child)
    assert spend(store, parent, 2, 1, 1) == ("ok", Amount(7, 10, 2))
    assert total(store, parent.id) == Amount(9, 11, 3)


def test_revived_child_adds_only_the_difference(store: Store) -> None:
    parent, child = parent_with_a_child(store)
    spend(store, child, 7, 10, 2)
    store.fail(child)
    store.revive(child.id)
    again = store.take("w3")
    spend(store, again, 1, 0, 1)
    store.complete(again)
    assert total(store, parent.id) == Amount(8, 10, 3)


@pytest.mark.parametrize("damage", ["missing", "another type"])
def test_child_of_a_parent_that_cannot_get_the_sum_still_ends(store: Store, damage: str) -> None:
    parent, child = parent_with_a_child(store)
    spend(store, child, 7, 10, 2)
    if damage == "missing":
        store.client.delete(store.keys.run(parent.id))
    else:
        store.spoil(store.keys.run(parent.id))
    assert store.complete(child) == "ok"


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_parent_that_has_ended_gets_what_its_child_spent_once(store: Store, how: str) -> None:
    parent, child = parent_with_a_child(store)
    spend(store, parent, 1, 0, 0)
    spend(store, child, 7, 10, 2)
    _ = store.complete(parent) if how == "complete" else store.fail(parent)
    kept = store.client.pttl(store.keys.run(parent.id))
    store.due()
    store.release(child)
    store.release(child)
    assert total(store, parent.id) == Amount(8, 10, 2)
    assert 0 < store.client.pttl(store.keys.run(parent.id)) <= kept
    if how == "fail":
        store.revive(parent.id)
        assert read_spend(store.take("w3").spend) == (Amount(7, 10, 2), Amount(1, 0, 0))


def test_root_gets_what_a_grandchild_spent_after_its_parent_had_ended(store: Store) -> None:
    root, child = parent_with_a_child(store)
    store.join_children(child, OTHER_BASE, 1)
    store.child(child, OTHER_BASE, 0)
    grandchild = store.take("w3")
    spend(store, child, 1, 0, 0)
    spend(store, grandchild, 100, 0, 0)
    store.fail(child)
    assert total(store, root.id) == Amount(1, 0, 0)
    store.due()
    spend(store, grandchild, 120, 0, 0)
    for _ in range(2):
        store.release(grandchild)
        assert total(store, root.id) == total(store, child.id) == Amount(121, 0, 0)
    store.revive(child.id)
    again = store.take("w4")
    spend(store, again, 5, 0, 0)
    store.complete(again)
    assert total(store, root.id) == Amount(126, 0, 0), "the difference, once"


def test_spending_stops_at_a_parent_that_has_not_ended(store: Store) -> None:
    root, child = parent_with_a_child(store)
    store.join_children(child, OTHER_BASE, 1)
    store.child(child, OTHER_BASE, 0)
    grandchild = store.take("w3")
    spend(store, grandchild, 100, 0, 0)
    store.complete(grandchild)
    assert (total(store, root.id), total(store, child.id)) == (Amount(), Amount(100, 0, 0))
    store.complete(child)
    assert total(store, root.id) == Amount(100, 0, 0)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_repeated_and_late_calls_counts_everything_once(store: Store, seed: int) -> None:
    """Compare with a model: the sum over all attempts of the largest total that the server has accepted from its owner."""
    choose, worker = random.Random(seed), itertools.count(2)
    parent = store.running()
    count = 3
    store.join_children(parent, BASE, count)
    for index in range(count):
        store.child(parent, BASE, index)
    owners: dict[str, Claimed] = {}
    accepted: dict[str, int] = {}  # by token
    sent: list[tuple[Claimed, int]] = []
    spent = dict.fromkeys((child_id(BASE, index) for index in range(count)), 0)
    for _ in range(120):
        what = choose.choice(["claim", "spend", "spend", "spend", "again", "crash", "fail", "revive", "complete"])
        name = f"w{next(worker)}"
        if what == "claim":
            store.join(name)
            owners |= {run.id: run for run in store.claim(name, want=1)[1]}
        elif what == "spend" and owners:
            run = choose.choice([*owners.values()])
            amount = accepted.get(run.token, 0) + choose.randint(0, 5)
            sent.append((run, amount))
            if spend(store, run, amount, 0, 0)[0] == "ok":
                accepted[run.token] = max(accepted.get(run.token, 0), amount)
        elif what == "again" and sent:
            run, amount = choose.choice(sent)
            if spend(store, run, amount, 0, 0)[0] == "ok":
                accepted[run.token] = max(accepted.get(run.token, 0), amount)
        elif what == "crash" and owners:
            store.crash(owners.pop(choose.choice([*owners])))
            store.later(2000)
            store.due()
        elif what in ("fail", "complete") and owners:
            run = owners.pop(choose.choice([*owners]))
            for _ in range(2):
                _ = store.fail(run) if what == "fail" else store.complete(run)
        elif what == "revive":
            store.revive(choose.choice([*spent]), name)
    tokens = {run.token: run.id for run, _ in sent}
    for token, amount in accepted.items():
        spent[tokens[token]] += amount
    assert {id: total(store, id).usd for id in spent} == spent
    ended = [id for id in spent if store.status(id) in ("completed", "failed", "dead", "cancelled")]
    rolled = {id: int(store.run(id).get("spend", "0 0 0 0 0 0 0 0 0 0").split()[7]) for id in spent}
    assert {id: rolled[id] for id in ended} == {id: spent[id] for id in ended}
    assert total(store, parent.id).usd == sum(rolled.values())


def test_number_that_is_too_large_counts_as_the_largest(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), mapping={"spend": "9" * 400 + " 5 0 0 0 0 0 0 0 0", "beside": "b"})
    assert spend(store, run, 1, 0, 0) == ("ok", Amount(FAR_FUTURE, 5, 0))
    assert total(store, run.id) == Amount(FAR_FUTURE + 1, 5, 0)
