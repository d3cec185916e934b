"""judge: an outage, a failover, a paused server or a clock step is not mistaken for the death of workers."""

from __future__ import annotations

import pytest

from coordinator.store.plans import coordinators as coordinator_plans
from tests.lua.store import LEASE, NOW, Store


def settled(store: Store, *workers: str, lease: int = LEASE) -> None:
    """Let a coordinator tick for a long time, and then these workers join."""
    store.judge()
    store.tick_for(2 * LEASE)
    assert store.judge() == ([], 0)
    for worker in workers:
        store.join(worker, lease=lease)


def hold(store: Store) -> int:
    return store.judge()[1]


def test_expired_worker_is_reported(store: Store) -> None:
    settled(store, "w1", "w2", "w3")
    store.tick_for(LEASE - 1000)
    store.beat("w2")
    store.beat("w3")
    store.later(999)
    assert store.judge() == ([], 0)
    store.later(1)
    assert store.judge() == (["w1"], 0)


def test_judge_registers_its_coordinator(store: Store) -> None:
    store.judge()
    assert store.score(store.keys.coordinators(), "c1") == NOW
    store.client.zadd(store.keys.coordinators(), {"old": NOW - 60_000})
    store.tick_for(10_000)
    assert store.line(store.keys.coordinators()) == ["c1"]


def test_new_coordinator_holds_recovery_for_one_lease(store: Store) -> None:
    store.join()
    store.later(10 * LEASE)
    assert store.judge() == ([], LEASE)
    store.tick_for(LEASE - 1000)
    store.later(999)
    assert store.judge() == ([], 1)
    store.later(1)
    assert store.judge() == (["w1"], 0), "and the hold ends"


@pytest.mark.parametrize(
    ("gap", "held"), [(3000, False), (3001, True), (3_600_000, True), (0, False), (-1, True), (-3_600_000, True)]
)
def test_gap_or_backward_clock_step_holds_recovery(store: Store, gap: int, held: bool) -> None:
    settled(store, "w1")
    store.later(gap)
    assert hold(store) == (LEASE if held else 0)


def rest(store: Store) -> int:
    _, _, found = store.do(coordinator_plans.judge(store.keys, "c1", tick=1, now=store.at))
    return found


def test_coordinator_judges_every_second_tick_while_no_lease_can_expire_soon(store: Store) -> None:
    settled(store, "w1", lease=15_000)
    assert rest(store) == 2000
    store.later(6999)
    assert rest(store) == 1000, "a gap, so that recovery is paused"
    store.tick_for(15_000)
    store.join("w2", lease=15_000)
    store.client.zrem(store.keys.workers(), "w1")
    assert rest(store) == 2000
    store.later(2000)
    store.tick_for(5000)
    assert rest(store) == 1000, "the lease of w2 expires in 8 s"


@pytest.mark.parametrize(("gap", "held"), [(6000, False), (6001, True)])
def test_gap_is_longer_while_no_lease_can_expire_soon(store: Store, gap: int, held: bool) -> None:
    settled(store, "w1", lease=15_000)
    store.judge()
    store.later(gap)
    assert hold(store) == (15_000 if held else 0)


def test_join_ends_the_longer_gap_because_the_lease_of_the_worker_may_be_short(store: Store) -> None:
    settled(store, "w1", lease=15_000)
    store.judge()
    store.join("w2", lease=1000)
    store.later(3001)
    assert hold(store) == 15_000


def test_hold_set_by_a_clock_that_was_ahead_ends(store: Store) -> None:
    settled(store, "w1")
    store.later(3_600_000)
    assert hold(store) == LEASE
    store.later(-3_600_000)
    assert hold(store) == LEASE
    store.tick_for(LEASE)
    assert hold(store) == 0


def test_recovery_is_held_when_most_of_the_fleet_expires_at_once(store: Store) -> None:
    settled(store, "w1", "w2", "w3")
    store.join("w4")
    store.join("w5")
    store.tick_for(LEASE - 1000)
    store.beat("w4")
    store.beat("w5")
    store.later(1000)
    assert store.judge() == ([], LEASE), "three of five"


@pytest.mark.parametrize(("expired", "alive"), [(2, 0), (3, 3), (3, 9)])
def test_recovery_is_not_held_when_few_or_less_than_half_expire(store: Store, expired: int, alive: int) -> None:
    settled(store, *(f"w{n}" for n in range(expired)), *(f"a{n}" for n in range(alive)))
    store.tick_for(LEASE - 1000)
    for n in range(alive):
        store.beat(f"a{n}")
    store.later(1000)
    assert len(store.judge()[0]) == expired


def test_condemned_workers_do_not_count_as_part_of_the_fleet(store: Store) -> None:
    settled(store, "w1", "w2", "w3")
    for n in range(10):
        store.client.zadd(store.keys.workers(), {f"condemned{n}": 0})
    store.tick_for(LEASE)
    assert hold(store) == LEASE


def test_workers_that_expired_before_the_last_judgement_do_not_count(store: Store) -> None:
    settled(store, "w1", "w2")
    store.join("w3")
    store.join("w4")
    store.tick_for(LEASE - 1000)
    store.beat("w3")
    store.beat("w4")
    store.tick_for(1000)
    assert hold(store) == 0
    store.tick_for(LEASE - 1000)
    assert hold(store) == 0, "two and two, one after the other"


def test_only_condemned_workers_are_reported_during_a_hold(store: Store) -> None:
    store.running("w1")
    store.running("w1")
    store.join("w2")
    store.later(2 * LEASE)
    store.do_abandon_batch(1)
    assert store.judge() == (["w1"], LEASE)


def test_hold_lasts_as_long_as_the_longest_lease(store: Store) -> None:
    store.join("w1", lease=5000)
    store.join("w2", lease=40_000)
    store.join("w3", lease=15_000)
    assert hold(store) == 40_000


@pytest.mark.parametrize("other_lease", [1000, LEASE, 60_000])
def test_deadline_that_is_too_far_away_is_limited_to_the_workers_own_lease(store: Store, other_lease: int) -> None:
    store.later(30_000)
    store.join("w1")
    store.later(-30_000)
    store.join("w2", lease=other_lease)
    store.judge()
    assert store.score(store.keys.workers(), "w1") == NOW + LEASE
    assert store.score(store.keys.workers(), "w2") == NOW + other_lease


def test_unreadable_entry_does_not_stop_the_judgement(store: Store) -> None:
    settled(store, "w1", "w2")
    store.spoil(store.keys.worker("w1"))
    store.beat("w2")
    store.tick_for(10_000)
    assert store.judge() == (["w1"], 0), "its lease is as good as over"


def test_deadlines_are_limited_even_if_judgements_follow_each_other_closely(store: Store) -> None:
    settled(store)
    store.later(30_000)
    store.join("w1")
    store.later(-30_000)
    for _ in range(100):
        store.later(100)
        store.judge()
    assert store.score(store.keys.workers(), "w1") == store.now + LEASE


def test_recovery_is_held_when_most_of_the_fleet_expires_just_after_a_judgement(store: Store) -> None:
    settled(store, "w1", "w2", "w3")
    store.tick_for(LEASE - 1000)
    store.later(999)
    assert store.judge() == ([], 0)
    store.later(1)
    assert store.judge() == ([], LEASE)


def test_repeated_judge_answers_the_same(store: Store) -> None:
    store.join()
    first = store.judge()
    with store.unchanged():
        assert store.judge() == first


def test_judge_limits_the_number_of_reported_workers(store: Store) -> None:
    settled(store, "w1", "w2")
    store.tick_for(LEASE)
    workers, _, _ = store.do(coordinator_plans.judge(store.keys, "c1", tick=1, most=1, now=store.at))
    assert len(workers) == 1


def recovered_after(store: Store, gaps: list[int], most: int = 20 * LEASE) -> int:
    """Let one coordinator judge at these intervals, over and over. Return how long after its last heartbeat w1 is recovered."""
    waited = 0
    while waited < most:
        for gap in gaps:
            store.later(gap)
            waited += gap
            if "w1" in store.judge()[0] and store.recover("w1").word == "ok":
                return waited
    raise AssertionError(f"w1 was not recovered within {waited} ms")


@pytest.mark.parametrize(
    "gaps",
    [
        pytest.param([3400, 200, 200, 200], id="the coordinator is stopped most of the time"),
        pytest.param([4000], id="the coordinator crashes after each judgement"),
        pytest.param([3001], id="each gap is just too long"),
        pytest.param([3001, 1000, 1000, 5000], id="gaps and quiet times alternate"),
        pytest.param([5000], id="a judgement every third of a lease"),
    ],
)
def test_a_lost_workers_runs_are_back_within_three_leases_although_the_coordinator_stutters(
    store: Store, gaps: list[int]
) -> None:
    settled(store, "w1")
    run = store.running("w1")
    store.beat("w1")
    assert recovered_after(store, gaps) <= 3 * LEASE
    assert store.status(run.id) == "queued"
    assert store.counters(run.id).strikes == 0


def test_a_live_worker_keeps_its_runs_although_the_coordinator_stutters(store: Store) -> None:
    settled(store, "w1")
    run = store.running("w1")
    for _ in range(50):
        store.later(4000)
        store.beat("w1")
        assert store.judge()[0] == []
        assert store.recover("w1").word == "alive"
    assert store.complete(run) == "ok"


def outage(store: Store, ms: int) -> None:
    """The server does not answer for a while. Then a coordinator is the first to call it."""
    store.later(ms)
    assert store.judge()[0] == []


def test_a_second_outage_leaves_a_worker_a_third_of_a_lease_to_renew_its_lease(store: Store) -> None:
    settled(store, "w1")
    run = store.running("w1")
    outage(store, 2 * LEASE)
    store.later(100)
    outage(store, 2 * LEASE)
    assert store.recover("w1").word == "held"
    store.later(LEASE // 3 - 1)
    assert store.judge()[0] == []
    assert store.recover("w1").word == "held"
    assert store.beat("w1") is not None
    assert store.complete(run) == "ok"


def test_a_second_outage_near_the_end_of_the_pause_leaves_a_third_of_a_lease_too(store: Store) -> None:
    settled(store, "w1")
    store.running("w1")
    outage(store, 2 * LEASE)
    store.later(100)
    outage(store, LEASE - 200)
    store.tick_for(4000)
    assert store.recover("w1").word == "held"
    assert store.beat("w1") is not None


def test_each_expiry_of_a_lease_is_protected_by_a_pause_of_its_own(store: Store) -> None:
    settled(store, "w1")
    for _ in range(5):
        outage(store, 2 * LEASE)
        store.later(100)
        outage(store, 2 * LEASE)
        assert store.beat("w1") is not None


def test_a_worker_that_expires_during_a_pause_is_protected_until_its_end(store: Store) -> None:
    settled(store, "w1")
    store.tick_for(LEASE - 4000)
    store.later(3500)
    assert store.judge() == ([], LEASE)
    store.tick_for(LEASE - 1000)
    assert store.judge()[0] == []
    store.later(1000)
    assert store.judge()[0] == ["w1"]


def test_a_pause_of_a_clock_that_was_ahead_does_not_protect_longer(store: Store) -> None:
    settled(store, "w1")
    store.later(LEASE + 3_600_000)
    store.judge()
    store.later(-3_600_000)
    assert store.judge() == ([], LEASE)
    store.tick_for(LEASE)
    assert store.judge()[0] == ["w1"]


def test_most_of_the_fleet_expiring_again_does_not_protect_those_that_expired_before(store: Store) -> None:
    settled(store, "w1", "w2", "w3")
    store.tick_for(LEASE)
    assert store.judge() == ([], LEASE)
    for worker in ("w4", "w5", "w6", "w7"):
        store.join(worker)
    store.tick_for(LEASE)
    assert store.judge() == (["w1", "w2", "w3"], LEASE), "most expired again"


def test_an_old_coordinator_may_judge_beside_a_new_one(store: Store) -> None:
    """A coordinator of the release before writes the three fields of watch, and nothing to the workers."""
    settled(store, "w1")
    store.tick_for(LEASE - 1000)
    for _ in range(10):
        store.later(4000)
        watch = {"at": store.now, "hold_until": store.now + LEASE, "clamped": store.now}
        store.client.hset(store.keys.watch(), mapping=watch)
        store.later(600)
        if "w1" in store.judge()[0]:
            return
    raise AssertionError("the old coordinator's pauses protect w1 for ever")
