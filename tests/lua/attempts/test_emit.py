"""emit, and the events that saves and endings carry: stored once, in order, only by the owner, never after their cut."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model.limits import DAY_MS, OUTPUT_BYTES, OUTPUT_EVENTS, OUTPUT_REWINDS, TOMBSTONE_MS, WEEK_MS
from coordinator.model.output import Event, Folder, Gap, Item, Rewind
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import doctor as doctor_plans
from coordinator.store.plans import output as output_plans
from coordinator.store.plans.attempts import Output, netstrings
from coordinator.store.plans.workers import Claimed
from coordinator.store.scripts import EMIT
from tests.lua.store import NOW, Store, delta


def events(*values: int) -> tuple[bytes, ...]:
    """Small numbers encode as themselves."""
    return tuple(b"e" + bytes([value]) for value in values)


def output(first: int, *values: int, base: int = 0, settled: int = 0) -> Output:
    return Output(first, base, settled, events(*values))


def emit(store: Store, run: Claimed, given: Output) -> str:
    return store.emit(run, given)


def more(emitted: int) -> bytes:
    return netstrings([b"emitted", b"%d" % emitted])


def save(store: Store, run: Claimed, seq: int, given: Output) -> str:
    return store.save(run, delta(seq, more=more(given.settled), output=given.wire()))


def entries(store: Store, id: str) -> list[tuple[str, dict[bytes, bytes]]]:
    return [(entry.decode(), fields) for entry, fields in store.client.xrange(store.keys.output(id))]


def read(store: Store, id: str, after: str | None = None, settled: bool = False) -> list[Item]:
    folder = Folder(after, settled)
    return folder.fold(store.do(output_plans.read_page(store.keys, id, folder.cursor)))


def short(items: list[Item]) -> list[Any]:
    """Return events as (number, value), rewinds and gaps as text."""
    return [
        (item.number, item.value)
        if isinstance(item, Event)
        else f"rewind {item.to}"
        if isinstance(item, Rewind)
        else f"gap {item.count}"
        for item in items
    ]


def end_of(store: Store, id: str) -> str | None:
    folder = Folder()
    folder.fold(store.do(output_plans.read_page(store.keys, id, folder.cursor)))
    return folder.ended


def epoch(run: Claimed) -> int:
    return int(run.token.split("-")[0])


# ---- events


def test_events_are_stored_in_order_with_their_numbers_and_times(store: Store) -> None:
    run = store.running()
    assert emit(store, run, output(1, 5, 6)) == "ok"
    assert emit(store, run, output(3, 7)) == "ok"
    items = read(store, run.id)
    assert short(items) == [(1, 5), (2, 6), (3, 7)]
    assert [item.id for item in items] == [f"{epoch(run)}-{16 * n}" for n in (1, 2, 3)]
    assert isinstance(items[0], Event)
    assert items[0].at.timestamp() * 1000 == NOW
    assert store.run(run.id)["beside"] == "o"


@pytest.mark.parametrize("first", [1, 2, 3])
def test_event_that_is_sent_again_is_stored_once(store: Store, first: int) -> None:
    run = store.running()
    emit(store, run, output(1, 1, 2, 3))
    before = entries(store, run.id)
    assert emit(store, run, output(first, *range(first, 4))) == "ok"
    assert entries(store, run.id) == before
    assert emit(store, run, output(first, *range(first, 6))) == "ok"
    assert short(read(store, run.id)) == [(n, n) for n in range(1, 6)]


def test_late_events_change_nothing(store: Store) -> None:
    run = store.running()
    emit(store, run, output(4, 4, 5))  # the worker dropped 1 to 3
    emit(store, run, output(1, 1, 2, 3))  # an earlier request that was delayed on its way
    assert short(read(store, run.id)) == ["gap 3", (4, 4), (5, 5)]


def test_former_owner_stores_nothing(store: Store) -> None:
    run = store.running()
    emit(store, run, output(1, 1))
    store.crash(run)
    with store.unchanged():
        assert emit(store, run, output(2, 2)) == "fenced"
    again = store.take("w2")
    with store.unchanged():
        assert emit(store, run, output(2, 2)) == "fenced"
    emit(store, again, output(1, 9))
    assert short(read(store, run.id)) == [(1, 9)]


@pytest.mark.parametrize("text", [b"", b"x", b"3:1 0", b"5:1 0 x", b"33:1 0 1111111111111111111111111111,"])
def test_events_that_cannot_be_read_are_refused(store: Store, text: bytes) -> None:
    run = store.running()
    call = EMIT.each(store.keys.at, run.id, {"now": store.at}, id=run.id, token=run.token, output=text)

    def plan() -> Any:
        return (yield call)

    with store.unchanged():
        assert store.do(plan()) == b"bad"


def test_events_of_several_runs_are_answered_separately(store: Store) -> None:
    one, two = store.running(), store.running("w2")
    store.crash(two)
    assert [emit(store, run, output(1, 1)) for run in (one, two)] == ["ok", "fenced"]


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_end_tells_that_events_are_missing_which_no_save_could_carry(store: Store, how: str) -> None:
    run = store.running()
    emit(store, run, output(1, 1, 2))
    assert store.save(run, delta(1, more=more(5))) == "ok"
    assert getattr(store, how)(run) in ("ok", "failed")
    assert short(read(store, run.id)) == [(1, 1), (2, 2), "gap 3"]
    assert end_of(store, run.id) == store.status(run.id)


# ---- attempts


def test_next_attempt_makes_the_events_after_its_checkpoint_void(store: Store) -> None:
    run = store.running()
    emit(store, run, output(1, 1, 2))
    assert save(store, run, 1, output(3, 3, settled=3)) == "ok"
    emit(store, run, output(4, 4, 5))
    seen = read(store, run.id)
    assert short(seen) == [(n, n) for n in range(1, 6)]
    store.crash(run)
    again = store.take("w2")
    emit(store, again, output(4, 14, base=3))
    assert short(read(store, run.id)) == [(1, 1), (2, 2), (3, 3), (4, 14)]
    assert short(read(store, run.id, after=seen[-1].id)) == ["rewind 3", (4, 14)]
    assert short(read(store, run.id, after=seen[1].id)) == [(3, 3), (4, 14)]


def test_retry_from_the_start_makes_all_events_void(store: Store) -> None:
    run = store.running()
    save(store, run, 1, output(1, 1, 2, settled=2))
    settled = read(store, run.id, settled=True)
    assert short(settled) == [(1, 1), (2, 2)]
    store.retry(run, from_start=True)
    store.later(60_000)
    store.due()
    again = store.take()
    emit(store, again, output(1, 8))
    assert short(read(store, run.id)) == [(1, 8)]
    assert short(read(store, run.id, after=settled[-1].id, settled=True)) == ["rewind 0"]
    save(store, again, 1, output(1, 8, settled=1))
    assert short(read(store, run.id, after=settled[-1].id, settled=True)) == ["rewind 0", (1, 8)]


# ---- saves


def test_save_stores_the_events_before_its_cut(store: Store) -> None:
    run = store.running()
    emit(store, run, output(1, 1))
    assert save(store, run, 1, output(1, 1, 2, settled=2)) == "ok"
    assert short(read(store, run.id)) == [(1, 1), (2, 2)]
    assert short(read(store, run.id, settled=True)) == [(1, 1), (2, 2)]
    assert store.head(run.id)["seq"] == 1


def test_save_that_is_repeated_or_late_stores_its_events_once(store: Store) -> None:
    run = store.running()
    save(store, run, 1, output(1, 1, settled=1))
    save(store, run, 1, output(1, 1, settled=1))
    before = entries(store, run.id)
    assert short(read(store, run.id)) == [(1, 1)]
    save(store, run, 2, output(2, 2, settled=2))
    assert save(store, run, 1, output(1, 1, settled=1)) == "old"
    assert entries(store, run.id)[: len(before)] == before
    assert short(read(store, run.id, settled=True)) == [(1, 1), (2, 2)]


def test_save_of_a_former_owner_stores_no_event(store: Store) -> None:
    run = store.running()
    store.crash(run)
    with store.unchanged():
        assert save(store, run, 1, output(1, 1, settled=1)) == "fenced"


def test_only_events_before_the_cut_are_settled(store: Store) -> None:
    run = store.running()
    emit(store, run, output(1, 1, 2, 3, 4))
    save(store, run, 1, output(5, settled=2))
    assert short(read(store, run.id, settled=True)) == [(1, 1), (2, 2)]
    save(store, run, 2, output(5, settled=4))
    assert short(read(store, run.id, settled=True)) == [(n, n) for n in range(1, 5)]


# ---- endings


def finish(store: Store, run: Claimed, how: str) -> None:
    last = delta(1, more=more(1), output=output(1, 1, 2, settled=1).wire()).wire()
    match how:
        case "complete":
            plan = attempt_plans.complete(
                store.keys, run.id, run.token, b"r", now=store.at, output=output(1, 1, 2).wire()
            )
            assert store.do(plan) == "ok"
        case "fail":
            assert store.fail(run, b"e", last) == "ok"
        case "cancel":
            store.cancel(run.id)
            assert store.release(run, last=last) == "cancelled"
        case _:
            store.cancel(run.id)
            plan = attempt_plans.complete(
                store.keys, run.id, run.token, b"r", now=store.at, output=output(1, 1, 2).wire()
            )
            assert store.do(plan) == "cancelled"


@pytest.mark.parametrize(
    ("how", "status", "kept"),
    [
        ("complete", "completed", DAY_MS),
        ("fail", "failed", WEEK_MS),
        ("cancel", "cancelled", WEEK_MS),
        ("cancelled completion", "cancelled", WEEK_MS),
    ],
)
def test_ending_stores_the_last_events_and_the_end(store: Store, how: str, status: str, kept: int) -> None:
    run = store.running()
    finish(store, run, how)
    assert store.status(run.id) == status
    assert short(read(store, run.id)) == [(1, 1), (2, 2)]
    assert end_of(store, run.id) == status
    assert kept - 60_000 < store.client.pttl(store.keys.output(run.id)) <= kept
    settled = {"complete": [(1, 1), (2, 2)], "cancelled completion": []}
    assert short(read(store, run.id, settled=True)) == settled.get(how, [(1, 1)])


def test_repeated_ending_writes_one_end(store: Store) -> None:
    run = store.running()
    finish(store, run, "complete")
    before = entries(store, run.id)
    finish(store, run, "complete")
    assert entries(store, run.id) == before


def test_ending_of_an_attempt_that_emitted_nothing_makes_earlier_events_void(store: Store) -> None:
    run = store.running()
    save(store, run, 1, output(1, 1, settled=1))
    emit(store, run, output(2, 2, 3))
    seen = read(store, run.id)
    store.crash(run)
    again = store.take("w2")
    store.complete(again)
    assert short(read(store, run.id)) == [(1, 1)]
    assert short(read(store, run.id, after=seen[-1].id)) == ["rewind 1"]
    assert short(read(store, run.id, settled=True)) == [(1, 1)]
    assert end_of(store, run.id) == "completed"


@pytest.mark.parametrize("goes", ["suspended", "released", "retried", "lost"])
@pytest.mark.parametrize("end", ["cancelled", "resumed"])
def test_attempt_that_emits_nothing_and_goes_makes_earlier_events_void(store: Store, goes: str, end: str) -> None:
    run = store.running()
    save(store, run, 1, output(1, 1, settled=1))
    emit(store, run, output(2, 2, 3))
    seen = read(store, run.id)
    store.crash(run)
    again = store.take("w2")
    if goes == "suspended":
        assert store.suspend(again, deadline=store.now + 3_600_000) == "waiting"
    elif goes == "released":
        store.release(again)
    elif goes == "retried":
        store.retry(again)
    else:
        store.crash(again)
    assert short(read(store, run.id, after=seen[-1].id)) == ["rewind 1"], "readers are told before the run continues"
    if end == "cancelled":
        store.cancel(run.id)
        assert end_of(store, run.id) == "cancelled"
        assert short(read(store, run.id)) == [(1, 1)]
    else:
        store.later(7_200_000)
        store.due()
        third = store.take("w3", alone=True) if goes == "lost" else store.take("w3")
        emit(store, third, output(2, 22, base=1))
        assert short(read(store, run.id)) == [(1, 1), (2, 22)]
        assert short(read(store, run.id, after=seen[-1].id)) == ["rewind 1", (2, 22)]


@pytest.mark.parametrize("damage", ["no token", "token without a worker", "token of a queued run"])
def test_doctor_that_takes_a_run_from_an_owner_that_emitted_nothing_makes_earlier_events_void(
    store: Store, damage: str
) -> None:
    run = store.running()
    save(store, run, 1, output(1, 1, settled=1))
    emit(store, run, output(2, 2, 3))
    seen = read(store, run.id)
    store.crash(run)
    again = store.take("w2")
    key = store.keys.run(run.id)
    store.client.srem(store.keys.owned("w2"), run.id)
    fault = "tokenless"
    if damage == "no token":
        store.client.hdel(key, "token")
    elif damage == "token without a worker":
        store.client.hset(key, "token", epoch(again))
    else:
        store.client.hset(key, "status", "queued")
        fault = "held"
    assert store.do(doctor_plans.repair_runs(store.keys, [(run.id, fault)], now=store.at)) == ["repaired"]
    assert emit(store, again, output(2, 9, base=1)) == "fenced"
    assert short(read(store, run.id, after=seen[-1].id)) == ["rewind 1"], "readers are told before the run continues"
    store.cancel(run.id)
    assert short(read(store, run.id)) == [(1, 1)]
    assert end_of(store, run.id) == "cancelled"


def test_doctor_that_removes_the_owner_of_a_completed_run_keeps_its_events(store: Store) -> None:
    run = store.running()
    save(store, run, 1, output(1, 1, 2, settled=2))
    store.crash(run)
    again = store.take("w2")
    assert store.complete(again) == "ok"
    store.client.hset(store.keys.run(run.id), "token", again.token)
    assert store.do(doctor_plans.repair_runs(store.keys, [(run.id, "held")], now=store.at)) == ["repaired"]
    assert "token" not in store.run(run.id)
    assert short(read(store, run.id)) == [(1, 1), (2, 2)]
    assert end_of(store, run.id) == "completed"


def test_events_that_a_forced_cancel_made_void_stay_void_after_a_revive(store: Store) -> None:
    run = store.running()
    save(store, run, 1, output(1, 1, settled=1))
    emit(store, run, output(2, 2, 3))
    store.crash(run)
    store.take("w2")
    store.cancel(run.id)
    store.later(60_000)
    store.due()
    assert store.status(run.id) == "cancelled"
    seen = read(store, run.id)
    assert short(seen) == [(1, 1)]
    store.revive(run.id)
    assert short(read(store, run.id)) == [(1, 1)]
    store.cancel(run.id, "o2")
    assert short(read(store, run.id)) == [(1, 1)]
    assert short(read(store, run.id, after=seen[-1].id)) == []
    assert end_of(store, run.id) == "cancelled"


@pytest.mark.parametrize("goes", ["suspended", "lost"])
def test_attempt_that_emits_nothing_keeps_the_events_of_its_checkpoint(store: Store, goes: str) -> None:
    run = store.running()
    save(store, run, 1, output(1, 1, 2, settled=2))
    store.crash(run)
    again = store.take("w2")
    before = entries(store, run.id)
    if goes == "suspended":
        store.suspend(again, deadline=store.now + 3_600_000)
    else:
        store.crash(again)
    assert entries(store, run.id) == before
    store.cancel(run.id)
    assert short(read(store, run.id)) == [(1, 1), (2, 2)]


def test_lost_run_that_is_dead_keeps_the_events_of_its_last_attempt(store: Store) -> None:
    run = store.running()
    for worker in ("w2", "w3"):
        store.crash(run)
        store.later(60_000)
        store.due()
        store.join(worker)
        (run,) = store.claim(worker, alone=True)[1]
    emit(store, run, output(1, 1))
    store.crash(run)
    assert store.status(run.id) == "dead"
    assert short(read(store, run.id)) == [(1, 1)]
    assert end_of(store, run.id) == "dead"


def test_run_that_is_cancelled_while_it_is_queued_gets_an_end_if_somebody_listens(store: Store) -> None:
    id, unread = store.enqueue(), store.enqueue()
    assert store.do(output_plans.listen(store.keys, id)) == ("open", "queued", "0-0")
    store.cancel(id)
    store.cancel(unread)
    assert end_of(store, id) == "cancelled"
    assert store.client.exists(store.keys.output(unread)) == 0
    assert store.do(output_plans.listen(store.keys, id))[:2] == ("ended", "cancelled")


def test_listener_gets_the_id_of_the_newest_entry(store: Store) -> None:
    run = store.running()
    emit(store, run, output(1, 5, 6))
    newest = entries(store, run.id)[-1][0]
    assert store.do(output_plans.listen(store.keys, run.id)) == ("open", "running", newest)
    store.client.delete(store.keys.output(run.id))
    store.client.set(store.keys.output(run.id), "damage")
    assert store.do(output_plans.listen(store.keys, run.id)) == ("open", "running", "0-0")


def test_expired_run_gets_an_end_if_somebody_listens(store: Store) -> None:
    id = store.enqueue(expires="1000")
    store.do(output_plans.listen(store.keys, id))
    store.later(2000)
    store.due()
    assert end_of(store, id) == "cancelled"


def test_nobody_can_listen_to_a_run_that_does_not_exist(store: Store) -> None:
    assert store.do(output_plans.listen(store.keys, store.id()))[:2] == ("missing", "")


def test_output_of_a_run_without_retention_stays_for_a_minute(store: Store) -> None:
    run = store.running(retention="0")
    finish(store, run, "complete")
    assert end_of(store, run.id) == "completed"
    assert 0 < store.client.pttl(store.keys.output(run.id)) <= TOMBSTONE_MS


def test_revived_run_continues_its_output(store: Store) -> None:
    run = store.running()
    finish(store, run, "fail")
    seen = read(store, run.id)
    assert store.revive(run.id) == "queued"
    assert end_of(store, run.id) is None
    assert store.client.pttl(store.keys.output(run.id)) == -1
    assert short(read(store, run.id)) == [(1, 1), (2, 2)]
    again = store.take("w2")
    emit(store, again, output(2, 12, base=1))
    assert short(read(store, run.id)) == [(1, 1), (2, 12)]
    assert short(read(store, run.id, after=seen[-1].id)) == ["rewind 1", (2, 12)]
    store.complete(again)
    assert end_of(store, run.id) == "completed"


def test_revived_run_that_is_cancelled_again_gets_another_end(store: Store) -> None:
    run = store.running()
    finish(store, run, "fail")
    for operation in ("r1", "r2"):
        store.revive(run.id, operation)
        store.cancel(run.id, operation)
        assert end_of(store, run.id) == "cancelled"
        assert short(read(store, run.id)) == [(1, 1), (2, 2)]


def test_discarded_run_leaves_no_output(store: Store) -> None:
    run = store.running()
    finish(store, run, "complete")
    store.do(output_plans.listen(store.keys, run.id))
    store.do(client_plans.discard(store.keys, run.id, 1))
    assert store.client.exists(store.keys.output(run.id)) == 0


def test_run_with_signals_and_output_has_both_letters(store: Store) -> None:
    run = store.running()
    emit(store, run, output(1, 1))
    store.send(run.id)
    assert sorted(store.run(run.id)["beside"]) == ["o", "s"]
    store.complete(run)
    assert store.client.exists(store.keys.signals(run.id)) == 0


# ---- limits


def test_oldest_events_are_removed_if_there_are_too_many(store: Store) -> None:
    run = store.running()
    for first in range(1, OUTPUT_EVENTS + 2, 1000):
        emit(store, run, output(first, *[1] * 1000))
    kept = store.client.xlen(store.keys.output(run.id))
    assert OUTPUT_EVENTS * 7 / 8 <= kept <= OUTPUT_EVENTS
    items = read(store, run.id)
    assert isinstance(items[0], Gap)
    assert items[0].count == 11_000 - kept
    assert isinstance(items[1], Event)
    assert items[1].number == items[0].count + 1


def lose_and_resume(store: Store, run: Claimed, worker: str) -> Claimed:
    store.crash(run)
    store.later(60_000)
    store.due()
    store.join(worker)
    (again,) = store.claim(worker, alone=True)[1]
    return again


def emit_many(store: Store, run: Claimed, first: int, last: int, base: int) -> None:
    for number in range(first, last + 1, 1000):
        emit(store, run, output(number, *[7] * min(1000, last + 1 - number), base=base))


def test_reader_is_rewound_although_the_events_of_the_attempt_in_between_are_removed(store: Store) -> None:
    run = store.running()
    save(store, run, 1, output(1, 1, 2, 3, settled=3))
    emit(store, run, output(4, 4, 5))
    seen = read(store, run.id)
    second = lose_and_resume(store, run, "w2")
    emit_many(store, second, 4, 12_000, base=3)
    save(store, second, 2, output(12_001, base=3, settled=12_000))
    third = lose_and_resume(store, second, "w3")
    emit_many(store, third, 12_001, 24_000, base=12_000)
    save(store, third, 3, output(24_001, base=12_000, settled=24_000))
    emit_many(store, third, 24_001, 36_000, base=12_000)
    left = {name for _, fields in entries(store, run.id) for name in fields}
    assert left == {b"r3", b"s12000", b"e12000"}, "of the second attempt, only the rewind is left"
    away = read(store, run.id, after=seen[-1].id)
    assert short(away[:1]) == ["rewind 3"]
    assert isinstance(away[1], Gap)
    assert isinstance(away[2], Event)
    assert 3 + away[1].count + 1 == away[2].number
    late = read(store, run.id)
    assert isinstance(late[0], Gap)
    assert late[0].count + 1 == away[2].number
    assert store.client.xlen(store.keys.output(run.id)) <= OUTPUT_EVENTS


def interrupt_many_times(store: Store, run: Claimed, bases: list[int]) -> Claimed:
    """Write attempts that each begin at a base and emit two events. Return the attempt after them, which has emitted many."""
    key = store.keys.output(run.id)
    for number, base in enumerate(bases, 1):
        if number > 1:
            store.client.xadd(key, {f"r{base}": ""}, id=f"{epoch(run) + number}-{16 * base + 1}")
        for event in (base + 1, base + 2):
            store.client.xadd(key, {f"e{base}": f"{NOW} \1"}, id=f"{epoch(run) + number}-{16 * event}")
    later = lose_and_resume(store, run, "w2")
    emit_many(store, later, bases[-1] + 2, bases[-1] + 12_000, base=bases[-1] + 1)
    return later


def rewinds(store: Store, id: str) -> list[str]:
    return [name.decode() for _, fields in entries(store, id) for name in fields if name[:1] == b"r"]


def test_rewind_is_removed_if_a_later_one_goes_back_at_least_as_far(store: Store) -> None:
    run = store.running()
    interrupt_many_times(store, run, [*[4] * 300, 2, 3, 3, 9])
    assert rewinds(store, run.id) == ["r2", "r3", "r9"]
    late = f"{epoch(run) + 3}-{16 * 6}"
    assert short(read(store, run.id, after=late)[:1]) == ["rewind 2"]


def test_reader_with_void_events_drops_them_although_its_rewind_is_removed(store: Store) -> None:
    """Each attempt keeps one event more than the attempt before it. Readers have seen the second event of one attempt."""
    run = store.running()
    bases = list(range(OUTPUT_REWINDS + 100))
    interrupt_many_times(store, run, bases)
    assert rewinds(store, run.id) == ["r1", *(f"r{base}" for base in bases[1 - OUTPUT_REWINDS :])]
    for number in (1, 2, 50, 101, 102, 103, 250, len(bases)):
        seen = number + 1  # the number of the second event of this attempt, which the next attempt made void
        rewind, gap, event = read(store, run.id, after=f"{epoch(run) + number}-{16 * seen}")[:3]
        assert isinstance(rewind, Rewind)
        assert rewind.to == (0 if number <= 101 else number), "only events that may be void are dropped"
        assert isinstance(gap, Gap)
        assert isinstance(event, Event)
        assert rewind.to + gap.count + 1 == event.number
    settled = read(store, run.id, after=f"{epoch(run) + 50}-{16 * 51}", settled=True)
    assert not [item for item in settled if isinstance(item, Rewind)]


def test_oldest_events_are_removed_if_they_are_too_large(store: Store) -> None:
    run = store.running()
    large = b"e\xc5\xff\xff" + b"x" * 0xFFFF
    for number in range(1, 100):
        emit(store, run, Output(number, 0, 0, (large,)))
    size = sum(len(next(iter(fields.values()))) for _, fields in entries(store, run.id))
    assert size <= OUTPUT_BYTES
    assert size == int(store.run(run.id)["output"].split()[-1])
    items = read(store, run.id)
    assert isinstance(items[0], Gap)
    assert items[0].count + len(items) - 1 == 99


def test_reader_of_settled_events_learns_that_they_are_removed(store: Store) -> None:
    run = store.running()
    for seq in (1, 2):
        save(store, run, seq, output(seq, seq, settled=seq))
    emit_many(store, run, 3, 12_000, base=0)
    store.fail(run)
    assert short(read(store, run.id, settled=True)) == ["gap 2"]
    assert [fields for _, fields in entries(store, run.id) if b"s0" in fields] == [{b"s0": b"2"}]
    size = sum(len(value) for _, fields in entries(store, run.id) for name, value in fields.items() if name[:1] == b"e")
    assert size == int(store.run(run.id)["output"].split()[-1])


def test_key_of_another_type_stops_neither_a_save_nor_an_ending(store: Store) -> None:
    run = store.running()
    store.spoil(store.keys.output(run.id))
    assert emit(store, run, output(1, 1)) == "ok"
    assert save(store, run, 1, output(1, 1, settled=1)) == "ok"
    assert store.head(run.id)["seq"] == 1
    assert store.complete(run) == "ok"
    assert store.status(run.id) == "completed"
