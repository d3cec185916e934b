"""Admission: a run of a group gets a place, keeps it, and gives it to the next run of the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.client.reading.overview import read_groups
from coordinator.model.limits import DAY_MS, SWEEP_TURNS
from coordinator.store.plans import groups as group_plans
from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.workers import Claimed
from tests.lua.conftest import force
from tests.lua.groups import find_wrong_places, places_of
from tests.lua.store import NOW, ROUTES, Store

GROUP = "k:acme"


@pytest.fixture(autouse=True)
def _places_agree_with_runs(store: Store) -> object:
    yield
    assert find_wrong_places(store) == []


def placed(store: Store) -> set[str]:
    return store.members(store.keys.admitted(GROUP))


def waiting(store: Store) -> list[str]:
    return store.line(store.keys.line(GROUP))


def test_runs_beyond_the_limit_wait_in_the_line_of_their_group(store: Store) -> None:
    store.limit(2)
    ids = [store.enqueue(group="acme") for _ in range(4)]
    assert (placed(store), waiting(store)) == (set(ids[:2]), ids[2:])
    assert {store.status(id) for id in ids} == {"queued"}
    store.join()
    assert [run.id for run in store.claim()[1]] == ids[:2]


def test_each_group_has_its_own_places(store: Store) -> None:
    store.limit(1)
    ids = [store.enqueue(group=group) for group in ("a", "b", "a", "b")]
    store.join()
    assert {run.id for run in store.claim()[1]} == set(ids[:2])


def test_run_is_held_until_a_limit_is_known(store: Store) -> None:
    id = store.enqueue(group="acme")
    assert store.sweep() == 0
    assert waiting(store) == [id]
    store.join(limits="k=1")
    assert store.sweep() == 1
    assert placed(store) == {id}


def test_handler_without_a_limit_lets_runs_of_a_group_pass(store: Store) -> None:
    ids = {store.enqueue(group="acme") for _ in range(3)}
    store.join(limits="k=-")
    store.sweep()
    assert placed(store) == ids


def test_limit_of_an_operator_wins_over_the_limit_of_a_handler(store: Store) -> None:
    store.join(limits="k=5")
    store.limit(1)
    store.limit(2, group="acme")
    for group in ("acme", "other"):
        for _ in range(6):
            store.enqueue(group=group)
    assert {group: len(ids) for group, ids in places_of(store).items()} == {"k:acme": 2, "k:other": 1}


def ending_complete(store: Store, run: Claimed) -> None:
    assert store.complete(run) == "ok"


def ending_fail(store: Store, run: Claimed) -> None:
    assert store.fail(run) == "ok"


def ending_retry(store: Store, run: Claimed) -> None:
    assert store.retry(run) == "ok"


def ending_reject(store: Store, run: Claimed) -> None:
    assert store.reject(run) == "delayed"


def ending_suspend(store: Store, run: Claimed) -> None:
    assert store.suspend(run, t=0) == "waiting"


def ending_unasked_release(store: Store, run: Claimed) -> None:
    assert store.release(run, mode="unasked") == "delayed"


def ending_forced_cancel(store: Store, run: Claimed) -> None:
    force(store, run)


def ending_recovered_cancel(store: Store, run: Claimed) -> None:
    store.cancel(run.id)
    store.crash(run)
    assert store.status(run.id) == "cancelled"


FREEING = (
    ending_complete, ending_fail, ending_retry, ending_reject, ending_suspend, ending_unasked_release, ending_forced_cancel,
    ending_recovered_cancel,
)  # fmt: skip


@pytest.mark.parametrize("end", FREEING)
def test_run_that_leaves_its_place_admits_the_next_one_in_the_same_script(
    store: Store, end: Callable[[Store, Claimed], None]
) -> None:
    store.limit(1)
    run = store.running(group="acme")
    second, third = store.enqueue(group="acme"), store.enqueue(group="acme")
    end(store, run)
    assert (placed(store), waiting(store)) == ({second}, [third])
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 1


def test_released_run_keeps_its_place(store: Store) -> None:
    store.limit(1)
    run = store.running(group="acme")
    other = store.enqueue(group="acme", priority=5)
    assert store.release(run) == "ok"
    assert (placed(store), waiting(store)) == ({run.id}, [other])
    assert store.take("w2").id == run.id


def test_recovered_run_keeps_its_place(store: Store) -> None:
    store.limit(1)
    run = store.running(group="acme")
    other = store.enqueue(group="acme")
    store.crash(run)
    assert (placed(store), waiting(store)) == ({run.id}, [other])


def test_run_whose_condition_holds_already_keeps_its_place(store: Store) -> None:
    store.limit(1)
    run = store.running(group="acme")
    other = store.enqueue(group="acme")
    store.send(run.id)
    assert store.suspend(run, t=0) == "ok"
    assert (placed(store), waiting(store)) == ({run.id}, [other])


def test_suspect_run_waits_in_the_suspect_queue_after_its_admission(store: Store) -> None:
    store.limit(1)
    store.enqueue(group="acme")
    store.crash(store.take("w1"))
    run = store.take("w2")
    store.crash(run)
    assert store.status(run.id) == "delayed"
    assert placed(store) == set()
    store.later(5000)
    store.due()
    assert sorted(store.places(run.id)) == [f"admitted:{GROUP}", f"suspect:{ROUTES[0]}"]


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_run_that_ends_in_the_line_leaves_it(store: Store, how: str) -> None:
    store.limit(1)
    first = store.enqueue(group="acme")
    second = store.enqueue(group="acme", expires="1000" if how == "expire" else "")
    if how == "cancel":
        assert store.cancel(second) == ["cancelled"]
    store.later(1000)
    store.due()
    assert store.status(second) == "cancelled"
    assert (placed(store), waiting(store)) == ({first}, [])
    store.sweep()
    assert not store.client.exists(store.keys.groups())


def test_cancelled_ready_run_gives_its_place_to_the_next(store: Store) -> None:
    store.limit(1)
    first, second = store.enqueue(group="acme"), store.enqueue(group="acme")
    store.cancel(first)
    assert (placed(store), waiting(store)) == ({second}, [])


@pytest.mark.parametrize("damaged", ["line", "admitted", "groups"])
def test_delayed_run_of_a_damaged_group_is_due_again_after_the_repair(store: Store, damaged: str) -> None:
    store.limit(1)
    run = store.running(group="acme")
    store.retry(run, delay=1)
    store.later(5000)
    keys = {"line": store.keys.line(GROUP), "admitted": store.keys.admitted(GROUP), "groups": store.keys.groups()}
    store.spoil(keys[damaged])
    store.due()
    assert (store.status(run.id), store.line(store.keys.delayed())) == ("delayed", [run.id])
    store.client.delete(keys[damaged])
    store.later(60_000)
    store.due()
    assert (store.status(run.id), placed(store)) == ("queued", {run.id})


def test_delayed_run_has_no_place_and_enters_when_it_is_due(store: Store) -> None:
    store.limit(1)
    later = store.enqueue(group="acme", due="+1000")
    now = store.enqueue(group="acme")
    assert placed(store) == {now}
    store.later(1000)
    store.due()
    assert waiting(store) == [later]


def test_woken_run_enters_the_line_before_runs_that_were_enqueued_later(store: Store) -> None:
    store.limit(1)
    run = store.running(group="acme")
    store.later(5)
    second, third = store.enqueue(group="acme"), store.enqueue(group="acme")
    store.suspend(run, t=0)
    store.send(run.id)
    assert (placed(store), waiting(store)) == ({second}, [run.id, third])


def test_signal_to_a_run_with_a_group_keeps_its_group(store: Store) -> None:
    store.limit(1)
    run = store.running(group="acme")
    store.send(run.id)
    assert store.run(run.id)["beside"] == "ls"
    store.complete(run)
    assert placed(store) == set()
    assert not store.client.exists(store.keys.signals(run.id))


def test_revived_run_enters_the_line(store: Store) -> None:
    store.limit(1)
    run = store.running(group="acme")
    other = store.enqueue(group="acme")
    store.fail(run)
    assert store.revive(run.id) == "queued"
    assert (placed(store), waiting(store)) == ({other}, [run.id])


def test_raised_limit_takes_effect_at_the_next_sweep(store: Store) -> None:
    store.limit(1)
    ids = [store.enqueue(group="acme") for _ in range(4)]
    store.limit(3)
    assert placed(store) == {ids[0]}
    assert store.sweep() == 2
    assert (placed(store), waiting(store)) == (set(ids[:3]), ids[3:])


def test_lowered_limit_evicts_no_run(store: Store) -> None:
    store.limit(3)
    runs = [store.enqueue(group="acme") for _ in range(4)]
    store.limit(1)
    store.sweep()
    assert placed(store) == set(runs[:3])
    store.join()
    claimed = store.claim()[1]
    store.complete(claimed[0])
    store.complete(claimed[1])
    assert (placed(store), waiting(store)) == ({runs[2]}, [runs[3]])
    store.complete(claimed[2])
    assert placed(store) == {runs[3]}


def test_new_run_does_not_overtake_the_line_after_a_limit_was_raised(store: Store) -> None:
    store.limit(1)
    ids = [store.enqueue(group="acme") for _ in range(3)]
    store.limit(2)
    new = store.enqueue(group="acme")
    assert (placed(store), waiting(store)) == (set(ids[:2]), [ids[2], new])


def test_limit_of_zero_holds_every_run(store: Store) -> None:
    store.limit(0)
    store.enqueue(group="acme")
    assert (placed(store), store.sweep()) == (set(), 0)


def test_removed_limit_admits_every_run_of_a_handler_without_a_limit(store: Store) -> None:
    store.join(limits="k=-")
    store.limit(1)
    ids = {store.enqueue(group="acme") for _ in range(3)}
    assert store.limit("")
    store.sweep()
    assert placed(store) == ids


def test_limit_that_is_removed_before_the_first_worker_joins_holds_the_runs(store: Store) -> None:
    store.limit(1)
    ids = [store.enqueue(group="acme") for _ in range(20)]
    assert store.limit("")
    assert store.sweep() == 0
    assert placed(store) == {ids[0]}
    store.join(limits="k=2")
    store.sweep()
    assert [run.id for run in store.claim(want=50)[1]] == ids[:2]


def test_sweep_fills_a_group_with_more_places_than_one_script_fills(store: Store) -> None:
    for _ in range(130):
        store.enqueue(group="acme")
    store.limit(120)
    assert (store.sweep(), store.sweep(), store.sweep()) == (100, 20, 0)
    assert (len(placed(store)), len(waiting(store))) == (120, 10)


def test_line_is_ordered_by_priority_and_time(store: Store) -> None:
    store.limit(1)
    first = store.enqueue(group="acme")
    low, high = store.enqueue(group="acme"), store.enqueue(group="acme", priority=5)
    assert waiting(store) == [high, low]
    store.cancel(first)
    assert placed(store) == {high}


def test_admitted_run_gets_the_score_of_its_admission(store: Store) -> None:
    store.limit(1)
    first = store.enqueue(group="acme")
    second, high = store.enqueue(group="acme"), store.enqueue(group="acme", priority=5)
    store.later(7)
    store.cancel(first)
    assert store.score(store.keys.ready(ROUTES[0]), high) == NOW + 7 - 5 * 2**43
    store.later(2)
    store.cancel(high, "o2")
    assert store.score(store.keys.ready(ROUTES[0]), second) == NOW + 9


def test_long_line_does_not_stand_before_a_group_with_one_run(store: Store) -> None:
    store.limit(1)
    for _ in range(20):
        store.enqueue(group="large")
    store.later(10)
    small = store.enqueue(group="small")
    store.join()
    first = store.claim(want=1)[1][0]
    store.later(1)
    store.complete(first)
    assert store.claim(want=1)[1][0].id == small


def test_groups_take_turns_if_each_may_use_all_slots(store: Store) -> None:
    slots = 4
    store.limit(slots)
    store.join()
    large = {store.enqueue(group="large") for _ in range(60)}
    store.later(10)
    running = list(store.claim(want=slots)[1])
    assert {run.id for run in running} < large
    small = {store.enqueue(group="small") for _ in range(20)}
    starts: list[bool] = []
    while len(starts) < 40:
        store.later(1)
        store.complete(running.pop(0))
        running += (claimed := store.claim(want=1)[1])
        starts += [run.id in small for run in claimed]
    ahead = [2 * starts[:number].count(True) - number for number in range(len(starts) + 1)]
    assert max(map(abs, ahead)) == slots


def test_place_of_a_run_that_is_gone_is_given_away_by_the_sweep(store: Store) -> None:
    store.limit(1)
    first, second = store.enqueue(group="acme"), store.enqueue(group="acme")
    store.client.delete(store.keys.run(first))
    store.client.zrem(store.keys.ready(ROUTES[0]), first)
    assert store.sweep() == 1
    assert placed(store) == {second}


def test_places_of_all_groups_are_examined_in_turns(store: Store) -> None:
    store.limit(1)
    lost = {}
    for number in range(25):
        first, lost[f"g{number}"] = store.enqueue(group=f"g{number}"), store.enqueue(group=f"g{number}")
        store.client.delete(store.keys.run(first))
        store.client.zrem(store.keys.ready(ROUTES[0]), first)
        store.enqueue(group=f"g{number}")  # The group keeps a line, so that it is swept in each turn.
    admitted = [
        store.do(group_plans.sweep(store.keys, turn=turn, now=store.at)).admitted for turn in range(SWEEP_TURNS)
    ]
    assert admitted == [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]
    assert places_of(store) == {f"k:{group}": {id} for group, id in lost.items()}


def test_run_of_a_limited_kind_without_a_group_is_refused(store: Store) -> None:
    store.limit(1)
    run = NewRun(store.id(), ROUTES[0], b"spec")
    with store.unchanged():
        assert store.ask_enqueue(run) == ("ungrouped", run.id)
    assert store.ask_enqueue(NewRun(store.id(), "default:other@0", b"spec"))[0] == "created"
    store.limit("")
    assert store.ask_enqueue(run) == ("created", run.id)


def test_repeated_enqueue_takes_no_second_place(store: Store) -> None:
    store.limit(2)
    run = NewRun(store.id(), ROUTES[0], b"spec", group="acme")
    other = store.enqueue(group="acme")
    for _ in range(3):
        assert store.ask_enqueue(run) == ("created", run.id)
    assert placed(store) == {other, run.id}


def test_late_ending_of_a_lost_owner_frees_no_place(store: Store) -> None:
    store.limit(1)
    run = store.running(group="acme")
    other = store.enqueue(group="acme")
    store.crash(run)
    for end in (store.complete, store.fail, store.retry, store.release, store.suspend):
        assert end(run) == "fenced"
    assert (placed(store), waiting(store)) == ({run.id}, [other])


def test_repeated_ending_frees_one_place(store: Store) -> None:
    store.limit(1)
    run = store.running(group="acme")
    second, third = store.enqueue(group="acme"), store.enqueue(group="acme")
    for _ in range(3):
        assert store.retry(run) == "ok"
    assert (placed(store), waiting(store)) == ({second}, [third])


@pytest.mark.parametrize("family", ["admitted", "line", "groups"])
def test_enqueue_refuses_a_group_whose_keys_have_another_type(store: Store, family: str) -> None:
    store.limit(1)
    key = {"admitted": store.keys.admitted(GROUP), "line": store.keys.line(GROUP), "groups": store.keys.groups()}
    store.spoil(key[family])
    run = NewRun(store.id(), ROUTES[0], b"spec", group="acme")
    assert store.ask_enqueue(run) == ("unreadable", run.id)
    store.client.delete(key[family])


def test_no_key_of_a_group_is_left_when_its_runs_have_ended(store: Store) -> None:
    store.limit(1)
    store.join()
    for _ in range(3):
        store.enqueue(group="acme")
    for _ in range(3):
        store.complete(store.claim()[1][0])
    store.sweep()
    left = {key.split("}:", 1)[1].partition(":")[0] for key in store.dump()}
    assert left & {"admitted", "line", "groups"} == set()


def held(store: Store, id: str) -> int | None:
    stored = store.client.hget(store.keys.run(id), "held")
    return None if stored is None else int(stored)


def waited(store: Store) -> list[float]:
    return [group.waited for group in store.do(read_groups([store.keys], store.now))]


def suspended(store: Store, **options: Any) -> str:
    """Return a run of the group that waits for signal `t`."""
    id = store.enqueue(group="acme", **options)
    (run,) = store.claim()[1]
    assert (run.id, store.suspend(run, t=0)) == (id, "waiting")
    return id


def test_wait_of_a_woken_run_begins_when_it_enters_the_line(store: Store) -> None:
    store.limit(1)
    store.join(lease=10 * DAY_MS)
    woken = suspended(store)
    store.later(3 * DAY_MS)
    store.enqueue(group="acme")
    store.send(woken)
    store.later(1000)
    assert (waiting(store), waited(store)) == ([woken], [1.0])
    assert held(store, woken) == store.now - 1000


def test_woken_run_at_the_head_does_not_hide_a_longer_wait(store: Store) -> None:
    store.limit(1)
    store.join(lease=10 * DAY_MS)
    woken = suspended(store)
    store.later(DAY_MS)
    store.enqueue(group="acme")
    second = store.enqueue(group="acme")
    store.later(3_600_000)
    store.send(woken)
    store.later(1000)
    assert (waiting(store), waited(store)) == ([woken, second], [3601.0])


def test_run_of_higher_priority_does_not_hide_a_longer_wait(store: Store) -> None:
    store.limit(1)
    store.enqueue(group="acme")
    low = store.enqueue(group="acme")
    store.later(3_600_000)
    high = store.enqueue(group="acme", priority=3)
    store.later(1000)
    assert (waiting(store), waited(store)) == ([high, low], [3601.0])


def test_wait_of_a_run_begins_again_when_it_waits_for_a_place_again(store: Store) -> None:
    store.limit(1)
    store.join(lease=10 * DAY_MS)
    id = suspended(store)
    store.later(DAY_MS)
    store.send(id)
    (run,) = store.claim()[1]
    store.enqueue(group="acme")
    store.later(5000)
    store.retry(run, delay=1)
    store.later(1000)
    store.due()
    store.later(2000)
    assert (waiting(store), waited(store)) == ([id], [2.0]), "the score of the retry is later than the wait before"


def test_entering_the_line_with_a_new_score_stores_no_time(store: Store) -> None:
    store.limit(1)
    ids = [store.enqueue(group="acme"), store.enqueue(group="acme"), store.enqueue(group="acme", due="+500")]
    store.later(600)
    store.due()
    assert waiting(store) == ids[1:]
    assert [held(store, id) for id in ids] == [None] * 3


def test_run_of_an_older_process_waits_since_the_time_of_its_score(store: Store) -> None:
    store.limit(1)
    store.join(lease=10 * DAY_MS)
    woken = suspended(store)
    store.enqueue(group="acme")
    store.later(4000)
    store.send(woken)
    store.client.hdel(store.keys.run(woken), "held")
    assert waited(store) == [4.0]
    store.client.set(store.keys.run(woken), "damaged")
    assert waited(store) == [4.0], "the damaged key of a run does not hide the group"
    store.client.delete(store.keys.run(woken))
    store.client.zrem(store.keys.line(GROUP), woken)
