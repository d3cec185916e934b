"""checkpoint: only the owner saves; a lost reply neither duplicates nor loses a message; a late save changes nothing."""

from __future__ import annotations

import pytest

from coordinator.store import scripts
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans.attempts import netstrings
from coordinator.store.plans.workers import Claimed
from coordinator.store.replies import word
from tests.lua.store import ROUTES, Store, delta, messages


def test_next_owner_finds_the_saved_checkpoint(store: Store) -> None:
    run = store.running()
    assert (
        store.save(run, delta(1, count=2, iteration=3, state=b"s1", phases=(("phase:-:a#0", b"o"),), note=b"n")) == "ok"
    )
    store.later(5)
    assert store.save(run, delta(2, base=2, count=1, iteration=4, drop=("phase:-:a#0",))) == "ok"
    assert store.transcript(run.id) == messages(3)
    assert (store.state(run.id), store.phases(run.id), store.run(run.id)["note"]) == (b"s1", {}, "n")
    head = store.head(run.id)
    assert (head["seq"], head["iteration"], head["schema"], head["updated"]) == (2, 4, 1, store.now)


def test_fenced_worker_cannot_checkpoint(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.save(stranger, delta(1, count=1, state=b"stale", note=b"stale")) == "fenced"


def test_ended_run_cannot_be_saved(store: Store) -> None:
    for end in (store.complete, store.fail, store.retry, store.release, store.reject):
        run = store.running()
        end(run)
        with store.unchanged():
            assert store.save(run, delta(1, count=1)) == "fenced"
        store.cancel(run.id)


def test_repeated_save_is_answered_and_writes_nothing_new(store: Store) -> None:
    run = store.running()
    save = delta(1, count=2, state=b"s", phases=(("phase:-:a#0", b"o"),))
    first = store.do(attempt_plans.checkpoint(store.keys, run.id, run.token, save, now=store.at))
    store.later(100)
    with store.unchanged():
        assert (
            store.do(attempt_plans.checkpoint(store.keys, run.id, run.token, save, now=store.at)) == first == ("ok", 1)
        )


@pytest.mark.parametrize("late", range(1, 5))
def test_late_save_changes_nothing(store: Store, late: int) -> None:
    run = store.running()
    saves = [delta(seq, base=seq - 1, count=1, state=b"s%d" % seq, iteration=seq) for seq in range(1, 6)]
    for save in saves:
        assert store.save(run, save) == "ok"
    with store.unchanged():
        assert store.save(run, saves[late - 1]) == "old"


@pytest.mark.parametrize("executed", range(4))
@pytest.mark.parametrize("replied", [False, True])
def test_lost_replies_neither_duplicate_nor_lose_a_message(store: Store, executed: int, replied: bool) -> None:
    """One acknowledged save is followed by three unacknowledged ones, some of which arrive, and by one with everything since."""
    run = store.running()
    store.save(run, delta(1, count=2, state=b"s1"))
    lost = [delta(seq, acked=1, base=2, count=seq - 1, state=b"s%d" % seq) for seq in (2, 3, 4)]
    for save in lost[:executed]:
        assert store.save(run, save) == "ok"
    assert store.save(run, delta(5, acked=1, base=2, count=4, state=b"s5")) == "ok"
    for save in lost if replied else lost[executed:]:
        assert store.save(run, save) == "old"
    assert store.transcript(run.id) == messages(6)
    assert store.save(run, delta(6, base=6, count=1)) == "ok"
    assert store.transcript(run.id) == messages(7)
    assert store.state(run.id) == b"s5"


@pytest.mark.parametrize("executed", range(4))
def test_first_reply_may_be_lost_too(store: Store, executed: int) -> None:
    run = store.running()
    lost = [delta(seq, acked=0, count=seq, state=b"s", phases=(("phase:-:a#0", b"o"),)) for seq in (1, 2, 3)]
    for save in lost[:executed]:
        assert store.save(run, save) == "ok"
    assert store.save(run, delta(4, acked=0, count=4, state=b"s4", phases=(("phase:-:a#0", b"o"),))) == "ok"
    assert store.transcript(run.id) == messages(4)
    assert store.phases(run.id) == {"phase:-:a#0": b"o"}


def test_save_without_any_acknowledged_one_replaces_the_whole_checkpoint(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=2, state=b"s", phases=(("phase:-:a#0", b"o"),)))
    store.save(run, delta(2, base=2, count=3))
    assert store.save(run, delta(3, acked=0, count=6, state=b"s3", phases=(("phase:-:b#0", b"o"),))) == "ok"
    assert store.transcript(run.id) == messages(6), "no chunk of before is left over"
    assert (store.phases(run.id), store.head(run.id)["size"]) == ({"phase:-:b#0": b"o"}, 18)
    assert store.save(run, delta(4, acked=0, base=6, count=1)) == "gap", "everything begins at the beginning"


def test_gap_is_reported_and_nothing_is_written(store: Store) -> None:
    run = store.running()
    with store.unchanged():
        assert store.save(run, delta(3, acked=2, base=0, count=1, state=b"s")) == "gap", (
            "the server lost the whole checkpoint"
        )
        assert store.save(run, delta(3, acked=2)) == "gap"
        assert store.save(run, delta(1, acked=0, base=1, count=1)) == "gap"
    store.save(run, delta(1, count=2))
    with store.unchanged():
        assert store.save(run, delta(4, acked=3, base=2, count=1)) == "gap", (
            "the server fell back behind what it acknowledged"
        )
        assert store.save(run, delta(2, base=3, count=1)) == "gap", "a message is missing"
        assert store.save(run, delta(2, generation=2, base=1, count=1)) == "gap", (
            "a new generation begins at the beginning"
        )


def test_new_generation_replaces_the_transcript(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=5, state=b"s"))
    assert store.save(run, delta(2, generation=2, count=1)) == "ok"
    assert (store.transcript(run.id), store.state(run.id)) == (messages(1), b"s")
    assert not store.client.exists(store.keys.messages(run.id, "1"))
    with store.unchanged():
        assert store.save(run, delta(3, generation=1, base=1, count=1)) == "gap"
        assert store.save(run, delta(1, generation=1, count=5)) == "old"
    assert store.save(run, delta(3, generation=3)) == "ok", "an empty one too"
    assert store.transcript(run.id) == []
    assert not store.client.exists(store.keys.messages(run.id, "2"))


def test_transcript_may_be_truncated_to_the_acknowledged_messages(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=2))
    store.save(run, delta(2, base=2, count=5))
    assert store.save(run, delta(3, acked=1, base=2, count=1)) == "ok"
    assert store.transcript(run.id) == messages(3)


def progress_of(store: Store, run: Claimed, save: attempt_plans.Delta) -> int:
    word, progress = store.do(attempt_plans.checkpoint(store.keys, run.id, run.token, save, now=store.at))
    assert word == "ok"
    return progress


def test_which_saves_count_as_progress(store: Store) -> None:
    run = store.running()
    steps = [
        (delta(1, count=1), 1),  # messages outside a loop
        (delta(2, base=1), 1),
        (delta(3, base=1, state=b"s"), 2),  # the state
        (delta(4, base=1, state=b"s"), 2),  # the same bytes
        (delta(5, base=1, iteration=1), 3),  # a turn
        (delta(6, base=1, count=1, iteration=1), 3),  # messages inside a loop are not progress
        (delta(7, base=2, iteration=0), 3),  # a turn that was counted before
        (delta(8, base=2, iteration=1), 3),
        (delta(9, base=2, iteration=1, phases=(("phase:-:a#0", b"o"),)), 4),  # a phase
        (delta(10, base=2, iteration=1, drop=("phase:-:a#0",)), 4),
        (delta(11, generation=2, count=9, iteration=0), 4),  # a replaced transcript
        (delta(12, generation=2, base=9, count=1), 5),
        (delta(13, generation=2, base=10, iteration=2), 6),
        (delta(14, generation=2, base=10, iteration=2, note=b"note", unfinished=b"u"), 6),
    ]
    for save, expected in steps:
        assert progress_of(store, run, save) == expected, save


def test_progress_never_falls_across_attempts(store: Store) -> None:
    run = store.running()
    assert progress_of(store, run, delta(1, iteration=5)) == 1
    store.crash(run)
    run = store.take("w2")
    assert progress_of(store, run, delta(2, iteration=3)) == 1
    assert progress_of(store, run, delta(3, iteration=5)) == 1
    assert progress_of(store, run, delta(4, iteration=6)) == 2


def test_resent_messages_are_not_progress(store: Store) -> None:
    run = store.running()
    assert progress_of(store, run, delta(1, count=3)) == 1
    assert progress_of(store, run, delta(2, acked=0, count=3)) == 1


def test_unfinished_messages_are_saved_with_the_next_save(store: Store) -> None:
    run = store.running()
    store.release(run, last=delta(1, count=1, unfinished=b"later").wire())
    assert store.client.hget(store.keys.ckpt(run.id), "unfinished") == b"later"
    run = store.take()
    store.save(run, delta(2, base=1))
    assert store.client.hget(store.keys.ckpt(run.id), "unfinished") is None


def test_route_follows_the_schema_of_the_checkpoint(store: Store) -> None:
    run = store.running()
    assert store.run(run.id)["route"] == ROUTES[0]
    store.save(run, delta(1, schema=2))
    assert store.run(run.id)["route"] == ROUTES[2]
    store.save(run, delta(2, schema=1))
    assert store.run(run.id)["route"] == ROUTES[1]


def spoilt_parts(place: int, value: bytes) -> bytes:
    parts = [b"1", b"0", b"1", b"0", b"1", b"m0;", b"0", b"1", b"same", b"", b"", b"", b"", b""]
    parts[place] = value
    return netstrings(parts)


BAD = [b"", b"-3:", b"5:abc", b"nonsense", b"1:a" * 13, b"1:a" * 15, b"1.5:ab" * 14]
BAD += [
    spoilt_parts(place, value)
    for place in (0, 1, 2, 3, 4, 6, 7)
    for value in (b"", b"-1", b"x", b"1.5", b"1e3", b"nan")
]
BAD += [
    spoilt_parts(7, b"0"),
    spoilt_parts(8, b"other"),
    spoilt_parts(10, b"1:a"),
    spoilt_parts(10, b"9:a"),
    spoilt_parts(11, b"x"),
]


def test_bad_save_does_not_affect_the_others_in_its_call(store: Store) -> None:
    first, second, third = (store.running() for _ in range(3))
    good = delta(1, count=1).wire()
    for bad in BAD:
        calls = [
            scripts.CHECKPOINT.each(store.keys.at, run.id, {"now": store.at}, id=run.id, token=run.token, delta=saved)
            for run, saved in ((first, good), (second, bad), (third, good))
        ]
        assert [word(reply) for reply in store.wire.ask(calls)] == ["ok", "bad", "ok"], bad
        assert store.head(second.id) == {}
    assert store.transcript(first.id) == store.transcript(third.id) == messages(1)


@pytest.mark.parametrize("what", ["ckpt", "head", "messages"])
def test_unreadable_checkpoint_is_reported_and_left_alone(store: Store, what: str) -> None:
    run, neighbour = store.running(), store.running()
    store.save(run, delta(1, count=1))
    if what == "head":
        store.client.hset(store.keys.ckpt(run.id), "head", "1 2 3")
    else:
        store.spoil(store.keys.ckpt(run.id) if what == "ckpt" else store.keys.messages(run.id, "1"))
    with store.unchanged():
        assert store.save(run, delta(2, base=1, count=1)) == "unreadable"
    assert store.save(neighbour, delta(1, count=1)) == "ok"


def test_many_saves_in_one_call_are_answered_separately(store: Store) -> None:
    runs = [store.running() for _ in range(4)]
    stale = runs[1]._replace(token="1-1-w1")
    calls = [
        scripts.CHECKPOINT.each(
            store.keys.at,
            run.id,
            {"now": store.at},
            id=run.id,
            token=run.token,
            delta=delta(1, acked=acked, count=index).wire(),
        )
        for index, (run, acked) in enumerate([(runs[0], 0), (stale, 0), (runs[2], 7), (runs[3], 0)])
    ]
    replies = store.wire.ask(calls)
    assert [word(reply) for reply in replies] == ["ok", "fenced", "gap", "ok"]
    assert store.transcript(runs[3].id) == messages(3)
