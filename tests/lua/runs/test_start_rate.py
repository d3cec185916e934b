"""The rate of starts of a group: starts in any time stay within burst + rate * time, and no run starves."""

from __future__ import annotations

import random

import pytest

from coordinator.errors import BadCall
from coordinator.model.policies.groups import GroupLimit
from coordinator.store.plans import groups as group_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.replies import text
from tests.lua.groups import find_wrong_places
from tests.lua.store import ROUTES, Store

GROUP = "k:acme"
TEN_A_SECOND = "10 1000 1"


def set_rate(store: Store, rate: str, group: str = "", at_once: str = "-", mark: str = "r1") -> bool:
    return store.do(group_plans.set_limit(store.keys, "k", group, at_once, mark, rate))


def starting(store: Store) -> set[str]:
    return store.members(store.keys.starting(GROUP))


def claim(store: Store) -> list[str]:
    return [run.id for run in store.claim(want=100)[1]]


def tick(store: Store, ms: int) -> None:
    store.later(ms)
    store.due()


def test_runs_beyond_the_rate_wait_until_the_next_start(store: Store) -> None:
    set_rate(store, TEN_A_SECOND)
    store.join(lease=10**9)
    ids = [store.enqueue(group="acme") for _ in range(3)]
    assert claim(store) == ids[:1]
    tick(store, 99)
    assert claim(store) == []
    tick(store, 1)
    assert claim(store) == ids[1:2]
    tick(store, 100)
    assert claim(store) == ids[2:]
    assert find_wrong_places(store) == []


def test_starts_that_no_worker_took_do_not_add_up(store: Store) -> None:
    """No worker claims for a minute. Then one run starts, and not those of a minute."""
    set_rate(store, TEN_A_SECOND)
    store.join(lease=10**9)
    for _ in range(20):
        store.enqueue(group="acme")
    for _ in range(60):
        tick(store, 1000)
        store.sweep()
    assert len(claim(store)) == 1


def test_burst_may_start_at_one_moment(store: Store) -> None:
    set_rate(store, "10 1000 4")
    store.join(lease=10**9)
    ids = [store.enqueue(group="acme") for _ in range(6)]
    assert claim(store) == ids[:4]
    tick(store, 100)
    assert claim(store) == ids[4:5]


def test_cancelled_run_that_was_admitted_uses_no_start(store: Store) -> None:
    set_rate(store, "1 60000 1")
    store.join(lease=10**9)
    first, second = store.enqueue(group="acme"), store.enqueue(group="acme")
    store.cancel(first)
    assert starting(store) == {second}
    assert claim(store) == [second]


def test_released_and_recovered_runs_do_not_count_again(store: Store) -> None:
    set_rate(store, "1 60000 1")
    store.join(lease=10**9)
    first, _ = store.enqueue(group="acme"), store.enqueue(group="acme")
    [run] = store.claim()[1]
    store.release(run)
    assert claim(store) == [first]
    store.abandon("w1")
    store.join("w2")
    assert [run.id for run in store.claim("w2")[1]] == [first]
    used = float(store.client.get(store.keys.pace(GROUP)) or 0)
    assert used == float(store.at) + 60_000, "one start was counted"
    assert starting(store) == set()


def test_retried_run_counts_as_a_new_start(store: Store) -> None:
    set_rate(store, "1 60000 1")
    store.join(lease=10**9)
    store.enqueue(group="acme")
    [run] = store.claim()[1]
    store.retry(run, delay=0.4)
    tick(store, 500)
    assert claim(store) == []
    tick(store, 59_500)
    assert claim(store) == [run.id]


def test_repeated_claim_uses_one_start(store: Store) -> None:
    set_rate(store, "10 1000 2")
    store.join(lease=10**9)
    for _ in range(3):
        store.enqueue(group="acme")
    plan = worker_plans.claim(store.keys, "w1", number=1, want=1, alone=False, routes=ROUTES, now=store.at)
    request = next(plan)
    store.wire.ask([request])
    before = store.client.get(store.keys.pace(GROUP))
    store.wire.ask([request])
    assert store.client.get(store.keys.pace(GROUP)) == before


def test_coordinator_is_woken_for_the_next_start(store: Store) -> None:
    set_rate(store, TEN_A_SECOND)
    store.join(lease=10**9)
    store.enqueue(group="acme")
    store.enqueue(group="acme")
    store.client.delete(store.keys.coordinator_bell())
    claim(store)
    assert store.client.exists(store.keys.coordinator_bell())
    assert store.score(store.keys.paced(), GROUP) == int(store.at) + 100


def test_run_that_an_older_worker_claimed_holds_no_start_in_the_line(store: Store) -> None:
    set_rate(store, "1 1000 1")
    store.join(lease=10**9)
    id = store.enqueue(group="acme")
    [run] = store.claim()[1]
    assert store.retry(run, delay=1) == "ok"
    store.client.sadd(store.keys.starting(GROUP), id)  # a worker that knows no rates leaves the id there
    tick(store, 5000)
    assert claim(store) == [id]


def test_start_of_a_run_without_a_place_is_given_back_by_the_sweep(store: Store) -> None:
    set_rate(store, "1 1000 1")
    first, second = store.enqueue(group="acme"), store.enqueue(group="acme")
    store.client.srem(store.keys.admitted(GROUP), first)
    for turn in range(20):
        store.do(group_plans.sweep(store.keys, turn=turn, now=store.at))
    assert starting(store) == {second}


def test_start_that_a_lost_run_holds_is_given_back_by_the_sweep(store: Store) -> None:
    set_rate(store, "1 1000 1")
    first, second = store.enqueue(group="acme"), store.enqueue(group="acme")
    assert starting(store) == {first}
    store.client.delete(store.keys.run(first))
    for turn in range(20):
        store.do(group_plans.sweep(store.keys, turn=turn, now=store.at))
    assert starting(store) == {second}


def test_rate_and_places_are_set_apart_from_each_other(store: Store) -> None:
    store.join(limits="k=3,10/60000/2 other=-,5/1000/5")
    assert set_rate(store, "1 1000 1", at_once="=", mark="a")
    assert set_rate(store, "=", at_once="7", group="acme", mark="b")
    assert not set_rate(store, "=", at_once="7", group="acme", mark="c")
    assert set(store.do(group_plans.read_limits(store.keys))) == {
        GroupLimit("k", None, 3, "operator", "1/s", 1),
        GroupLimit("k", "acme", 7, "operator", "1/s", 1),
        GroupLimit("other", None, None, "handler", "5/s", 5),
    }
    assert set_rate(store, "", at_once="", mark="d")
    assert GroupLimit("k", None, 3, "handler", "10/min", 2) in store.do(group_plans.read_limits(store.keys))


def test_kind_with_a_rate_needs_groups(store: Store) -> None:
    set_rate(store, TEN_A_SECOND)
    assert store.client.hget(store.keys.namespace(), "limited") == b" k "
    set_rate(store, "-", mark="r2")
    assert store.client.hget(store.keys.namespace(), "limited") is None


@pytest.mark.parametrize("rate", ["x", "0 1000 1", "1 0 1", "1 1000 0", "1 1000", "1 1000 1 1", "-1 1000 1"])
def test_rate_that_can_not_be_read_is_refused(store: Store, rate: str) -> None:
    with pytest.raises(BadCall):
        set_rate(store, rate)


@pytest.mark.parametrize("family", ["starting", "pace", "paced"])
def test_damaged_key_admits_no_run_too_many(store: Store, family: str) -> None:
    set_rate(store, "1 60000 1")
    store.join(lease=10**9)
    key = {"starting": store.keys.starting(GROUP), "pace": store.keys.pace(GROUP), "paced": store.keys.paced()}[family]
    store.client.hset(key, "damaged", "1")
    ids = [store.enqueue(group="acme") for _ in range(3)]
    claimed = claim(store)
    assert claimed == [] if family == "starting" else claimed == ids[:1]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("seed", range(12))
def test_starts_stay_within_the_rate_in_every_history(store: Store, seed: int) -> None:
    """Runs are enqueued, cancelled, claimed, retried and lost at random times. Starts are read from the claims."""
    chance = random.Random(seed)
    per_second, burst = chance.choice([(2, 1), (5, 3), (20, 2)])
    set_rate(store, f"{per_second} 1000 {burst}")
    store.join(lease=10**9)
    held, starts, ids, worker, counted = [], [], [], "w1", set()
    for step in range(120):
        match chance.choice(["enqueue", "enqueue", "claim", "claim", "end", "cancel", "lose", "wait", "wait", "wait"]):
            case "enqueue":
                ids.append(store.enqueue(group="acme"))
            case "claim":
                for run in store.claim(worker, want=chance.choice([1, 5]))[1]:
                    held.append(run)
                    if run.id not in counted:  # A run that kept its place was counted before.
                        starts.append(int(store.at))
                        counted.add(run.id)
            case "end" if held:
                run = held.pop(chance.randrange(len(held)))
                end = chance.choice(["complete", "release", "retry"])
                if end == "retry":
                    store.retry(run, delay=0.1)
                    counted.discard(run.id)
                else:
                    getattr(store, end)(run)
            case "cancel" if ids:
                store.cancel(chance.choice(ids), f"c{step}")
            case "lose":
                store.abandon(worker)
                worker, held = f"w{step + 2}", []
                store.join(worker, lease=10**9)
            case "wait":
                tick(store, chance.choice([10, 90, 400, 2500]))
                store.sweep()
            case _:
                pass  # There is nothing to end or to cancel yet.
        assert find_wrong_places(store) == []
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            allowed = burst + (starts[last] - begin) * per_second / 1000
            assert last - first + 1 <= allowed + 1e-6, (starts[first : last + 1], seed)
    for _ in range(4 * len(ids) + 4):
        tick(store, 1000)
        store.sweep()
        for alone in (False, True):
            held += store.claim(worker, want=100, alone=alone)[1]
        for run in held:
            store.complete(run)
        held = []
    assert {text(store.run(id)["status"].encode()) for id in ids} <= {"completed", "cancelled"}, "no run starves"
    assert starting(store) == set()
